"""Plugin that fails the run if tests leave anything behind.

Processes and temporary files are looked for after the run; threads and sockets at the end of each worker.
"""

from __future__ import annotations

import concurrent.futures.thread
import gc
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil
import pytest
from support.waiting import patience

_MARK = "LEFT_BY_TESTS_OF"
"""In the environment of whatever a run of tests starts, however deep below and whoever its parent is by now."""
CLOSED_LAST: list[socket.socket] = []
"""Sockets that hold a port closed for as long as tests run."""
_FOLDER = pytest.StashKey[Path]()
_SETTLES_S = 2.0
"""Grace period for processes that are already ending, such as servers of a finished test process."""


def pytest_configure(config: pytest.Config) -> None:
    """Have everything that is temporary in one folder, but for `tmp_path`, which pytest keeps for a look at it."""
    _do_not_ignore_signals()
    if not is_worker(config):
        os.environ[_MARK] = str(os.getpid())
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="loadmanager-tests-")
        config.stash[_FOLDER] = Path(tempfile.tempdir)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _FOLDER in config.stash:
        shutil.rmtree(config.stash[_FOLDER])


@pytest.fixture(scope="session", autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    """Fail at the end of each worker if a thread or a socket of a test is left."""
    yield
    for each in CLOSED_LAST:
        each.close()
    deadline_s = time.monotonic() + patience(_SETTLES_S)
    while (left := _threads_and_sockets()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not left, f"left by tests: {left}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if processes or files are left, and end them: workers have ended by now, and shared servers with them."""
    if is_worker(session.config):
        return
    processes, files = _left(session.config.stash[_FOLDER])
    for process in processes:
        process.kill()
    if processes or files:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None:
        for what in [*processes.values(), *files]:
            reporter.write_line(f"\nLEFT BEHIND (ended now): {what}", red=True)


def _do_not_ignore_signals() -> None:
    """A shell starts what runs in the background with SIGINT ignored, nohup with SIGHUP, and children inherit that.

    What is handled instead, if only by doing nothing, is back to its default in every program that is started.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _carry_on)


def _carry_on(_signal: int, _frame: FrameType | None) -> None:
    pass


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _left(folder: Path) -> tuple[dict[psutil.Process, str], list[Path]]:
    """Find processes that this run has started and that do not end, and temporary files that nobody removes."""
    deadline_s = time.monotonic() + patience(_SETTLES_S)
    while True:
        processes, files = _started(), sorted(folder.iterdir())
        if not (processes or files) or time.monotonic() > deadline_s:
            return processes, files
        time.sleep(0.1)


def _threads_and_sockets() -> list[object]:
    """Find what is open in this process. Threads of pools end with them, as garbage; PySpark keeps connections."""
    if "pyspark" in sys.modules:
        return []
    gc.collect()
    threads = set(threading.enumerate()) - {threading.main_thread(), *concurrent.futures.thread._threads_queues}
    sockets = [each for each in gc.get_objects() if isinstance(each, socket.socket) and each.fileno() != -1]
    return [*threads, *sockets]


def _started() -> dict[psutil.Process, str]:
    found: dict[psutil.Process, str] = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if environment.get(_MARK) == os.environ[_MARK] and process.status() != psutil.STATUS_ZOMBIE:
                test = environment.get("PYTEST_CURRENT_TEST", "something shared")
                found[process] = f"{process.pid} {' '.join(process.cmdline())[:200]} of {test}"
        except psutil.Error:
            continue
    return found
