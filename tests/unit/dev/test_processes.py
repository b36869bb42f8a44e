from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.waiting import eventually_sync, patience
from support.zookeeper import is_alive

from loadmanager.dev.embedded.processes import ServerProcesses
from loadmanager.errors import EmbeddedServerError

SLEEP = ["/bin/sleep", "600"]
STUBBORN = ["/bin/sh", "-c", 'trap "" TERM; echo ready; while :; do sleep 0.05; done']
A_PARENT = """
import json, sys
from pathlib import Path
from loadmanager.dev.embedded.processes import ServerProcesses
processes = ServerProcesses("loadmanager-test-")
folder = processes.folder
pid = processes.start("one", ["/bin/sleep", "600"], cwd=folder, log=folder / "log")
print(json.dumps({"pid": pid, "guardian": processes._guardian.pid, "folder": str(folder)}), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def processes() -> Iterator[ServerProcesses]:
    made = ServerProcesses("loadmanager-test-")
    yield made
    made.close()


def folder_of(processes: ServerProcesses) -> Path:
    assert processes.folder is not None
    return processes.folder


def start(processes: ServerProcesses, command: list[str], name: str = "one") -> int:
    return processes.start(name, command, cwd=folder_of(processes), log=folder_of(processes) / "log")


def test_output_of_servers_is_appended_to_their_log(processes: ServerProcesses) -> None:
    for word in ("first", "second"):
        start(processes, ["/bin/sh", "-c", f"echo {word}; echo {word} error >&2"])
        eventually_sync(lambda: processes.find_exit_code("one") == 0)
    log = folder_of(processes) / "log"
    assert log.read_text().splitlines() == ["first", "first error", "second", "second error"]


def test_exited_server_leaves_no_zombie(processes: ServerProcesses) -> None:
    pid = start(processes, ["/bin/true"])
    eventually_sync(lambda: not psutil.pid_exists(pid))


def test_exit_code_is_known_once_a_server_has_exited(processes: ServerProcesses) -> None:
    start(processes, SLEEP, "sleeps")
    start(processes, ["/bin/sh", "-c", "exit 3"], "fails")
    eventually_sync(lambda: processes.find_exit_code("fails") == 3)
    assert processes.find_exit_code("sleeps") is None


def test_stop_terminates_a_server(processes: ServerProcesses) -> None:
    pid = start(processes, SLEEP)
    assert processes.stop("one") == -signal.SIGTERM
    assert not is_alive(pid)


WATCHER = """
import os, select, sys
from pathlib import Path
watched, ready, seen = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
death = os.pidfd_open(watched)
ready.touch()
select.select([death], [], [])
seen.touch()
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a pidfd, to see a death at once")
def test_killed_together_servers_do_not_see_each_others_exit(processes: ServerProcesses) -> None:
    """An agent must not react to its broker when both are lost."""
    ready, seen = folder_of(processes) / "ready", folder_of(processes) / "seen"
    watched = start(processes, SLEEP, "watched")
    watcher = start(processes, [sys.executable, "-c", WATCHER, str(watched), str(ready), str(seen)], "watcher")
    eventually_sync(ready.exists)
    before_s = time.monotonic()
    at_s = processes.kill("watcher", "watched")
    assert before_s <= at_s <= time.monotonic()
    assert not is_alive(watched)
    assert not is_alive(watcher)
    assert not seen.exists()


def test_stop_resumes_a_suspended_server(processes: ServerProcesses) -> None:
    pid = start(processes, SLEEP)
    processes.signal("one", signal.SIGSTOP)
    eventually_sync(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    assert processes.stop("one") == -signal.SIGTERM


def test_stop_kills_a_server_that_ignores_sigterm(processes: ServerProcesses) -> None:
    start(processes, STUBBORN)
    eventually_sync(lambda: "ready" in (folder_of(processes) / "log").read_text())
    assert processes.stop("one", grace_s=0.2) == -signal.SIGKILL


def test_sigterm_ends_a_server_although_the_guardian_ignores_it(processes: ServerProcesses) -> None:
    pid = start(processes, SLEEP)
    os.kill(pid, signal.SIGTERM)
    eventually_sync(lambda: processes.find_exit_code("one") == -signal.SIGTERM)


def test_close_ends_everything_and_removes_the_temporary_folder(processes: ServerProcesses) -> None:
    folder = folder_of(processes)
    pids = [start(processes, SLEEP, "one"), start(processes, STUBBORN, "two")]
    (folder / "deep" / "er").mkdir(parents=True)
    processes.signal("one", signal.SIGSTOP)
    processes.close()
    processes.close()
    assert not any(is_alive(pid) for pid in pids)
    assert not is_alive(processes._guardian.pid)
    assert not folder.exists()


def test_missing_command_is_an_error_without_side_effects(processes: ServerProcesses) -> None:
    with pytest.raises(EmbeddedServerError, match=r"cannot start the server: FileNotFoundError: .*/no/such/program"):
        start(processes, ["/no/such/program"])
    assert start(processes, SLEEP) > 0


def test_closed_processes_refuse_requests(processes: ServerProcesses) -> None:
    start(processes, SLEEP)
    processes.close()
    with pytest.raises(EmbeddedServerError, match="stopped for good"):
        processes.find_exit_code("one")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_guardian_ignores_signals(processes: ServerProcesses, number: signal.Signals) -> None:
    pid = start(processes, SLEEP)
    os.kill(processes._guardian.pid, number)
    assert processes.find_exit_code("one") is None
    assert is_alive(pid)


def test_servers_are_in_a_session_of_their_own(processes: ServerProcesses) -> None:
    pid = start(processes, SLEEP)
    assert os.getsid(pid) == processes._guardian.pid != os.getsid(0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent has died")
def test_servers_exit_with_a_killed_guardian(processes: ServerProcesses) -> None:
    pid = start(processes, SLEEP)
    folder = folder_of(processes)
    os.kill(processes._guardian.pid, signal.SIGKILL)
    eventually_sync(lambda: not is_alive(pid))
    with pytest.raises(EmbeddedServerError, match="guardian of the embedded servers is gone"):
        processes.find_exit_code("one")
    (folder / "log").unlink()
    folder.rmdir()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_servers_and_folder_are_removed_when_a_signal_ends_the_parent(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", A_PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        told = json.loads(parent.stdout.readline())
        os.killpg(parent.pid, number)
        parent.wait(patience())
    eventually_sync(lambda: not is_alive(told["pid"]))
    eventually_sync(lambda: not is_alive(told["guardian"]))
    assert not Path(told["folder"]).exists()


def test_servers_exit_with_their_parent() -> None:
    done = subprocess.run([sys.executable, "-c", A_PARENT], input=b"", capture_output=True, check=True)
    told = json.loads(done.stdout)
    eventually_sync(lambda: not is_alive(told["guardian"]))
    assert not is_alive(told["pid"])
    assert not Path(told["folder"]).exists()


def test_servers_exit_with_their_parent_despite_a_surviving_fork() -> None:
    forking = A_PARENT.replace("sys.stdin.read()", "import os, time\nif os.fork() == 0: time.sleep(600)")
    forking = forking.replace("print(json", "import os\nprint(json").replace(
        '"pid": pid', '"group": os.getpgrp(), "pid": pid'
    )
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", forking], stdout=subprocess.PIPE, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        told = json.loads(parent.stdout.readline())
        try:
            eventually_sync(lambda: not is_alive(told["pid"]))
            eventually_sync(lambda: not Path(told["folder"]).exists())
            assert parent.wait(patience()) == 0
        finally:
            os.killpg(told["group"], signal.SIGKILL)
