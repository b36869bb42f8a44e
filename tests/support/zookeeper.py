"""Real ZooKeepers for tests: one for each test process, and more for tests that break theirs."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient
from support.waiting import patience
from support.zookeeper_ensemble import EmbeddedEnsemble

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.dev.embedded.server_files import DATA_FOLDER

ZooKeeperFactory = Callable[..., EmbeddedZooKeeper]
"""Takes what `EmbeddedZooKeeper` takes, and starts it."""
EnsembleFactory = Callable[..., EmbeddedEnsemble]
"""Takes what `EmbeddedEnsemble` takes, and starts it."""


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[EmbeddedZooKeeper]:
    """The server all tests of this process share: never stop it, and keep below your own `chroot`."""
    with EmbeddedZooKeeper() as server:
        yield server


@pytest.fixture
def chroot() -> str:
    """A path no other test uses; nothing is there yet."""
    return f"/t-{uuid.uuid4().hex}"


@pytest.fixture
def start_zookeeper() -> Iterator[ZooKeeperFactory]:
    """Starts servers of the test's own, to be stopped, killed or paused; they end with the test."""
    with contextlib.ExitStack() as servers:
        yield lambda **options: servers.enter_context(EmbeddedZooKeeper(**options))


@pytest.fixture
def start_ensemble() -> Iterator[EnsembleFactory]:
    """Starts ensembles of the test's own; they end with the test."""
    with contextlib.ExitStack() as ensembles:
        yield lambda members=3, **options: ensembles.enter_context(EmbeddedEnsemble(members, **options))


@contextlib.contextmanager
def a_session(connect_string: str, timeout_s: float = 10.0) -> Iterator[Any]:
    """A bare kazoo client, for looking at a server from outside of what is tested (kazoo has no types)."""
    client = KazooClient(connect_string, timeout=timeout_s)
    client.start(timeout=patience())
    try:
        yield client
    finally:
        client.stop()
        client.close()


def is_alive(pid: int) -> bool:
    """Return true if the process runs or may run again; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wipe(server: EmbeddedZooKeeper) -> None:
    """Kill the server and start it again without any of its data."""
    server.kill()
    shutil.rmtree(_data_of(server))
    server.start()


def save(server: EmbeddedZooKeeper, where: Path) -> None:
    """Keep a copy of the server's data as they are now; it is restarted for that."""
    server.kill()
    shutil.copytree(_data_of(server), where)
    server.start()


def set_back(server: EmbeddedZooKeeper, saved: Path) -> None:
    """Kill the server and start it again with the data that were saved."""
    server.kill()
    shutil.rmtree(_data_of(server))
    shutil.copytree(saved, _data_of(server))
    server.start()


def _data_of(server: EmbeddedZooKeeper) -> Path:
    return server.data_dir / DATA_FOLDER
