"""A guardian that has imported what commands need, and forks to run one.

A command's imports alone take a second of a processor; one that is forked takes what it does. It is else the process
that a shell would have started: with its own process id, signals, exit code, environment, folder and files, and it runs
to its own end. What it shares with others is the seed of Python's hashes, and `/proc/*/environ` and `cmdline`, which
are those of the guardian.

A script: `support.processes` starts it, and talks to it.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from importlib import import_module
from typing import Any

from loadmanager.__main__ import main as run
from loadmanager.cli import COMMANDS, module_of
from loadmanager.dev.embedded.guardian import Guardian, die_with_parent, main

_SELDOM = ("pipeline",)
_POLL_S = 0.01


class Forked(BaseException):
    """Raised in the new process, to leave all that its parent was about."""

    def __init__(self, words: list[str]) -> None:
        self.words = words


class _Child:
    """Replacement of `subprocess.Popen` for a guardian, for a forked process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        if self._exit_code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code

    def wait(self, timeout: float = float("inf")) -> int:
        deadline_s = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkingGuardian(Guardian):
    def __init__(self) -> None:
        super().__init__()
        self._arm = die_with_parent()
        for command in COMMANDS:
            if command not in _SELDOM:
                import_module(module_of(command))
        gc.collect()
        gc.freeze()

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] != "fork":
            return super().handle(request)
        if pid := _fork():
            self._servers[request["name"]] = _Child(pid)  # type: ignore[assignment]  # as good as one
            return {"pid": pid}
        self._servers.clear()  # they are the parent's
        if self._arm is not None:
            self._arm()
        _become(request["environ"], request["files"], request["cwd"])
        raise Forked(request["words"])


def _fork() -> int:
    """Newer Pythons warn of threads: there are some of OpenBLAS and jemalloc, which both know what to do at a fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become(environ: dict[str, str], files: list[str], cwd: str) -> None:
    """Take over what a process is given when it starts."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for output, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), output)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)


if __name__ == "__main__":
    words = None
    try:
        main(int(sys.argv[1]), ForkingGuardian)
    except Forked as forked:
        words = forked.words
    if words is not None:
        sys.argv = ["loadmanager", *words]
        run()
