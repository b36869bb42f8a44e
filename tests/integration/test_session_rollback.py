"""The store on a ZooKeeper that lost its data, or was set back to older ones."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import structlog
from support.stores import started
from support.tcp_proxy import TcpProxy
from support.waiting import eventually
from support.zookeeper import EnsembleFactory, ZooKeeperFactory, save, set_back, wipe

from loadmanager.store.metadata_store import Create, Put, SessionState
from loadmanager.store.zookeeper_store import ZooKeeperStore

pytestmark = pytest.mark.zookeeper

SESSION_TIMEOUT_S = 2.0


def a_store(hosts: str, session_timeout_s: float = SESSION_TIMEOUT_S) -> AbstractAsyncContextManager[ZooKeeperStore]:
    return started(ZooKeeperStore(hosts, session_timeout_s=session_timeout_s, chroot="/app"))


async def write_some(store: ZooKeeperStore) -> None:
    """Have the store see far later transactions than those of a server that has just been started."""
    await store.commit([Create("/a", b"0")])
    for number in range(30):
        await store.commit([Put("/a", str(number).encode())])


async def test_session_unknown_to_a_wiped_server_is_replaced(start_zookeeper: ZooKeeperFactory) -> None:
    server = start_zookeeper()
    with structlog.testing.capture_logs() as logs:
        async with a_store(server.connect_string) as store:
            states: list[SessionState] = []
            in_the_way: dict[SessionState, str | None] = {}

            def heard(state: SessionState) -> None:
                states.append(state)
                in_the_way[state] = store.obstacle

            store.on_session(heard)
            await write_some(store)
            await asyncio.to_thread(wipe, server)
            await eventually(lambda: states[-1:] == [SessionState.CONNECTED], what="a new session begins")
            assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
            assert (in_the_way[SessionState.LOST] or "").startswith(f"{server.connect_string} hangs up")
            assert store.sessions_given_up == 1
            assert store.obstacle is None
            await store.ensure_path("/b")
            assert await store.children("/") == ["b"]
    assert len([entry for entry in logs if entry["event"] == "zookeeper_hangs_up"]) == 1
    (given_up,) = [entry for entry in logs if entry["event"] == "session_given_up"]
    assert (given_up["address"], given_up["log_level"]) == (server.connect_string, "warning")


@pytest.mark.deep
async def test_session_ahead_of_the_server_is_replaced(start_zookeeper: ZooKeeperFactory, tmp_path: Path) -> None:
    """The older data have the session too: to go on with it would be to go on with what it held."""
    server = start_zookeeper()
    async with a_store(server.connect_string, session_timeout_s=6.0) as store:
        await store.commit([Create("/held", b"", ephemeral=True)])
        await asyncio.to_thread(save, server, tmp_path / "saved")
        await eventually(lambda: store.state is SessionState.CONNECTED)
        held_by = store.session_id
        await write_some(store)
        await asyncio.to_thread(set_back, server, tmp_path / "saved")
        await eventually(lambda: store.session_id not in {0, held_by}, what="a new session begins")
        assert store.sessions_given_up == 1
        assert await store.get("/a") is None


@pytest.mark.deep
async def test_session_is_kept_while_no_server_serves(start_ensemble: EnsembleFactory) -> None:
    """A member without a quorum hangs up too, and when there is one again the sessions go on."""
    ensemble = start_ensemble()
    async with (
        TcpProxy(ensemble.members[0].port) as network,
        a_store(network.address, session_timeout_s=4.0) as store,
    ):
        session_id = store.session_id
        await store.commit([Create("/held", b"", ephemeral=True)])
        for member in ensemble.members[1:]:
            await asyncio.to_thread(member.kill)
        await eventually(lambda: store.obstacle, what="the member hangs up")
        await eventually(lambda: store._session.is_over(time.monotonic()), what="the session may be given up")
        tries = network.accepted
        await eventually(lambda: network.accepted > tries + 5, what="the member is tried again")
        for member in ensemble.members[1:]:
            await asyncio.to_thread(member.start)
        await eventually(lambda: store.state is SessionState.CONNECTED)
        assert (store.session_id, store.sessions_given_up) == (session_id, 0)
        assert await store.get("/held") is not None
