"""The agent's questions and unloads, with nodes and a broker that are made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from support.clock import ManualClock

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.grants import Claim, Grants, UnloadRefusal
from loadmanager.agent.node_queries import LoadManagerNodes, NamespaceCache
from loadmanager.agent.ownership_query import OwnershipQuestions
from loadmanager.agent.unload_handler import UnloadHandler
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, BundleName, NamespaceName, TopicName
from loadmanager.core.domain.ownership import OwnershipState, Registration
from loadmanager.net.broker_client import BrokerClient

B1 = Registration(BrokerId("b1:8080"), 7)
NAME = NamespaceName.of("t", "ns")
FOUR = NamespaceBundles(equal_boundaries(4))
TOPICS = [f"persistent://t/ns/t{number}" for number in range(20)]


class Nodes:
    """Nodes that answer one after the other what they know of a bundle."""

    def __init__(self, *claims: Claim | None) -> None:
        self._claims = claims

    async def ask_ownership(self, _: TopicName, settles: Callable[[Claim | None], bool], *__: object) -> None:
        any(settles(claim) for claim in self._claims)


class ClosingBroker:
    def __init__(self) -> None:
        self.closed: list[tuple[str, list[str]]] = []

    async def unload(self, bundle: str, topics: list[str], _: BrokerId | None) -> None:
        self.closed.append((bundle, topics))


class Contradicted:
    """Told of bundles of which two things were said that cannot both be true."""

    def __init__(self) -> None:
        self.bundles: list[BundleName] = []

    async def __call__(self, bundle: BundleName) -> None:
        self.bundles.append(bundle)


async def epoch_one() -> int:
    """The epoch znode's version."""
    return 1


def a_cache(grants: Grants) -> NamespaceCache:
    return NamespaceCache(cast("LoadManagerNodes", None), grants, ManualClock())


def bundle_of(topic: str) -> BundleName:
    return BundleName(NAME, FOUR.range_at(FOUR.index_of_topic(topic)))


@pytest.fixture
def grants() -> Grants:
    grants = Grants(B1.broker)
    grants.register(B1.incarnation)
    return grants


async def test_next_node_is_asked_when_one_does_not_know_the_bundle(grants: Grants) -> None:
    topic = TopicName.parse(TOPICS[0])
    owned = Claim(bundle_of(TOPICS[0]), OwnershipState.OWNED, B1, 1)
    nodes = cast("LoadManagerNodes", Nodes(None, owned))
    contradicted = Contradicted()
    metrics = AgentMetrics(B1.broker)
    opened: list[TopicName] = []
    questions = OwnershipQuestions(grants, nodes, a_cache(grants), metrics, lambda: True, contradicted, opened.append)
    answer = await questions.ask(topic)
    assert opened == [topic]
    assert (answer.owned, answer.bundle, answer.owner) == (True, str(owned.bundle), B1.broker)
    assert contradicted.bundles == []


async def test_outdated_grant_is_reported_as_contradiction(grants: Grants) -> None:
    bundle, contradicted = bundle_of(TOPICS[0]), Contradicted()
    grants.revoke(bundle, B1, epoch=1, version=2)
    nodes = cast("LoadManagerNodes", Nodes(Claim(bundle, OwnershipState.OWNED, B1, 1)))
    metrics = AgentMetrics(B1.broker)
    opened: list[TopicName] = []
    questions = OwnershipQuestions(grants, nodes, a_cache(grants), metrics, lambda: True, contradicted, opened.append)
    assert not (await questions.ask(TopicName.parse(TOPICS[0]))).owned
    assert contradicted.bundles == [bundle]
    assert opened == []


async def test_unload_without_hash_function_closes_open_topics_of_the_bundle(grants: Grants) -> None:
    cache, broker, unloaded, contradicted = a_cache(grants), ClosingBroker(), list[None](), Contradicted()
    cache.take(NAME, FOUR)
    metrics = AgentMetrics(B1.broker)
    unloads = UnloadHandler(
        grants,
        cast("BrokerClient", broker),
        cache,
        metrics,
        epoch_one,
        lambda: TOPICS,
        lambda: unloaded.append(None),
        contradicted,
    )
    bundle = bundle_of(TOPICS[0])
    assert await unloads.unload(bundle, B1, epoch=1, version=1) is None
    assert broker.closed == [(str(bundle), sorted(topic for topic in TOPICS if bundle_of(topic) == bundle))]
    assert unloaded == [None]
    assert contradicted.bundles == []
    assert await unloads.unload(bundle, B1, epoch=0, version=2) is UnloadRefusal.STALE_EPOCH
    assert unloaded == [None]
    assert contradicted.bundles == [bundle]
    counted = {
        str(sample.labels["outcome"]): sample.value
        for sample in next(iter(metrics.unloads.collect())).samples
        if sample.name.endswith("_total")
    }
    assert counted == {"done": 1.0, UnloadRefusal.STALE_EPOCH: 1.0}
