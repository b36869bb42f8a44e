from __future__ import annotations

import pytest
from support.stores import StoreWorld
from support.waiting import eventually

from loadmanager.errors import (
    AccessDeniedError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TransactionFailedError,
    ZnodeTooLargeError,
)
from loadmanager.store.metadata_store import (
    MAX_TRANSACTION_BYTES,
    MAX_ZNODE_BYTES,
    Check,
    Create,
    Delete,
    MetadataStore,
    Op,
    Put,
    SessionState,
)


async def test_nothing_is_in_the_way_of_a_new_session(store: MetadataStore) -> None:
    assert store.state is SessionState.CONNECTED
    assert (store.obstacle, store.sessions_given_up) == (None, 0)


async def test_a_created_znode_is_read_back_at_version_zero(store: MetadataStore) -> None:
    assert await store.commit([Create("/a", b"data")]) == [0]
    znode = await store.get("/a")
    assert znode is not None
    assert (znode.path, znode.data, znode.version, znode.ephemeral_owner) == ("/a", b"data", 0, 0)
    assert znode.czxid == znode.mzxid > 0


async def test_what_does_not_exist_is_none_or_empty(store: MetadataStore) -> None:
    assert await store.get("/nowhere") is None
    assert await store.get("/nowhere/below") is None
    assert await store.get_many(["/nowhere"]) == [None]
    assert await store.get_many([]) == []
    assert await store.children("/nowhere") == []
    assert await store.children_many(["/nowhere"]) == [[]]
    assert await store.children_many([]) == []


async def test_empty_data_are_read_as_empty(store: MetadataStore) -> None:
    await store.commit([Create("/empty", b"")])
    znode = await store.get("/empty")
    assert znode is not None
    assert znode.data == b""


async def test_many_are_read_in_the_order_asked_with_none_for_the_missing(store: MetadataStore) -> None:
    await store.commit([Create(f"/n{i:03}", str(i).encode()) for i in range(0, 200, 2)])
    paths = [f"/n{i:03}" for i in reversed(range(200))]
    found = await store.get_many(paths)
    assert [znode and (znode.path, znode.data) for znode in found] == [
        (f"/n{i:03}", str(i).encode()) if i % 2 == 0 else None for i in reversed(range(200))
    ]


async def test_a_path_asked_twice_is_answered_twice(store: MetadataStore) -> None:
    await store.commit([Create("/a", b"x")])
    assert await store.get_many(["/a", "/a"]) == [await store.get("/a")] * 2


async def test_children_are_names_in_order(store: MetadataStore) -> None:
    await store.commit([Create("/p", b""), Create("/p/b", b""), Create("/p/a", b""), Create("/p/a/deeper", b"")])
    assert await store.children("/p") == ["a", "b"]
    assert await store.children("/p/b") == []
    assert await store.children("/") == ["p"]


async def test_the_children_of_many_are_found_in_the_order_asked_with_none_of_the_missing(store: MetadataStore) -> None:
    await store.commit([Create(f"/n{i:03}", b"") for i in range(0, 200, 2)])
    await store.commit([Create(f"/n{i:03}/{name}", b"") for i in range(0, 200, 4) for name in ("b", "a")])
    found = await store.children_many([f"/n{i:03}" for i in reversed(range(200))])
    assert found == [["a", "b"] if i % 4 == 0 else [] for i in reversed(range(200))]


async def test_each_operation_answers_with_its_new_version(store: MetadataStore) -> None:
    await store.commit([Create("/a", b"1"), Create("/b", b"1"), Create("/c", b"1")])
    versions = await store.commit(
        [Check("/a", 0), Put("/a", b"2", 0), Put("/b", b"2"), Create("/d", b""), Delete("/c", 0), Check("/b", -1)]
    )
    assert versions == [0, 1, 1, 0, -1, -1]


async def test_an_operation_sees_what_those_before_it_in_the_transaction_did(store: MetadataStore) -> None:
    ops: list[Op] = [Create("/a", b"1"), Put("/a", b"2", 0), Check("/a", 1), Create("/a/b", b""), Delete("/a/b", 0)]
    assert await store.commit([*ops, Delete("/a", 1), Create("/a", b"again")]) == [0, 1, 1, 0, -1, -1, 0]
    znode = await store.get("/a")
    assert znode is not None
    assert (znode.data, znode.version) == (b"again", 0)


async def test_a_put_moves_version_and_mzxid_but_not_czxid(store: MetadataStore) -> None:
    await store.commit([Create("/a", b"1")])
    before = await store.get("/a")
    await store.commit([Put("/a", b"2")])
    after = await store.get("/a")
    assert before is not None
    assert after is not None
    assert (after.version, after.czxid) == (before.version + 1, before.czxid)
    assert after.mzxid > before.mzxid


async def test_a_znode_created_again_has_a_higher_czxid(store: MetadataStore) -> None:
    await store.commit([Create("/a", b"")])
    first = await store.get("/a")
    await store.commit([Delete("/a")])
    await store.commit([Create("/a", b"")])
    second = await store.get("/a")
    assert first is not None
    assert second is not None
    assert second.czxid > first.czxid


async def test_the_operations_of_a_transaction_share_one_transaction_id(store: MetadataStore) -> None:
    await store.commit([Create("/a", b""), Create("/b", b"")])
    a, b = await store.get_many(["/a", "/b"])
    assert a is not None
    assert b is not None
    assert a.czxid == b.czxid


@pytest.mark.parametrize(
    ("ops", "index", "cause"),
    [
        ([Check("/a", 1)], 0, "bad_version"),
        ([Put("/b", b"changed"), Check("/a", 7)], 1, "bad_version"),
        ([Check("/nowhere", 0)], 0, "no_node"),
        ([Check("/nowhere", -1)], 0, "no_node"),
        ([Put("/b", b"changed"), Put("/nowhere", b"")], 1, "no_node"),
        ([Put("/b", b"changed"), Put("/a", b"", 3)], 1, "bad_version"),
        ([Put("/b", b"changed"), Delete("/nowhere")], 1, "no_node"),
        ([Delete("/a", 5)], 0, "bad_version"),
        ([Put("/b", b"changed"), Check("/a", 0), Delete("/p")], 2, "not_empty"),
        ([Delete("/p", 9)], 0, "bad_version"),
        ([Put("/b", b"changed"), Create("/a", b"")], 1, "node_exists"),
        ([Create("/nowhere/below", b"")], 0, "no_node"),
        ([Create("/e", b"", ephemeral=True), Create("/e/child", b"")], 1, "other"),
        ([Create("/new", b""), Create("/new", b"")], 1, "node_exists"),
        ([Delete("/a"), Check("/a", 0), Put("/nowhere", b"")], 1, "no_node"),
    ],
)
async def test_refused_transaction_changes_nothing(store: MetadataStore, ops: list[Op], index: int, cause: str) -> None:
    await store.commit([Create("/a", b""), Create("/b", b"as it was"), Create("/p", b""), Create("/p/child", b"")])
    before = await store.get_many(["/a", "/b", "/p", "/p/child"])
    with pytest.raises(TransactionFailedError) as refusal:
        await store.commit(ops)
    assert (refusal.value.index, refusal.value.path, refusal.value.cause) == (index, ops[index].path, cause)
    assert await store.get_many(["/a", "/b", "/p", "/p/child"]) == before
    assert await store.children("/") == ["a", "b", "p"]


async def test_a_transaction_of_nothing_does_nothing(store: MetadataStore) -> None:
    assert await store.commit([]) == []


async def test_a_znode_that_is_too_large_is_refused_and_the_connection_stays(store: MetadataStore) -> None:
    session_id = store.session_id
    with pytest.raises(ZnodeTooLargeError, match="/large"):
        await store.commit([Create("/large", bytes(MAX_ZNODE_BYTES + 1))])
    assert await store.commit([Create("/large", bytes(MAX_ZNODE_BYTES))]) == [0]
    assert (store.state, store.session_id) == (SessionState.CONNECTED, session_id)


async def test_too_large_transaction_is_refused_and_the_connection_stays(store: MetadataStore) -> None:
    half = bytes(MAX_TRANSACTION_BYTES // 2)
    with pytest.raises(ZnodeTooLargeError, match="2 operations from /a on"):
        await store.commit([Create("/a", half), Create("/b", half)])
    fitting = bytes(MAX_TRANSACTION_BYTES // 2 - 200)
    assert await store.commit([Create("/a", fitting), Create("/b", fitting)]) == [0, 0]
    assert store.state is SessionState.CONNECTED


@pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a/../b", "/.", "/a\0b", "/a\ud800"])
async def test_a_malformed_path_is_refused_before_anything_is_sent(store: MetadataStore, path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        await store.get(path)
    with pytest.raises(ValueError, match="not a path"):
        await store.get_many(["/", path])
    with pytest.raises(ValueError, match="not a path"):
        await store.children(path)
    with pytest.raises(ValueError, match="not a path"):
        await store.children_many(["/", path])
    with pytest.raises(ValueError, match="not a path"):
        await store.commit([Create(path, b"")])
    with pytest.raises(ValueError, match="not a path"):
        await store.ensure_path(path)
    with pytest.raises(ValueError, match="not a path"):
        store.watch(path, lambda _: None)


async def test_names_beyond_ascii_are_kept(store: MetadataStore) -> None:
    await store.commit([Create("/größe-東京", "é".encode())])
    assert await store.children("/") == ["größe-東京"]
    assert await store.get("/größe-東京") == (await store.get_many(["/größe-東京"]))[0]


async def test_ensure_path_creates_what_is_missing_and_leaves_what_is_there(store: MetadataStore) -> None:
    await store.commit([Create("/a", b"kept")])
    await store.ensure_path("/a/b/c")
    await store.ensure_path("/a/b/c")
    a, b, c = await store.get_many(["/a", "/a/b", "/a/b/c"])
    assert a is not None
    assert b is not None
    assert c is not None
    assert (a.data, a.version, b.data, c.data) == (b"kept", 0, b"", b"")


async def test_after_a_sync_the_writes_of_others_are_seen(world: StoreWorld) -> None:
    writer, reader = await world.connect(), await world.connect()
    await writer.commit([Create("/a", b"new")])
    await reader.sync()
    znode = await reader.get("/a")
    assert znode is not None
    assert znode.data == b"new"


async def test_an_ephemeral_znode_names_its_session_and_vanishes_when_that_is_closed(world: StoreWorld) -> None:
    owner, other = await world.connect(), await world.connect()
    await owner.commit([Create("/e", b"", ephemeral=True), Create("/p", b"")])
    await other.sync()
    znode = await other.get("/e")
    assert znode is not None
    assert znode.ephemeral_owner == owner.session_id
    await owner.close()
    await other.sync()
    assert await other.get("/e") is None
    assert await other.get("/p") is not None


async def test_a_transaction_for_another_session_is_not_sent(world: StoreWorld) -> None:
    store = await world.connect()
    first = store.session_id
    assert await store.commit([Create("/a", b"")], session_id=first) == [0]
    await world.expire(store)
    with pytest.raises(StoreUnavailableError):
        await store.commit([Put("/a", b"from the past")], session_id=first)
    assert await store.commit([Put("/a", b"now")], session_id=store.session_id) == [1]


async def test_before_start_and_after_close_requests_are_refused(world: StoreWorld) -> None:
    store = await world.connect()
    await store.close()
    await store.close()
    assert (store.state, store.session_id) == (SessionState.LOST, 0)
    with pytest.raises(StoreUnavailableError):
        await store.get("/a")
    with pytest.raises(StoreUnavailableError):
        await store.get_many(["/a"])
    with pytest.raises(StoreUnavailableError):
        await store.children("/a")
    with pytest.raises(StoreUnavailableError):
        await store.commit([Create("/a", b"")])
    with pytest.raises(StoreUnavailableError):
        await store.sync()


async def test_sessions_of_several_stores_are_different(world: StoreWorld) -> None:
    stores = [await world.connect() for _ in range(3)]
    assert len({store.session_id for store in stores} - {0}) == 3


async def test_one_of_many_writers_at_one_version_wins(world: StoreWorld) -> None:
    stores = [await world.connect() for _ in range(3)]
    await stores[0].commit([Create("/a", b"")])
    refusals: list[str] = []
    for number, store in enumerate(stores):
        try:
            await store.commit([Put("/a", str(number).encode(), 0)])
        except TransactionFailedError as error:
            refusals.append(error.cause)
    assert refusals == ["bad_version", "bad_version"]


async def test_the_lease_of_a_connected_session_is_ahead_and_of_a_closed_one_behind(world: StoreWorld) -> None:
    store = await world.connect()
    first = store.lease_valid_until_s
    await eventually(lambda: store.lease_valid_until_s >= first)
    assert first > 0
    assert store.session_timeout_s > 0
    await store.close()
    assert store.lease_valid_until_s < 0


async def test_what_an_access_list_forbids_is_refused_named_and_kept(world: StoreWorld) -> None:
    store = await world.connect()
    await store.commit([Create("/open", b""), Create("/shut", b"")])
    await world.shut("/shut")
    for read in (store.get("/shut"), store.get_many(["/open", "/shut"]), store.children_many(["/open", "/shut"])):
        with pytest.raises(AccessDeniedError, match="/shut"):
            await read
    with pytest.raises(TransactionFailedError) as refused:
        await store.commit([Put("/open", b"1"), Put("/shut", b"1")])
    assert (refused.value.index, refused.value.path, refused.value.cause) == (1, "/shut", "no_access")
    assert list(store.denied) == ["/shut"]
    znode = await store.get("/open")
    assert znode is not None
    assert znode.data == b""


async def test_without_an_answer_a_read_is_unavailable_and_a_write_may_be_done(world: StoreWorld) -> None:
    store = await world.connect()
    session_id, states = store.session_id, list[SessionState]()
    store.on_session(states.append)
    reconnected = [SessionState.SUSPENDED, SessionState.CONNECTED]
    world.leave_out_answer(store)
    with pytest.raises(StoreUnavailableError):
        await store.get("/")
    await eventually(lambda: states == reconnected)
    world.leave_out_answer(store)
    with pytest.raises(OutcomeUnknownError):
        await store.commit([Create("/a", b"")])
    await eventually(lambda: states == 2 * reconnected)
    assert await store.get("/a") is not None
    assert store.session_id == session_id
