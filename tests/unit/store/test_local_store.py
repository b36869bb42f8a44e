from __future__ import annotations

import asyncio

import pytest

from loadmanager.errors import StoreUnavailableError, TransactionFailedError
from loadmanager.store.local_store import LocalStore
from loadmanager.store.metadata_store import Check, Create, Delete, Put, SessionState, Znode
from loadmanager.util import clock


@pytest.fixture
async def store() -> LocalStore:
    store = LocalStore([Znode("/a", b"0", 7, 0, 0, 0)])
    await store.start()
    return store


async def test_transaction_is_committed_as_a_whole_or_not_at_all(store: LocalStore) -> None:
    assert await store.commit([Check("/a", 7), Put("/a", b"1", 7), Create("/a/b", b"")]) == [7, 8, 0]
    with pytest.raises(TransactionFailedError, match="/a"):
        await store.commit([Delete("/a/b"), Put("/a", b"2", 7)])
    with pytest.raises(TransactionFailedError, match="/a"):
        await store.commit([Delete("/a")])
    assert await store.children_many(["/", "/a"]) == [["a"], ["b"]]
    assert [znode and znode.data for znode in await store.get_many(["/a", "/c"])] == [b"1", None]


async def test_paths_are_created_with_their_parents(store: LocalStore) -> None:
    await store.ensure_path("/a/b/c")
    await store.sync()
    assert await store.children("/a/b") == ["c"]


async def test_watch_reports_arming_and_each_change_below(store: LocalStore) -> None:
    seen: list[str] = []
    unsubscribe = store.watch("/a", seen.append)
    await store.commit([Create("/a/b", b"")])
    await asyncio.sleep(0)
    unsubscribe()
    await store.commit([Delete("/a/b")])
    await asyncio.sleep(0)
    assert seen == ["/a", "/a/b"]


async def test_closed_store_refuses_requests(store: LocalStore) -> None:
    states: list[SessionState] = []
    store.on_session(states.append)
    assert store.lease_valid_until_s > clock.now_s()
    with pytest.raises(StoreUnavailableError, match="not the current one"):
        await store.commit([Put("/a", b"")], session_id=2)
    await store.close()
    await store.close()
    await asyncio.sleep(0)
    assert states == [SessionState.LOST]
    assert store.lease_valid_until_s == 0
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.get("/a")
