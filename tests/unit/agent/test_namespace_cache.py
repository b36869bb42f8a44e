from __future__ import annotations

from typing import cast

import pytest
from support.clock import ManualClock

from loadmanager.agent.grants import Claim, Grants
from loadmanager.agent.node_queries import LoadManagerNodes, NamespaceCache
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, BundleName, NamespaceName, TopicName
from loadmanager.core.domain.ownership import OwnershipState, Registration
from loadmanager.net.http_client import PeerUnavailableError

NAME = NamespaceName.of("t", "ns")
TOPIC = "persistent://t/ns/a"
ONE = NamespaceBundles(equal_boundaries(1))
FOUR = NamespaceBundles(equal_boundaries(4))


class Nodes:
    """Nodes that know of one namespace, or do not answer."""

    def __init__(self) -> None:
        self.bundles: NamespaceBundles | None = FOUR
        self.is_available = False
        self.answer = True
        self.asked: list[NamespaceName] = []

    async def find_namespace(self, namespace: NamespaceName) -> tuple[NamespaceBundles, bool] | None:
        self.asked.append(namespace)
        if not self.answer:
            raise PeerUnavailableError("nobody answers")
        return None if self.bundles is None else (self.bundles, self.is_available)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def cache(nodes: Nodes, clock: ManualClock) -> NamespaceCache:
    return NamespaceCache(cast("LoadManagerNodes", nodes), Grants(BrokerId("b1:8080")), clock)


async def test_boundaries_are_read_once_a_minute(cache: NamespaceCache, nodes: Nodes, clock: ManualClock) -> None:
    for pause_s, asked in [(0.0, 1), (59.9, 1), (0.1, 2)]:
        clock.advance(pause_s)
        await cache.refresh([TOPIC])
        assert nodes.asked == [NAME] * asked


async def test_namespace_availability_is_that_of_the_last_answer(
    cache: NamespaceCache, nodes: Nodes, clock: ManualClock
) -> None:
    for is_available in (False, True, False, True):
        nodes.is_available = is_available
        clock.advance(60.0)
        await cache.refresh([TOPIC])
        assert cache.available == ["t/ns"] * is_available
    cache.take(NAME, ONE)
    nodes.answer = False
    await cache.refresh([TOPIC])
    assert cache.available == ["t/ns"], "the leader told of other boundaries, and nobody of anything else"


async def test_namespace_taken_from_the_leader_is_asked_for(cache: NamespaceCache, nodes: Nodes) -> None:
    nodes.is_available = True
    cache.take(NAME, FOUR)
    assert cache.available == []
    await cache.refresh([TOPIC])
    assert cache.available == ["t/ns"]


async def test_changed_boundaries_are_reread(cache: NamespaceCache, nodes: Nodes, clock: ManualClock) -> None:
    await cache.refresh([TOPIC])
    nodes.asked.clear()
    cache.take(NAME, ONE)
    cache.take(NAME, FOUR)
    clock.advance(4.9)
    await cache.refresh([TOPIC])
    assert nodes.asked == []
    clock.advance(0.1)
    await cache.refresh([TOPIC])
    assert nodes.asked == [NAME]


async def test_unknown_bundle_makes_boundaries_outdated(cache: NamespaceCache, nodes: Nodes) -> None:
    await cache.refresh([TOPIC])
    nodes.asked.clear()
    cache.note(BundleName(NAME, FOUR.range_at(2)))
    await cache.refresh([TOPIC])
    assert nodes.asked == []
    cache.note(BundleName(NAME, ONE.range_at(0)))
    await cache.refresh([TOPIC])
    await cache.refresh([TOPIC])
    assert nodes.asked == [NAME]


async def test_boundaries_from_the_leader_are_not_outdated(cache: NamespaceCache, nodes: Nodes) -> None:
    await cache.refresh([TOPIC])
    nodes.asked.clear()
    cache.note(BundleName(NAME, ONE.range_at(0)))
    cache.take(NAME, ONE)
    await cache.refresh([TOPIC])
    assert nodes.asked == []


async def test_boundaries_of_namespaces_without_topics_are_forgotten(cache: NamespaceCache, nodes: Nodes) -> None:
    cache.take(NAME, FOUR)
    await cache.refresh([])
    assert await cache.find_bundles(NAME) == FOUR
    assert nodes.asked == [NAME]


async def test_unknown_namespace_has_no_boundaries(cache: NamespaceCache, nodes: Nodes) -> None:
    cache.take(NAME, FOUR)
    assert cache.find_bundle(TOPIC) == BundleName(NAME, FOUR.range_at(FOUR.index_of_topic(TOPIC)))
    cache.note(BundleName(NAME, ONE.range_at(0)))
    nodes.bundles = None
    await cache.refresh([TOPIC])
    assert await cache.find_bundles(NAME) is None
    assert cache.find_bundle(TOPIC) is None


async def test_topic_without_boundaries_belongs_to_the_bundle_of_its_grant(clock: ManualClock) -> None:
    grants = Grants(BrokerId("b1:8080"))
    grants.register(7)
    question = grants.ask(TopicName.parse(TOPIC))
    assert question is not None
    bundle = BundleName(NAME, ONE.range_at(0))
    grants.answer(question, Claim(bundle, OwnershipState.OWNED, Registration(BrokerId("b1:8080"), 7), 1))
    nodes = Nodes()
    cache = NamespaceCache(cast("LoadManagerNodes", nodes), grants, clock)
    assert cache.find_bundle(TOPIC) == bundle
    await cache.refresh([])
    assert nodes.asked == [NAME], "of a granted topic it is asked before any statistics tell of it"


async def test_known_boundaries_are_kept_while_no_node_answers(cache: NamespaceCache, nodes: Nodes) -> None:
    cache.take(NAME, FOUR)
    cache.note(BundleName(NAME, ONE.range_at(0)))
    nodes.answer = False
    await cache.refresh([TOPIC])
    assert await cache.find_bundles(NAME) == FOUR
