"""Guardian process: the parent of the servers, which ends them when the main process exits.

It is run as a script (`python -I -S guardian.py`) with the standard library only, so it starts fast and in any
environment. The main process sends it requests through a pipe, one JSON object per line in each direction. The pipe
ends with the main process, after any kind of exit (normal, exception, Ctrl-C, SIGTERM, SIGKILL, out of memory). Then
the guardian ends the servers and removes the temporary folder. The main process need not run any code for that.

The guardian has its own session: Ctrl-C in a terminal reaches the main process only, not the servers.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

POLL_S = 0.5
GRACE_AT_THE_END_S = 5.0
_PR_SET_PDEATHSIG = 1
_PIPE = 0
_REMOVAL_TRIES = 5


class Guardian:
    """Servers by name, and their temporary folder, if any."""

    def __init__(self, temporary_prefix: str | None = None) -> None:
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self.folder = tempfile.mkdtemp(prefix=temporary_prefix) if temporary_prefix else None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Execute one request and return its answer."""
        match request["do"]:
            case "start":
                return {"pid": self._start(request["name"], request["command"], request["cwd"], request["log"])}
            case "signal":
                self._servers[request["name"]].send_signal(request["signal"])
                return {}
            case "stop":
                return {"exit_code": stop(self._servers[request["name"]], request["grace_s"])}
            case "kill":
                return {"at_s": kill([self._servers[name] for name in request["names"]])}
            case "poll":
                return {"exit_code": self._servers[request["name"]].poll()}
        raise ValueError(f"unknown request {request['do']!r}")

    def reap(self) -> None:
        """Reap servers that exited by themselves, so that no zombies remain."""
        for server in self._servers.values():
            server.poll()

    def end(self) -> None:
        """Stop all servers. Those in a temporary folder are killed at once: their data are not needed."""
        for server in self._servers.values():
            stop(server, 0.0 if self.folder else GRACE_AT_THE_END_S)
        for _ in range(_REMOVAL_TRIES):
            if not self.folder or not Path(self.folder).exists():
                break
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, command: list[str], cwd: str, log: str) -> int:
        with Path(log).open("ab") as output:
            server = subprocess.Popen(  # noqa: S603 - the command is our own process's, never a user's text
                command,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - this process has one thread
            )
        self._servers[name] = server
        return server.pid


def stop(server: subprocess.Popen[bytes], grace_s: float) -> int:
    """SIGTERM, then SIGKILL after `grace_s`; return the exit code. A paused server is resumed to exit gracefully."""
    if grace_s > 0:
        server.send_signal(signal.SIGTERM)
        server.send_signal(signal.SIGCONT)
        try:
            return server.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass
    server.kill()
    return server.wait()


def kill(servers: Sequence[subprocess.Popen[bytes]]) -> float:
    """SIGKILL all servers before waiting for any; return the monotonic time after the last signal."""
    for server in servers:
        server.kill()
    at_s = time.monotonic()
    for server in servers:
        server.wait()
    return at_s


def die_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` by which Linux kills a server when its guardian exits; None on other systems."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    return arm


def _ignore_signal(_signal: int, _frame: FrameType | None) -> None:
    """Ignore a signal. Not SIG_IGN: servers would inherit it, and a JVM would ignore SIGTERM permanently."""


def _requests(parent_pid: int, idle: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Yield requests until the pipe ends or the parent exits (a process forked from it may hold the pipe open)."""
    pending = b""
    while os.getppid() == parent_pid:
        readable, _, _ = select.select([_PIPE], [], [], POLL_S)
        if not readable:
            idle()
            continue
        received = os.read(_PIPE, 65_536)
        if not received:
            return
        *complete, pending = (pending + received).split(b"\n")
        for line in complete:
            yield json.loads(line)


def _answer(out: IO[bytes], answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer).encode() + b"\n")
    out.flush()


def main(parent_pid: int, make_guardian: Callable[[], Guardian]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore_signal)
    guardian = make_guardian()
    try:
        _answer(sys.stdout.buffer, {"id": 0, "folder": guardian.folder})
        for request in _requests(parent_pid, guardian.reap):
            try:
                answer = guardian.handle(request)
            except (OSError, ValueError, KeyError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            _answer(sys.stdout.buffer, {"id": request["id"], **answer})
    except BrokenPipeError:  # the main process has exited: same as the end of the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's flush at exit
    finally:
        guardian.end()


if __name__ == "__main__":
    main(int(sys.argv[1]), lambda: Guardian(*sys.argv[2:]))
