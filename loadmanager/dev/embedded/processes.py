"""Client of the guardian process, over a pipe; see `loadmanager.dev.embedded.guardian`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from loadmanager.dev.embedded import guardian
from loadmanager.errors import EmbeddedServerError

STOP_GRACE_S = 5.0
_CLOSE_TIMEOUT_S = 30.0


class ServerProcesses:
    """Server processes by name, which end when this process ends, even after a SIGKILL.

    `folder` is their temporary folder, which is removed with them; None if none was requested. Thread-safe; requests
    are executed one after the other.
    """

    _COMMAND: ClassVar[Sequence[str]] = (sys.executable, "-I", "-S", guardian.__file__)

    def __init__(self, temporary_prefix: str | None = None) -> None:
        self._lock = threading.Lock()
        self._last_request = 0
        arguments = [str(os.getpid()), *([temporary_prefix] if temporary_prefix else [])]
        self._guardian = subprocess.Popen(  # noqa: S603 - our own script
            [*self._COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        folder = self._read_answer(0)["folder"]
        self.folder = Path(folder) if folder else None

    @property
    def is_closed(self) -> bool:
        return self._guardian.stdin is None or self._guardian.stdin.closed

    def start(self, name: str, command: Sequence[str], *, cwd: Path, log: Path) -> int:
        """Start a server and return its process id. Its output is appended to `log`."""
        answer = self._ask(do="start", name=name, command=list(command), cwd=str(cwd), log=str(log))
        return int(answer["pid"])

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal. No effect if the server has exited, even if the kernel has reused its process id."""
        self._ask(do="signal", name=name, signal=int(number))

    def stop(self, name: str, grace_s: float = STOP_GRACE_S) -> int:
        """SIGTERM, then SIGKILL after `grace_s` (0: at once). Return the exit code, negative for a signal."""
        return int(self._ask(do="stop", name=name, grace_s=grace_s)["exit_code"])

    def kill(self, *names: str) -> float:
        """SIGKILL servers together, as when a machine is lost, and wait for their exit. Return the monotonic time from
        which on none of them runs.
        """
        return float(self._ask(do="kill", names=names)["at_s"])

    def find_exit_code(self, name: str) -> int | None:
        """Return the exit code; None while the server runs."""
        code = self._ask(do="poll", name=name)["exit_code"]
        return None if code is None else int(code)

    def close(self) -> None:
        """End all servers and remove the temporary folder; returns afterwards. Idempotent."""
        with self._lock:
            for pipe in (self._guardian.stdin, self._guardian.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            self._guardian.wait(_CLOSE_TIMEOUT_S)

    def _ask(self, **request: object) -> dict[str, Any]:
        with self._lock:
            pipe = self._guardian.stdin
            if pipe is None or self.is_closed:
                raise EmbeddedServerError(f"cannot {request['do']} the server: it was stopped for good")
            self._last_request += 1
            try:
                pipe.write(json.dumps({"id": self._last_request, **request}).encode() + b"\n")
                pipe.flush()
            except OSError as error:
                raise EmbeddedServerError("the guardian of the embedded servers is gone, and they with it") from error
            answer = self._read_answer(self._last_request)
        if "error" in answer:
            raise EmbeddedServerError(f"cannot {request['do']} the server: {answer['error']}")
        return answer

    def _read_answer(self, number: int) -> dict[str, Any]:
        """Return the answer to request `number`. Skip earlier answers, whose wait was interrupted by Ctrl-C."""
        pipe = self._guardian.stdout
        while line := pipe.readline() if pipe is not None else b"":
            answer: dict[str, Any] = json.loads(line)
            if answer["id"] == number:
                return answer
        raise EmbeddedServerError("the guardian of the embedded servers is gone, and they with it")
