from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from support.waiting import eventually_sync, patience

from loadmanager.broker.conformance.broker_under_test import find_process, process_of, started
from loadmanager.broker.conformance.rule_verdicts import UnsettledError
from loadmanager.errors import ConfigurationError

LISTENING = """
import socket, time

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.fixture
def listening() -> Iterator[tuple[int, str]]:
    """A process that listens, and where."""
    process = subprocess.Popen([sys.executable, "-c", LISTENING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.pid, f"http://127.0.0.1:{process.stdout.readline().strip()}"
    process.kill()
    process.communicate()


def test_listening_process_is_found_and_can_be_stopped(listening: tuple[int, str]) -> None:
    process = find_process(*listening)
    assert process is not None
    process.stop()
    assert psutil.Process(listening[0]).status() == psutil.STATUS_STOPPED
    process.go_on()
    eventually_sync(lambda: psutil.Process(listening[0]).status() != psutil.STATUS_STOPPED)
    assert not process.has_ended()
    process.end()
    process.process.wait(patience())
    assert process.has_ended()
    process.go_on()
    process.end()
    with pytest.raises(UnsettledError, match="could not be stopped"):
        process.stop()


def test_process_that_does_not_listen_at_the_url_is_not_found(listening: tuple[int, str]) -> None:
    pid, url = listening
    assert find_process(pid, "http://127.0.0.1:1") is None
    assert find_process(os.getppid(), url) is None
    assert find_process(2**22 - 1, url) is None


def test_unknown_pid_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"^--pid 4194303: ."):
        process_of(2**22 - 1)


def test_started_process_ends_with_its_children() -> None:
    with started(["sh", "-c", "sleep 600 & sleep 600"]) as process:
        eventually_sync(lambda: psutil.Process(process.pid).children())
        children = psutil.Process(process.pid).children()
    assert process.returncode is not None
    psutil.wait_procs(children, 30)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_missing_command_is_named() -> None:
    with (
        pytest.raises(ConfigurationError, match="/no/such/broker"),
        started(["/no/such/broker"]),
    ):
        pass
