"""Two nodes that both believe they lead: only one can write; the other steps down at its first write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from support.lm_node import LocalNode, a_local_node
from support.stores import StoreWorld
from support.waiting import eventually

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, BundleRange, NamespaceName, TopicName
from loadmanager.core.domain.ownership import Ownership, Registration, Stamp, assign, release
from loadmanager.errors import NotLeaderError, StaleEpochError, TransactionFailedError
from loadmanager.leader.node import Node
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Delete, MetadataStore, Unsubscribe
from loadmanager.wire.broker_data import LocalBrokerData, encode_local_broker_data

NAMESPACE = NamespaceName.of("tenant", "ns")
BROKERS = ("127.0.0.1:1", "127.0.0.1:2")
SETTINGS = {"loadBalancerSheddingEnabled": False}


class DeafStore:
    """A session whose watch events can be suppressed; everything else works."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.is_deaf = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        return self._store.watch(path, lambda changed: None if self.is_deaf else on_change(changed))


@dataclass(slots=True)
class Pair:
    """`old` was elected, gets no events and believes that it still leads; `new` leads."""

    old: Node
    new: Node
    witness: MetadataStore

    @property
    def ranges(self) -> list[BundleRange]:
        return list(self.new.mirror.get_namespace(str(NAMESPACE)).state.bundles.ranges())

    def ownership(self, node: Node, index: int = 0) -> Ownership:
        return node.mirror.get_namespace(str(NAMESPACE)).state.ownerships[index]

    def broker(self, index: int = 0) -> Registration:
        return self.new.mirror.registrations[BrokerId(BROKERS[index])]


@pytest.fixture
async def pair(world: StoreWorld) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        witness, deaf = await world.connect(), DeafStore(await world.connect())
        old = await stack.enter_async_context(a_local_node(deaf, SETTINGS))  # type: ignore[arg-type]  # it delegates
        await eventually(old.node.leading.is_set)
        await register_brokers(witness)
        await old.node.bundles.create_namespace(NAMESPACE, NamespaceBundles(equal_boundaries(4)))
        await eventually(lambda: len(old.node.mirror.brokers) == len(BROKERS))
        deaf.is_deaf = True
        await depose(witness)
        new = await stack.enter_async_context(a_local_node(await world.connect(), SETTINGS))
        await eventually(new.node.leading.is_set)
        assert both_believe(old, new)
        yield Pair(old.node, new.node, witness)


async def register_brokers(witness: MetadataStore) -> None:
    for broker_id in BROKERS:
        record = LocalBrokerData(webServiceUrl=f"http://{broker_id}", pulsarServiceUrl=f"pulsar://{broker_id}")
        await witness.commit([Create(paths.broker(broker_id), encode_local_broker_data(record), ephemeral=True)])


async def depose(witness: MetadataStore) -> None:
    """Remove the leader's znode behind its back, so that the next node is elected at once."""
    await witness.commit([Delete(paths.LEADER)])


def both_believe(old: LocalNode, new: LocalNode) -> bool:
    return old.node.election.term is not None and new.node.election.term is not None


def give(owner: Registration) -> Callable[[Ownership, Stamp], Ownership]:
    return lambda current, stamp: assign(current, owner, stamp)


async def test_first_write_of_a_deposed_leader_is_refused_and_ends_its_term(pair: Pair) -> None:
    with pytest.raises(StaleEpochError):
        await pair.old.ledger.apply(str(NAMESPACE), pair.ranges[0], give(pair.broker()), "test")
    assert pair.old.ledger.writes_fenced == 1
    assert pair.old.election.term is None
    assert pair.new.election.term is not None
    assert pair.ownership(pair.new).version == 0


async def test_lookup_at_a_deposed_leader_assigns_nothing(pair: Pair) -> None:
    with pytest.raises(NotLeaderError):
        await pair.old.lookups.lookup(TopicName.parse("persistent://tenant/ns/t"))
    assert await versions(pair) == [0, 0, 0, 0]


async def test_deposed_leader_creates_no_namespace(pair: Pair) -> None:
    with pytest.raises(StaleEpochError):
        await pair.old.bundles.create_namespace(
            NamespaceName.of("tenant", "other"), NamespaceBundles(equal_boundaries(2))
        )
    await pair.witness.sync()
    assert await pair.witness.children("/loadbalance/namespaces/tenant") == ["ns"]


async def test_history_of_a_deposed_leader_is_refused(pair: Pair) -> None:
    with pytest.raises(TransactionFailedError) as refusal:
        await pair.old.persistence.flush()
    assert (refusal.value.index, refusal.value.path) == (0, paths.EPOCH)
    assert pair.old.election.term is None


async def test_release_by_a_deposed_leader_is_refused(pair: Pair) -> None:
    topic = TopicName.parse("persistent://tenant/ns/t")
    await pair.new.lookups.lookup(topic)
    entry, index = pair.new.mirror.bundle_of_topic(topic)

    def begin(current: Ownership, stamp: Stamp) -> Ownership:
        return release(current, None, stamp)

    # The old leader has not seen the assignment; even a transition that fits the record is refused.
    pair.old.mirror.namespaces[str(NAMESPACE)] = entry
    with pytest.raises(StaleEpochError):
        await pair.old.ledger.apply(str(NAMESPACE), pair.ranges[index], begin, "test")
    await pair.witness.sync()
    assert pair.ownership(pair.new, index).version == 1


@pytest.mark.parametrize("order", ["old first", "new first", "at once"])
async def test_only_the_new_one_of_two_leaders_can_assign(pair: Pair, order: str) -> None:
    first, second = (pair.new, pair.old) if order == "new first" else (pair.old, pair.new)
    writes = [
        node.ledger.apply(str(NAMESPACE), pair.ranges[0], give(pair.broker(number)), "test")
        for number, node in enumerate((first, second))
    ]
    if order == "at once":
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
    else:
        outcomes = [(await asyncio.gather(write, return_exceptions=True))[0] for write in writes]
    by_node = dict(zip((id(first), id(second)), outcomes, strict=True))
    assert isinstance(by_node[id(pair.old)], StaleEpochError)
    assert isinstance(by_node[id(pair.new)], Ownership)
    assert await versions(pair) == [1, 0, 0, 0]


async def test_deposed_leader_follows_once_it_gets_events_again(pair: Pair) -> None:
    with pytest.raises(StaleEpochError):
        await pair.old.ledger.apply(str(NAMESPACE), pair.ranges[0], give(pair.broker()), "test")
    assert isinstance(pair.old.store, DeafStore)
    pair.old.store.is_deaf = False
    pair.old.intake.mark_dirty(paths.ROOT)
    await eventually(lambda: pair.old.leader_url == pair.new.service_url)
    await eventually(lambda: not pair.old.leading.is_set())
    assert pair.new.election.term is not None


async def versions(pair: Pair) -> list[int]:
    """Return the stored versions of all bundles, from the new leader."""
    await pair.witness.sync()
    await pair.new.intake.settled()
    return [ownership.version for ownership in pair.new.mirror.get_namespace(str(NAMESPACE)).state.ownerships]
