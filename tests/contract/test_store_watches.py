from __future__ import annotations

import asyncio

from support.stores import StoreWorld
from support.waiting import eventually

from loadmanager.store.metadata_store import Create, Delete, MetadataStore, Put, SessionState


async def a_watch(store: MetadataStore, path: str) -> list[str]:
    """Reports of the watch of `path`, after the one that says it is armed."""
    seen: list[str] = []
    store.watch(path, seen.append)
    await eventually(lambda: seen == [path])
    seen.clear()
    return seen


async def test_a_watch_says_so_once_it_is_armed_even_where_nothing_is(store: MetadataStore) -> None:
    seen: list[str] = []
    store.watch("/nothing/here", seen.append)
    await eventually(lambda: seen == ["/nothing/here"])


async def test_creation_change_and_deletion_of_the_watched_znode_are_reported(store: MetadataStore) -> None:
    seen = await a_watch(store, "/a")
    for op in (Create("/a", b""), Put("/a", b"x"), Delete("/a")):
        seen.clear()
        await store.commit([op])
        await eventually(lambda: seen == ["/a"])


async def test_changes_anywhere_below_are_reported_with_their_own_path(world: StoreWorld) -> None:
    store, other = await world.connect(), await world.connect()
    seen = await a_watch(store, "/a")
    await other.commit([Create("/a", b""), Create("/a/b", b""), Create("/a/b/c", b"")])
    await eventually(lambda: {"/a", "/a/b", "/a/b/c"} == set(seen))
    seen.clear()
    await other.commit([Put("/a/b/c", b"x")])
    await eventually(lambda: seen == ["/a/b/c"])


async def test_neighbours_and_parents_are_not_reported(store: MetadataStore) -> None:
    await store.commit([Create("/p", b"")])
    seen = await a_watch(store, "/p/a")
    await store.commit([Create("/p/ab", b""), Put("/p", b""), Create("/q", b""), Create("/p/a", b"")])
    await eventually(lambda: seen == ["/p/a"])


async def test_the_root_can_be_watched(store: MetadataStore) -> None:
    seen = await a_watch(store, "/")
    await store.commit([Create("/a", b""), Create("/a/b", b"")])
    await eventually(lambda: {"/a", "/a/b"} <= set(seen))


async def test_a_watch_keeps_reporting(store: MetadataStore) -> None:
    await store.commit([Create("/a", b"")])
    seen = await a_watch(store, "/a")
    for _ in range(5):
        seen.clear()
        await store.commit([Put("/a", b"")])
        await eventually(lambda: seen == ["/a"])


async def test_several_watches_each_hear_of_what_is_below_them(store: MetadataStore) -> None:
    above, below, again = await a_watch(store, "/a"), await a_watch(store, "/a/b"), await a_watch(store, "/a/b")
    above.clear()
    below.clear()
    await store.commit([Create("/a", b""), Create("/a/b", b"")])
    await eventually(lambda: set(above) == {"/a", "/a/b"} and below == ["/a/b"] and again == ["/a/b"])


async def test_a_callback_finds_the_change_when_it_reads(store: MetadataStore) -> None:
    """Level-triggered: the last report comes no earlier than the state that it is about."""
    await store.commit([Create("/a", b"0")])
    reports: list[str] = []
    store.watch("/a", reports.append)
    await eventually(lambda: reports)
    for number in range(1, 30):
        reports.clear()
        await store.commit([Put("/a", str(number).encode())])
        await eventually(lambda: reports)
        znode = await store.get("/a")
        assert znode is not None
        assert znode.data == str(number).encode()


async def test_a_change_is_told_before_the_answer_that_shows_it(world: StoreWorld) -> None:
    store, other = await world.connect(), await world.connect()
    await other.commit([Create("/a", b""), Create("/mine", b"")])
    told = await a_watch(store, "/a")

    async def write() -> None:
        for number in range(100):
            await other.commit([Create(f"/a/{number}", b"")])

    writing = asyncio.create_task(write())
    while len(shown := await store.children("/a")) < 100:
        await asyncio.sleep(0)
        assert {f"/a/{name}" for name in shown} <= set(told)
    await writing
    await other.commit([Create("/a/last", b"")])
    await store.sync()
    await store.commit([Put("/mine", b"")])
    await asyncio.sleep(0)
    assert "/a/last" in told


async def test_an_ephemeral_znode_that_vanishes_is_reported(world: StoreWorld) -> None:
    owner, other = await world.connect(), await world.connect()
    await owner.commit([Create("/b", b""), Create("/b/e", b"", ephemeral=True)])
    seen = await a_watch(other, "/b")
    await owner.close()
    await eventually(lambda: seen == ["/b/e"])


async def test_after_unsubscribing_nothing_is_reported_to_that_callback(store: MetadataStore) -> None:
    silent: list[str] = []
    unsubscribe = store.watch("/a", silent.append)
    seen = await a_watch(store, "/a")
    await eventually(lambda: silent)
    unsubscribe()
    unsubscribe()
    silent.clear()
    await store.commit([Create("/a", b"")])
    await eventually(lambda: seen == ["/a"])
    assert silent == []


async def test_after_a_reconnection_the_watch_says_read_again_and_goes_on(world: StoreWorld) -> None:
    store, other = await world.connect(), await world.connect()
    await other.commit([Create("/a", b"")])
    seen = await a_watch(store, "/a")
    session_id = store.session_id
    await world.reconnect(store)
    await eventually(lambda: seen == ["/a"])
    assert store.session_id == session_id
    seen.clear()
    await other.commit([Create("/a/b", b"")])
    await eventually(lambda: seen == ["/a/b"])


async def test_after_an_expired_session_the_watch_says_read_again_and_goes_on(world: StoreWorld) -> None:
    store, other = await world.connect(), await world.connect()
    await other.commit([Create("/a", b"")])
    seen = await a_watch(store, "/a")
    await world.expire(store)
    await eventually(lambda: "/a" in seen)
    seen.clear()
    await other.commit([Create("/a/b", b"")])
    await eventually(lambda: seen == ["/a/b"])


async def test_an_expired_session_is_lost_with_its_ephemerals_and_followed_by_a_new_one(world: StoreWorld) -> None:
    store, other = await world.connect(), await world.connect()
    await store.commit([Create("/e", b"", ephemeral=True)])
    states: list[SessionState] = []
    store.on_session(states.append)
    expired = store.session_id
    await world.expire(store)
    await eventually(lambda: states[-2:] == [SessionState.LOST, SessionState.CONNECTED])
    assert store.session_id not in {0, expired}
    await other.sync()
    assert await other.get("/e") is None
    await store.commit([Create("/e", b"", ephemeral=True)])
    znode = await store.get("/e")
    assert znode is not None
    assert znode.ephemeral_owner == store.session_id


async def test_a_reconnection_is_told_and_keeps_session_and_ephemerals(world: StoreWorld) -> None:
    store = await world.connect()
    await store.commit([Create("/e", b"", ephemeral=True)])
    session_id = store.session_id
    states: list[SessionState] = []
    store.on_session(states.append)
    await world.reconnect(store)
    await eventually(lambda: states == [SessionState.SUSPENDED, SessionState.CONNECTED])
    assert store.session_id == session_id
    assert await store.get("/e") is not None


async def test_closing_is_told_as_a_lost_session(world: StoreWorld) -> None:
    store = await world.connect()
    states: list[SessionState] = []
    silent: list[SessionState] = []
    store.on_session(states.append)
    store.on_session(silent.append)()
    await store.close()
    await eventually(lambda: states == [SessionState.LOST])
    assert silent == []


async def test_failing_callback_does_not_stop_others(store: MetadataStore) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def broken(_: str) -> None:
        raise LookupError("broken callback")

    store.watch("/a", broken)
    seen = await a_watch(store, "/a")
    await store.commit([Create("/a", b"")])
    await eventually(lambda: seen == ["/a"])
    assert all(isinstance(error, LookupError) for error in reported)
    assert len(reported) >= 2
