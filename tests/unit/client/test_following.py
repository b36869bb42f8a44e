"""A client and scripted nodes, in virtual time: hours of outages in moments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from support.pushing_nodes import BROKERS, STAMP, PushingNode, ScriptedNode, assigned, unowned
from support.virtual_loop import VirtualLoop

from loadmanager.client import LookupClient
from loadmanager.core.domain.ownership import NamespaceState, complete, release
from loadmanager.errors import (
    ForbiddenError,
    LoadManagerError,
    NamespaceNotFoundError,
    NodesUnavailableError,
    NoOwnerYetError,
    UnauthenticatedError,
)

NAMESPACE = "t/ns"
TOPIC = "persistent://t/ns/x"
A, B = (registration.broker for registration in BROKERS[:2])
OWNED = assigned(unowned(1), 0)
MOVED = OWNED.with_ownerships({0: complete(release(OWNED.ownerships[0], BROKERS[1], STAMP), STAMP)})


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        loop = VirtualLoop()
        try:
            loop.run(test())
        finally:
            loop.end()

    run.__name__ = test.__name__
    return run


def now_s() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def nodes(*histories: list[NamespaceState], **options: Any) -> AsyncIterator[list[ScriptedNode]]:  # noqa: ANN401
    started = [
        ScriptedNode(8000 + number, PushingNode(history, len(history) - 1), **options)
        for number, history in enumerate(histories)
    ]
    for node in started:
        await node.start()
    yield started
    for node in started:
        await node.stop()


def a_client(*nodes: ScriptedNode, **options: Any) -> LookupClient:  # noqa: ANN401
    return LookupClient([node.url for node in nodes], chance=random.Random(7), **options)


def broker_of(client: LookupClient, topic: str = TOPIC) -> str | None:
    owner = client.resolve(topic)
    return None if owner is None else owner.broker_id


@in_virtual_time
async def test_pushed_owner_needs_no_lookup() -> None:
    history = [OWNED]
    async with nodes(history) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        assert (await client.lookup(TOPIC)).broker_id == A
        history.append(MOVED)
        node.look()
        await asyncio.sleep(1)
        assert broker_of(client) == B
        assert node.asked == []


@in_virtual_time
async def test_unowned_bundle_is_looked_up_for_one_topic_only() -> None:
    async with nodes([unowned(1)]) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        owners = await asyncio.gather(*(client.lookup(f"{TOPIC}-{number}") for number in range(100)))
        assert {owner.broker_id for owner in owners} == {A}
        assert len(node.asked) == 1


@in_virtual_time
async def test_first_topic_of_a_namespace_is_looked_up_and_others_wait_for_the_watch() -> None:
    async with nodes([OWNED]) as (node,), a_client(node) as client:
        await asyncio.gather(*(client.lookup(f"{TOPIC}-{number}") for number in range(100)))
        assert len(node.asked) == 1
        assert node.streams == 1


@in_virtual_time
async def test_unplaceable_topic_does_not_delay_others_of_a_new_namespace() -> None:
    half = assigned(unowned(2), 1)
    free, owned = (topic_in(half, index) for index in (0, 1))
    async with nodes([half], owner=None) as (node,), a_client(node) as client:
        held = asyncio.create_task(client.lookup(free, 10.0))
        await asyncio.sleep(0)
        assert (await client.lookup(owned, 5.0)).broker_id == A
        with pytest.raises(NoOwnerYetError, match="because"):
            await held


def topic_in(state: NamespaceState, index: int) -> str:
    topics = (f"{TOPIC}-{number}" for number in count())
    return next(topic for topic in topics if state.bundles.index_of_topic(topic) == index)


@in_virtual_time
async def test_pending_lookup_fails_when_the_client_is_closed() -> None:
    async with nodes([unowned(1)], owner=None) as (node,):
        async with a_client(node, namespaces=[NAMESPACE]) as client:
            looking = asyncio.create_task(client.lookup(TOPIC))
            await asyncio.sleep(1)
        with pytest.raises(NodesUnavailableError, match="closed"):
            await looking


@in_virtual_time
async def test_moving_bundle_whose_destination_refuses_is_waited_for() -> None:
    moving = OWNED.with_ownerships({0: release(OWNED.ownerships[0], BROKERS[1], STAMP)})
    history = [moving]
    async with nodes(history) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        assert (await client.lookup(TOPIC)).broker_id == B
        client.refused(TOPIC, B)
        looking = asyncio.create_task(client.lookup(TOPIC))
        await asyncio.sleep(0.5)
        history.append(MOVED)
        node.look()
        assert (await looking).broker_id == B
        assert node.asked == []
        node.owner = None


@in_virtual_time
async def test_slow_move_is_looked_up() -> None:
    moving = OWNED.with_ownerships({0: release(OWNED.ownerships[0], BROKERS[1], STAMP)})
    async with nodes([moving]) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        node.owner = B
        client.refused(TOPIC, B)
        assert (await client.lookup(TOPIC)).broker_id == B
        assert len(node.asked) == 1


@in_virtual_time
async def test_owners_are_kept_for_an_hour_without_any_node() -> None:
    async with nodes([OWNED], [OWNED]) as started, a_client(*started, namespaces=[NAMESPACE]) as client:
        for node in started:
            await node.stop()
        await asyncio.sleep(3_500)
        assert (await client.lookup(TOPIC)).broker_id == A
        client.refused(TOPIC, A)
        assert (await client.lookup(TOPIC)).broker_id == A, "who was the owner last is all there is"
        await asyncio.sleep(200)
        assert broker_of(client) is None
        with pytest.raises(NodesUnavailableError) as failed:
            await client.lookup(TOPIC)
        for node in started:
            assert node.url in str(failed.value)
            await node.start()
        await asyncio.sleep(60)
        assert broker_of(client) == A


@in_virtual_time
async def test_silent_node_is_replaced_by_another() -> None:
    async with nodes([OWNED], [MOVED]) as started, a_client(*started, namespaces=[NAMESPACE]) as client:
        followed, other = sorted(started, key=lambda node: -node.streams)
        await asyncio.sleep(300)
        assert (followed.streams, other.streams) == (1, 0)
        followed.is_silent = True
        await asyncio.sleep(45)
        assert other.streams == 1
        assert broker_of(client) is not None


@in_virtual_time
async def test_clients_of_a_dead_node_reconnect_spread_over_time() -> None:
    async with nodes([OWNED], [OWNED]) as (dies, lives):
        clients = [
            LookupClient([dies.url, lives.url], namespaces=[NAMESPACE], chance=random.Random(n)) for n in range(200)
        ]
        for client in clients:
            await client.__aenter__()
        assert 60 < dies.streams < 140
        before, at_s = len(lives.watched_at_s), now_s()
        await dies.stop()
        await asyncio.sleep(5)
        came_s = [each - at_s for each in lives.watched_at_s[before:]]
        assert lives.streams == 200
        tenths = [sum(n / 10 <= each < (n + 1) / 10 for each in came_s) for n in range(10)]
        assert max(tenths) < len(came_s) / 4
        for client in clients:
            await client.__aexit__()


@in_virtual_time
async def test_absent_nodes_are_tried_less_and_less_often() -> None:
    async with nodes([OWNED]) as (node,), a_client(node, namespaces=[NAMESPACE]):
        node.status = 500
        await node.stop()
        await node.start()
        await asyncio.sleep(3_600)
        assert 100 < len(node.watched_at_s) < 400, "every 15 s at last"


@in_virtual_time
async def test_nodes_without_a_watch_get_lookups_until_they_have_one() -> None:
    async with nodes([MOVED], is_old=True) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        for _ in range(3):
            assert (await client.lookup(TOPIC)).broker_id == A
        assert node.asked == [TOPIC] * 3
        await node.stop()
        assert (await client.lookup(TOPIC)).broker_id == A, "who was the owner last"
        node.is_old = False
        await node.start()
        await asyncio.sleep(70)
        assert broker_of(client) == B
        assert (await client.lookup(TOPIC)).broker_id == B


@in_virtual_time
async def test_node_of_a_later_protocol_gets_lookups() -> None:
    async with nodes([OWNED], protocol=2) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        assert (await client.lookup(TOPIC)).broker_id == A
        assert node.asked == [TOPIC]


@in_virtual_time
async def test_node_with_malformed_events_gets_lookups_and_is_retried() -> None:
    nonsense = b"event: snapshot\nid: x\ndata: [\n\n"
    async with nodes([MOVED], nonsense=nonsense) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        began_s = now_s()
        assert (await client.lookup(TOPIC)).broker_id == A
        assert now_s() - began_s < 0.1
        node.nonsense = b""
        await asyncio.sleep(60)
        assert broker_of(client) == B


@in_virtual_time
async def test_client_without_any_node_fails_at_start_with_the_reasons() -> None:
    client = LookupClient(["http://127.0.0.1:1", "http://127.0.0.1:2/"], namespaces=[NAMESPACE])
    with pytest.raises(NodesUnavailableError) as failed:
        await client.__aenter__()
    for url in ("http://127.0.0.1:1", "http://127.0.0.1:2"):
        assert f"{url}: ConnectionRefusedError" in str(failed.value)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, UnauthenticatedError), (403, ForbiddenError), (500, NodesUnavailableError)]
)
def test_unauthorized_client_fails_at_start(status: int, kind: type[LoadManagerError]) -> None:
    @in_virtual_time
    async def test() -> None:
        async with nodes([OWNED], status=status, reason="not you") as (node,):
            with pytest.raises(kind, match=f"{node.url} answered {status} not you"):
                await a_client(node, namespaces=[NAMESPACE]).__aenter__()

    test()


@in_virtual_time
async def test_nodes_at_their_watcher_limit_get_lookups_and_owners_are_kept() -> None:
    async with nodes([OWNED]) as (node,):
        node.status = 503
        async with a_client(node, namespaces=[NAMESPACE]) as client:
            with pytest.raises(NoOwnerYetError, match="because"):
                await client.lookup(TOPIC, 1.0)
            node.status = 0
            await asyncio.sleep(5)
            assert broker_of(client) == A
            await node.stop()
            node.status = 503
            await node.start()
            await asyncio.sleep(100)
            assert broker_of(client) == A


@in_virtual_time
async def test_followed_namespaces_are_split_over_streams_by_request_size() -> None:
    names = [f"tenant/{'n' * 100}-{number:03d}" for number in range(100)]
    async with nodes([OWNED]) as (node,), a_client(node) as client:
        for name in names:
            await client.lookup(f"persistent://{name}/x", 1.0)
        await asyncio.sleep(60)  # streams that were left are noticed when nothing can be written
        assert node.streams == 4
        assert max(node.heads) < 8_000


@in_virtual_time
async def test_missing_namespace_is_an_error_and_not_followed() -> None:
    async with nodes([OWNED], status=404, reason="namespace t/no not found") as (node,), a_client(node) as client:
        with pytest.raises(NamespaceNotFoundError, match="t/no not found"):
            await client.lookup("persistent://t/no/x")
        assert node.watched_at_s == []


@in_virtual_time
async def test_deleted_namespace_is_not_followed_again_after_a_reconnection() -> None:
    async with (
        nodes([unowned(1)], owner=None, reason="no broker") as (node,),
        a_client(node, namespaces=[NAMESPACE]) as client,
    ):
        assert node.streams == 1
        node.status, node.reason = 404, f"namespace {NAMESPACE} not found"
        with pytest.raises(NamespaceNotFoundError, match="not found"):
            await client.lookup(TOPIC)
        followed = len(node.watched_at_s)
        await node.stop()
        await node.start()
        await asyncio.sleep(60)
        assert len(node.watched_at_s) == followed


@in_virtual_time
async def test_unplaceable_bundle_is_retried_and_the_last_reason_reported() -> None:
    async with (
        nodes([unowned(1)], owner=None, reason="no broker") as (node,),
        a_client(node, namespaces=[NAMESPACE]) as client,
    ):
        with pytest.raises(NoOwnerYetError, match="no broker"):
            await client.lookup(TOPIC, 10.0)
        assert 8 < len(node.asked) < 25
        looking = asyncio.create_task(client.lookup(TOPIC))
        await asyncio.sleep(2)
        node.owner = B
        assert (await looking).broker_id == B


@in_virtual_time
async def test_repeatedly_refusing_broker_is_looked_up_less_and_less_often() -> None:
    async with nodes([OWNED]) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        at_s = now_s()
        while now_s() < at_s + 60:
            client.refused(TOPIC, (await client.lookup(TOPIC)).broker_id)
        assert 50 < len(node.asked) < 150


@in_virtual_time
async def test_bundle_refused_for_many_topics_is_looked_up_once() -> None:
    async with nodes([OWNED]) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        for number in range(100):
            client.refused(f"{TOPIC}-{number}", A)
        began_s = now_s()
        await asyncio.gather(*(client.lookup(f"{TOPIC}-{number}") for number in range(100)))
        assert now_s() - began_s < 0.05
        assert len(node.asked) == 1


@in_virtual_time
async def test_refusing_broker_is_retried_less_often_while_no_node_answers() -> None:
    async with nodes([OWNED]) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        await node.stop()
        at_s, tries = now_s(), 0
        while now_s() < at_s + 60:
            client.refused(TOPIC, (await client.lookup(TOPIC)).broker_id)
            tries += 1
        assert 50 < tries < 150
        await node.start()


@in_virtual_time
async def test_cancelled_lookup_sends_no_more_requests() -> None:
    async with nodes([unowned(1)], owner=None) as (node,), a_client(node, namespaces=[NAMESPACE]) as client:
        looking = asyncio.create_task(client.lookup(TOPIC))
        await asyncio.sleep(2)
        looking.cancel()
        await asyncio.sleep(1)
        asked = len(node.asked)
        await asyncio.sleep(100)
        assert len(node.asked) == asked


async def test_client_that_was_not_entered_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await LookupClient(["http://127.0.0.1:1"]).lookup(TOPIC)
