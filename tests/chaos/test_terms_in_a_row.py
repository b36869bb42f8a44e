"""A node that loses its term and wins the next one at once: no state of the old term affects the new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import pytest
from support.lm_node import LocalNode, a_local_node
from support.scripted_broker import ScriptedBroker
from support.stores import StoreWorld
from support.waiting import eventually, patience

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BundleName, NamespaceName, TopicName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.errors import NotLeaderError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Delete, MetadataStore

NAMESPACE = NamespaceName.of("tenant", "ns")
TOPIC = TopicName.parse("persistent://tenant/ns/t")
SETTINGS = {"loadBalancerSheddingEnabled": False, "namespaceBundleUnloadingTimeoutMs": 360_000}


@dataclass(slots=True)
class Alone:
    """One node that leads, one broker that owns one bundle, and a witness."""

    local: LocalNode
    broker: ScriptedBroker
    witness: MetadataStore

    async def lose_leadership(self) -> None:
        """Delete the leader's znode: the node steps down and is elected again."""
        epoch = self.local.node.mirror.epoch
        await self.witness.commit([Delete(paths.LEADER)])
        await eventually(lambda: self.local.node.leading.is_set() and self.local.node.mirror.epoch == epoch + 1)


@pytest.fixture
async def alone(world: StoreWorld) -> AsyncIterator[Alone]:
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(a_local_node(await world.connect(), SETTINGS))
        broker = ScriptedBroker(store=await world.connect())
        await stack.enter_async_context(broker)
        await broker.register()
        await eventually(lambda: local.node.leading.is_set() and local.node.mirror.brokers)
        await local.node.bundles.create_namespace(NAMESPACE, NamespaceBundles(equal_boundaries(4)))
        await local.node.lookups.lookup(TOPIC)
        yield Alone(local, broker, await world.connect())
        broker.may_obey.set()


async def test_next_term_assigns(alone: Alone) -> None:
    for number in range(3):
        await alone.lose_leadership()
        await alone.local.node.lookups.lookup(TopicName.parse(f"persistent://tenant/ns/{number}"))
    assert alone.local.node.election.terms_won == 4


async def test_next_term_finishes_a_release_of_the_last_one(alone: Alone) -> None:
    alone.broker.may_obey.clear()
    node = alone.local.node
    entry, index = node.mirror.bundle_of_topic(TOPIC)
    name = BundleName.parse(entry.state.bundle_name(index))
    unloading = asyncio.create_task(node.bundles.unload(name, None, OwnershipReason.ADMIN_UNLOAD))
    await eventually(lambda: alone.broker.unloads)
    await alone.lose_leadership()
    with pytest.raises(NotLeaderError):
        await unloading
    await eventually(lambda: len(alone.broker.unloads) == 2)
    first, second = alone.broker.unloads
    assert (second.epoch, second.version) == (first.epoch + 1, first.version)
    alone.broker.may_obey.set()
    await eventually(lambda: state_of(alone) is OwnershipState.FREE)


async def test_waiting_lookup_fails_or_is_answered_when_the_term_ends(alone: Alone) -> None:
    node = alone.local.node
    lookups = [
        asyncio.create_task(node.lookups.lookup(TopicName.parse(f"persistent://tenant/ns/a{n}"))) for n in range(20)
    ]
    await alone.lose_leadership()
    outcomes = await asyncio.wait_for(asyncio.gather(*lookups, return_exceptions=True), patience())
    assert [o for o in outcomes if isinstance(o, BaseException) and not isinstance(o, NotLeaderError)] == []


async def test_http_lookups_never_fail_while_terms_change(alone: Alone) -> None:
    statuses: list[int] = []

    async def ask(http: aiohttp.ClientSession) -> None:
        number = 0
        while True:
            number += 1
            url = f"{alone.local.url}/lookup/v2/topic/persistent/tenant/ns/{number % 50}"
            async with http.get(url) as answer:
                statuses.append(answer.status)

    async with aiohttp.ClientSession() as http:
        asking = asyncio.create_task(ask(http))
        try:
            for _ in range(5):
                await alone.lose_leadership()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    assert statuses
    assert set(statuses) == {200}


def state_of(alone: Alone) -> OwnershipState:
    entry, index = alone.local.node.mirror.bundle_of_topic(TOPIC)
    return entry.state.ownerships[index].state
