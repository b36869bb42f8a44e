"""Python processes that are killed at the end of their test, and helpers that wait for their exit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from support import forking as guardian
from support.waiting import patience

from loadmanager.dev.embedded.processes import ServerProcesses

_LINES_SHOWN = 40
_FORKED = ["-m", "loadmanager"]
"""First arguments of a Python that can be forked instead of started."""


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    """Exit code, output and errors of a process that is about to end; not to do so is a failure, and it is killed."""
    within_s, talking = patience(), asyncio.create_task(process.communicate())
    await asyncio.wait([talking], timeout=within_s)
    is_late = not talking.done()
    if is_late:
        process.kill()
    out, errors = [(data or b"").decode() for data in await asyncio.wait_for(talking, within_s)]
    assert not is_late, _late(within_s, out, errors)
    assert process.returncode is not None
    return process.returncode, out, errors


def ended_sync(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """`ended` for tests without an event loop."""
    within_s = patience()
    try:
        out, errors = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate(timeout=within_s)
        raise AssertionError(_late(within_s, out, errors)) from None
    return process.returncode, out, errors


def _late(within_s: float, out: str, errors: str) -> str:
    return f"not ended within {within_s:g} s, and killed. Its output:\n{out[-2000:]}\nits errors:\n{errors[-2000:]}"


class _Forking(ServerProcesses):
    """Processes that are forked from one that has imported what they need: see `support.forking`."""

    _COMMAND = (sys.executable, "-P", guardian.__file__)

    def fork(
        self, name: str, words: Sequence[str], files: tuple[Path, Path], cwd: Path, environ: Mapping[str, str]
    ) -> int:
        """A process that does what `loadmanager` with these words does, its output and its errors appended to `files`;
        the process id.
        """
        paths = [str(file) for file in files]
        return int(self._ask(do="fork", name=name, words=words, files=paths, cwd=str(cwd), environ=environ)["pid"])


_shared: list[_Forking] = []
_starting = threading.Lock()


def forking() -> _Forking:
    """Return the forking server of this process, started on first use."""
    with _starting:
        if not _shared:
            _shared.append(_Forking())
        return _shared[0]


def pytest_sessionfinish() -> None:
    """End the forking server; this module is a pytest plugin."""
    for each in _shared:
        each.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of each log in the test's folder with a failure: it may not happen again."""
    report = yield
    if report.failed and isinstance(folder := item.funcargs.get("tmp_path"), Path):
        for log in sorted(folder.rglob("*.log")):
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES_SHOWN:]
            report.sections.append((f"end of {log.relative_to(folder)}", "\n".join(lines)))
    return report


class Processes:
    """Python processes by name; `folder` is where they run. Use it with `with`: at the end they are killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: set[str] = set()

    def start(self, name: str, arguments: Sequence[str], log: Path) -> int:
        """Start a Python with `arguments`, its output appended to `log`; the process id."""
        self._names.add(name)
        if arguments[:2] == _FORKED:
            return forking().fork(self._full(name), arguments[2:], (log, log), self._folder, dict(os.environ))
        return forking().start(self._full(name), [sys.executable, *arguments], cwd=self._folder, log=log)

    def signal(self, name: str, number: signal.Signals) -> None:
        forking().signal(self._full(name), number)

    def is_running(self, name: str) -> bool:
        return forking().find_exit_code(self._full(name)) is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._names:
            self.signal(name, signal.SIGKILL)
        for name in self._names:
            forking().stop(self._full(name), grace_s=0)

    def _full(self, name: str) -> str:
        """Return the name, made unique among all tests."""
        return f"{id(self)} {name}"
