"""Of the processes that tests start: which signals they heed, and that none of them outlives its test. A plugin."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

import psutil
import pytest

_MARK = "LEFT_BY_TESTS_OF"
"""In the environment of whatever a run of tests starts, however deep below and whoever its parent is by now."""
_ENDS_WITHIN_S = 5.0
"""For those whose end has begun already, as of servers whose test process has ended."""


def pytest_configure(config: pytest.Config) -> None:
    _do_not_ignore_signals()
    if not is_worker(config):
        os.environ[_MARK] = str(os.getpid())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail, and end them, if processes are left: workers have ended by now, and shared servers with them."""
    if is_worker(session.config) or not (left := _left()):
        return
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    for process, words in left.items():
        process.kill()
        if reporter is not None:
            reporter.write_line(f"\nLEFT BEHIND (killed now): {words}", red=True)


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


def _left() -> dict[psutil.Process, str]:
    """Processes that this run has started and that do not end, each with what it is and who started it."""
    deadline_s = time.monotonic() + _ENDS_WITHIN_S
    while (left := _started()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return left


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
