from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs
from support.delays import a_memory_cluster
from support.memory_store import MemoryCluster, MemoryStore
from support.nodes import Cluster, FakeAgent, RunningNode, a_leader, in_memory
from support.registrations import read, write
from support.waiting import eventually

from loadmanager.core.domain.bundles import BoundariesError, NamespaceBundles
from loadmanager.core.domain.names import BundleName, BundleRange, NamespaceName
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    assign,
    release,
)
from loadmanager.core.protocol import reconciler
from loadmanager.core.protocol.state_machine import OwnerChange
from loadmanager.errors import (
    BundleNotFoundError,
    InvalidRecordError,
    InvariantViolatedError,
    NamespaceExistsError,
    NotLeaderError,
    OutcomeUnknownError,
    StaleEpochError,
    StoreUnavailableError,
    TransactionFailedError,
    ZnodeTooLargeError,
)
from loadmanager.leader.election import ownership_ledger
from loadmanager.leader.election.ownership_ledger import Reshape
from loadmanager.leader.mirror import mirror_intake
from loadmanager.store import metadata_store, paths
from loadmanager.store.metadata_store import Check, Op, Put
from loadmanager.store.znode_codec import decode
from loadmanager.wire.store_records import decode_namespace, encode_namespace

NAMESPACE = paths.namespace("t/ns")


class Written:
    """All transactions of the leader's store."""

    def __init__(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.transactions: list[list[Op]] = []
        self.sessions: list[int | None] = []
        commit = store.commit

        async def note(ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
            versions = await commit(ops, session_id=session_id)
            self.transactions.append(list(ops))
            self.sessions.append(session_id)
            return versions

        monkeypatch.setattr(store, "commit", note)


@pytest.fixture
async def memory() -> MemoryCluster:
    return a_memory_cluster()


@pytest.fixture
async def cluster(memory: MemoryCluster) -> AsyncIterator[Cluster]:
    async with Cluster(in_memory(memory)) as cluster:
        await cluster.start_leader()
        await cluster.a_broker()
        yield cluster


@pytest.fixture
async def written(leader: RunningNode, monkeypatch: pytest.MonkeyPatch) -> Written:
    return Written(in_memory_store(leader), monkeypatch)


def in_memory_store(node: RunningNode) -> MemoryStore:
    assert isinstance(node.store, MemoryStore)
    return node.store


def giving(owner: Registration) -> OwnerChange:
    def give(current: Ownership, stamp: Stamp) -> Ownership:
        return assign(current, owner, stamp)

    return give


def releasing(current: Ownership, stamp: Stamp) -> Ownership:
    return release(current, None, stamp)


async def give(cluster: Cluster, bundle: str) -> Ownership:
    """Assign a bundle to b1 through the ledger alone."""
    name = BundleName.parse(bundle)
    owner = cluster.brokers["b1:8080"].registration
    return await cluster.nodes[0].node.ledger.apply(str(name.namespace), name.range, giving(owner), "test")


async def stored(cluster: Cluster, namespace: str = "t/ns") -> NamespaceState:
    path = paths.namespace(namespace)
    return decode_namespace(NamespaceName.parse(namespace), decode(await read(cluster.store, path), path), path)


async def test_concurrent_transitions_share_a_fenced_transaction(cluster: Cluster, written: Written) -> None:
    bundles = [*await cluster.a_namespace("t/ns", bundles={"numBundles": 64}), *await cluster.a_namespace("t/two")]
    written.transactions.clear()
    done = await asyncio.gather(*(give(cluster, bundle) for bundle in bundles))
    assert len(written.transactions) == 1
    check, *puts = written.transactions[0]
    assert check == Check(paths.EPOCH, 1)
    assert {op.path for op in puts} == {NAMESPACE, paths.namespace("t/two")}
    assert all((entry.state, entry.version, entry.epoch) == (OwnershipState.OWNED, 1, 1) for entry in done)
    assert (await stored(cluster)).ownerships == tuple(done[:64])


async def test_writes_use_the_session_of_the_term(cluster: Cluster, leader: RunningNode, written: Written) -> None:
    (bundle, *_) = await cluster.a_namespace()
    await give(cluster, bundle)
    of_the_term = zip(written.transactions, written.sessions, strict=True)
    sessions = [session for ops, session in of_the_term if ops[0] == Check(paths.EPOCH, 1)]
    assert sessions == [leader.store.session_id] * 2, "the namespace and the assignment"


async def test_changes_are_written_after_pending_ones_failed(cluster: Cluster, leader: RunningNode) -> None:
    (bundle, *_) = await cluster.a_namespace()
    leader.node.ledger.fail_pending(StaleEpochError("the term is over"))
    assert (await give(cluster, bundle)).state is OwnershipState.OWNED


async def test_abandoned_change_does_not_block_others(cluster: Cluster) -> None:
    given_up, *others = [asyncio.ensure_future(give(cluster, each)) for each in await cluster.a_namespace()]
    await asyncio.sleep(0)
    given_up.cancel()
    assert {each.state for each in await asyncio.gather(*others)} == {OwnershipState.OWNED}
    free, *_ = (await stored(cluster)).ownerships
    assert free.state is OwnershipState.FREE


async def test_transitions_of_one_bundle_are_serialized(cluster: Cluster, leader: RunningNode) -> None:
    (bundle, *_) = await cluster.a_namespace()
    name = BundleName.parse(bundle)
    first, second = await asyncio.gather(
        give(cluster, bundle), leader.node.ledger.apply("t/ns", name.range, releasing, "test")
    )
    assert (first.state, first.version) == (OwnershipState.OWNED, 1)
    assert (second.state, second.version) == (OwnershipState.RELEASING, 2)


async def test_stale_transition_fails_alone(cluster: Cluster) -> None:
    first, second, *_ = await cluster.a_namespace()
    outcomes = await asyncio.gather(
        give(cluster, first), give(cluster, first), give(cluster, second), return_exceptions=True
    )
    assert isinstance(outcomes[1], IllegalTransitionError)
    assert [entry.version for entry in outcomes if isinstance(entry, Ownership)] == [1, 1]


async def test_invalid_transitions_fail_alone(cluster: Cluster, leader: RunningNode, written: Written) -> None:
    first, second, *_ = [BundleName.parse(bundle).range for bundle in await cluster.a_namespace()]
    odd, owner = BundleRange(1, 2), cluster.brokers["b1:8080"].registration
    written.transactions.clear()
    done = await leader.node.ledger.apply_all(
        "t/ns", {first: giving(owner), second: releasing, odd: giving(owner)}, "test"
    )
    assert done[first] == (await stored(cluster)).ownerships[0]
    assert isinstance(done[second], IllegalTransitionError)
    assert isinstance(done[odd], BundleNotFoundError)
    assert len(written.transactions) == 1
    with pytest.raises(IllegalTransitionError):
        await leader.node.ledger.apply_all("t/ns", {first: giving(owner), second: releasing}, "test")
    assert len(written.transactions) == 1


async def test_unknown_range_or_namespace_is_refused(cluster: Cluster, leader: RunningNode) -> None:
    await cluster.a_namespace()
    odd = BundleRange(0, 5)
    with pytest.raises(BundleNotFoundError, match="0x00000000_0x00000005"):
        await leader.node.ledger.apply("t/ns", odd, releasing, "test")
    with pytest.raises(InvalidRecordError, match="t/gone is gone"):
        await leader.node.ledger.apply("t/gone", odd, releasing, "test")


async def test_unreadable_record_is_not_changed(cluster: Cluster, leader: RunningNode) -> None:
    (bundle, *_) = await cluster.a_namespace()
    await write(cluster.store, NAMESPACE, b"{garbage")
    await eventually(lambda: leader.node.mirror.faults)
    with pytest.raises(InvalidRecordError, match="Invalid JSON"):
        await give(cluster, bundle)
    assert await read(cluster.store, NAMESPACE) == b"{garbage"


async def test_write_after_a_take_over_ends_the_term(cluster: Cluster, leader: RunningNode) -> None:
    (bundle, *_) = await cluster.a_namespace()
    before, term = await read(cluster.store, NAMESPACE), leader.node.election.get_term()
    await cluster.store.commit([Put(paths.EPOCH, b"another")])
    with pytest.raises(StaleEpochError, match="another leader"):
        await give(cluster, bundle)
    assert await read(cluster.store, NAMESPACE) == before
    assert leader.node.ledger.writes_fenced == 1
    assert leader.node.election.term != term, "it may have been re-elected by now"


async def test_deposed_leader_creates_no_namespace(cluster: Cluster, leader: RunningNode) -> None:
    bundles = NamespaceBundles((0, 0xFFFFFFFF))
    leader.node.election._resigned = True  # if re-elected it could create the namespace legitimately
    await cluster.store.commit([Put(paths.EPOCH, b"another")])
    with pytest.raises((StaleEpochError, NotLeaderError)):  # depends on whether it knows by then
        await leader.node.ledger.create_namespace(NamespaceState.unowned(NamespaceName("t", "ns"), bundles))
    assert await cluster.store.get(NAMESPACE) is None


async def test_standby_writes_nothing(cluster: Cluster) -> None:
    (bundle, *_) = await cluster.a_namespace()
    standby = await cluster.start_node()
    with pytest.raises(NotLeaderError):
        await standby.node.ledger.apply("t/ns", BundleName.parse(bundle).range, releasing, "test")


async def test_changed_record_is_reread_and_the_transition_repeated(cluster: Cluster) -> None:
    first, second, *_ = await cluster.a_namespace()
    await give(cluster, first)
    state = await stored(cluster)
    by_hand = state.with_ownerships({0: assign(Ownership(version=6), cluster.brokers["b1:8080"].registration, STAMP)})
    await cluster.store.commit([Put(NAMESPACE, encode_namespace(by_hand))])
    done = await give(cluster, second)
    assert done.version == 1
    assert [entry.version for entry in (await stored(cluster)).ownerships] == [7, 1, 0, 0]


STAMP = Stamp(epoch=1, now_ms=0, reason="by hand")


async def test_lost_answer_is_an_unknown_outcome(cluster: Cluster, leader: RunningNode, memory: MemoryCluster) -> None:
    (bundle, *_) = await cluster.a_namespace()
    memory.lose_answer(in_memory_store(leader))
    with pytest.raises(OutcomeUnknownError):
        await give(cluster, bundle)
    assert leader.ownership(bundle).version == 0
    memory.heal(in_memory_store(leader))
    await eventually(lambda: leader.ownership(bundle).version == 1)
    with pytest.raises(IllegalTransitionError):
        await give(cluster, bundle)


@pytest.fixture
def stuck(leader: RunningNode, monkeypatch: pytest.MonkeyPatch) -> RunningNode:
    """A leader whose rereads all fail from now on."""

    async def read_nothing(_: set[str]) -> None:
        raise StoreUnavailableError("not now")

    monkeypatch.setattr(mirror_intake, "_SETTLES_WITHIN_S", 0.05)
    monkeypatch.setattr(leader.node.intake._rereading, "_read_and_apply", read_nothing)
    return leader


async def test_unanswered_write_does_not_block_others_without_rereads(
    cluster: Cluster, leader: RunningNode, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = await cluster.a_namespace()
    request.getfixturevalue("stuck")
    with monkeypatch.context() as lost:
        lost.setattr(leader.store, "commit", AsyncMock(side_effect=OutcomeUnknownError("the answer was lost")))
        with pytest.raises(OutcomeUnknownError):
            await give(cluster, first)
    assert (await give(cluster, second)).state is OwnershipState.OWNED
    await cluster.store.commit([Put(NAMESPACE, encode_namespace(await stored(cluster)))])
    with pytest.raises(TransactionFailedError, match="bad_version"):
        await give(cluster, first)


@pytest.mark.usefixtures("stuck")
async def test_unconfirmed_write_is_an_unknown_outcome(leader: RunningNode) -> None:
    bundles = NamespaceBundles((0, 0xFFFFFFFF))
    with pytest.raises(OutcomeUnknownError, match=r"not confirmed within 0\.05 s"):
        await leader.node.ledger.create_namespace(NamespaceState.unowned(NamespaceName("t", "ns"), bundles))
    with pytest.raises(OutcomeUnknownError, match=r"not confirmed within 0\.05 s"):
        await leader.node.operators.update_configuration(lambda _: {"maxConcurrentUnloads": "3"})


async def test_request_after_the_term_fails_at_once(cluster: Cluster, leader: RunningNode) -> None:
    bundle, *_ = await cluster.a_namespace()
    await leader.node.election.resign()
    with pytest.raises(NotLeaderError):
        leader.node.assigner.request(bundle)


async def test_owner_lost_before_the_write(memory: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reconciler has already scanned and seen the former owner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconciler, "FREED_AFTER_S", 0.0)
        async with Cluster(in_memory(memory)) as cluster:
            leader = await cluster.start_leader()
            owner = await cluster.a_broker("b1:8080")
            (bundle, *_) = await cluster.a_namespace()
            await _give_to_a_leaving_broker(cluster, leader, bundle, owner, monkeypatch)
            await eventually(lambda: leader.ownership(bundle).state is OwnershipState.FREE)


async def _give_to_a_leaving_broker(
    cluster: Cluster, leader: RunningNode, bundle: str, owner: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, looks = in_memory_store(leader).commit, leader.node.reconciler

    async def once_the_owner_is_gone(ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        await owner.leave()
        await eventually(lambda: not leader.node.mirror.is_registered(owner.registration))
        await eventually(lambda: (looks._machine.wake_s or 0.0) > time.monotonic(), what="the scan is done")
        return await commit(ops, session_id=session_id)

    monkeypatch.setattr(in_memory_store(leader), "commit", once_the_owner_is_gone)
    assert (await give(cluster, bundle)).owner == owner.registration
    monkeypatch.undo()


async def test_namespace_is_created_once(cluster: Cluster, leader: RunningNode) -> None:
    await cluster.a_namespace()
    bundles = NamespaceBundles((0, 0xFFFFFFFF))
    with pytest.raises(NamespaceExistsError, match="t/ns exists already"):
        await leader.node.ledger.create_namespace(NamespaceState.unowned(NamespaceName("t", "ns"), bundles))


async def test_large_records_are_split(cluster: Cluster, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    bundles = [(await cluster.a_namespace(f"t/ns{number}"))[0] for number in range(3)]
    written.transactions.clear()
    monkeypatch.setattr(ownership_ledger, "MAX_TRANSACTION_BYTES", 500)
    await asyncio.gather(*(give(cluster, bundle) for bundle in bundles))
    assert [len(ops) for ops in written.transactions] == [2, 2, 2]


async def test_record_too_large_for_a_znode_fails_alone(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    large = await cluster.a_namespace("t/large", bundles={"numBundles": 64})
    (small, *_) = await cluster.a_namespace("t/small")
    monkeypatch.setattr(metadata_store, "MAX_ZNODE_BYTES", 1_000)
    monkeypatch.setattr(ownership_ledger, "MAX_TRANSACTION_BYTES", 500)
    for bundles in ([small, large[0]], [large[1], small]):
        outcomes = await asyncio.gather(*(give(cluster, bundle) for bundle in bundles), return_exceptions=True)
        failed = [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)]
        assert ZnodeTooLargeError in failed
    assert (await stored(cluster, "t/small")).ownerships[0].version == 1


def halving(bundle: str) -> Reshape:
    """Cut a bundle in the middle."""
    own = BundleName.parse(bundle).range

    def cut(state: NamespaceState, stamp: Stamp) -> NamespaceState:
        index = state.bundles.find_index(own)
        if index is None:
            raise BundleNotFoundError(f"{own} is no more")
        return state.split(index, [(own.lower + own.upper) // 2], stamp)

    return cut


async def test_split_shares_a_transaction(cluster: Cluster, leader: RunningNode, written: Written) -> None:
    first, second, *_ = await cluster.a_namespace()
    written.transactions.clear()
    outcomes = await asyncio.gather(
        give(cluster, first),
        leader.node.ledger.reshape("t/ns", halving(first), "test"),
        give(cluster, second),
        give(cluster, first),
        give(cluster, "t/ns/0x00000000_0x20000000"),
        return_exceptions=True,
    )
    assert len(written.transactions) == 1
    assert isinstance(outcomes[3], BundleNotFoundError)
    assert isinstance(outcomes[4], IllegalTransitionError)
    state = await stored(cluster)
    assert state.bundle_names()[:2] == ["t/ns/0x00000000_0x20000000", "t/ns/0x20000000_0x40000000"]
    assert [entry.version for entry in state.ownerships] == [2, 2, 1, 0, 0]
    assert {entry.reason for entry in state.ownerships[:2]} == {"test"}
    reshaped = outcomes[1]
    assert isinstance(reshaped, NamespaceState)
    assert reshaped.ownerships[:2] == state.ownerships[:2]


async def test_second_split_of_a_bundle_fails_alone(cluster: Cluster, leader: RunningNode) -> None:
    (first, *_) = await cluster.a_namespace()
    outcomes = await asyncio.gather(
        *(leader.node.ledger.reshape("t/ns", halving(first), "test") for _ in range(2)), return_exceptions=True
    )
    assert [isinstance(outcome, NamespaceState) for outcome in outcomes] == [True, False]
    assert isinstance(outcomes[1], BundleNotFoundError)
    assert len((await stored(cluster)).bundles) == 5


async def test_invalid_split_changes_nothing(cluster: Cluster, leader: RunningNode) -> None:
    await cluster.a_namespace()
    before = await read(cluster.store, NAMESPACE)
    with pytest.raises(BoundariesError, match="0x00000000 does not ascend"):
        await leader.node.ledger.reshape("t/ns", lambda state, stamp: state.split(0, [0], stamp), "test")
    assert await read(cluster.store, NAMESPACE) == before


async def test_split_by_a_deposed_leader_has_no_effect(cluster: Cluster, leader: RunningNode) -> None:
    (first, *_) = await cluster.a_namespace()
    before = await read(cluster.store, NAMESPACE)
    await cluster.store.commit([Put(paths.EPOCH, b"another")])
    with pytest.raises(StaleEpochError):
        await leader.node.ledger.reshape("t/ns", halving(first), "test")
    assert await read(cluster.store, NAMESPACE) == before


async def test_split_of_a_changed_record_is_repeated(cluster: Cluster, leader: RunningNode) -> None:
    (first, *_) = await cluster.a_namespace()
    state = await stored(cluster)
    by_hand = state.with_ownerships({0: assign(Ownership(version=6), cluster.brokers["b1:8080"].registration, STAMP)})
    await cluster.store.commit([Put(NAMESPACE, encode_namespace(by_hand))])
    await leader.node.ledger.reshape("t/ns", halving(first), "test")
    assert [entry.version for entry in (await stored(cluster)).ownerships] == [8, 8, 0, 0, 0]


async def test_invariant_violation_is_not_written_and_ends_the_term(cluster: Cluster, leader: RunningNode) -> None:
    (bundle,) = await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    name, owner = BundleName.parse(bundle), cluster.brokers["b1:8080"].registration
    other = (await cluster.a_broker("b2:8080")).registration
    owned = await leader.node.ledger.apply("t/ns", name.range, lambda now, stamp: assign(now, owner, stamp), "a test")
    before = await read(cluster.store, NAMESPACE)

    def take(current: Ownership, stamp: Stamp) -> Ownership:
        return assign(Ownership(version=current.version), other, stamp)

    with capture_logs() as logs, pytest.raises(InvariantViolatedError, match=r"taken from b1:8080 .* was not asked"):
        await leader.node.ledger.apply("t/ns", name.range, take, "a test")
    assert await read(cluster.store, NAMESPACE) == before
    (event,) = [entry for entry in logs if entry["event"] == "invariant_violated"]
    assert event["story"] == [f"{name.range}: {Ownership()} -> {owned} (a test)"]
    assert "stepped_down" in [entry["event"] for entry in logs]
    assert leader.node.ledger.invariants_violated == 1
    await eventually(lambda: leader.leads and leader.node.election.terms_won == 2)
    assert leader.ownership(bundle) == owned


async def test_invariant_violation_drops_the_whole_transaction(cluster: Cluster, leader: RunningNode) -> None:
    (bundle,) = await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    (beside,) = await cluster.a_namespace("t/beside", bundles={"numBundles": 1})
    owner = cluster.brokers["b1:8080"].registration

    def fall(current: Ownership, stamp: Stamp) -> Ownership:
        return Ownership(version=current.version - 1, epoch=stamp.epoch)

    def give(current: Ownership, stamp: Stamp) -> Ownership:
        return assign(current, owner, stamp)

    apply = leader.node.ledger.apply
    outcomes = await asyncio.gather(
        apply("t/beside", BundleName.parse(beside).range, give, "a test"),
        apply("t/ns", BundleName.parse(bundle).range, fall, "a test"),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [StaleEpochError, InvariantViolatedError]
    assert leader.ownership(beside).state is OwnershipState.FREE


async def test_outdated_bundles_are_not_written(cluster: Cluster, leader: RunningNode) -> None:
    (bundle,) = await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
    owner = cluster.brokers["b1:8080"].registration
    name = BundleName.parse(bundle)
    await leader.node.ledger.apply("t/ns", name.range, lambda now, stamp: assign(now, owner, stamp), "a test")

    def forget(state: NamespaceState, _: Stamp) -> NamespaceState:
        return NamespaceState.unowned(state.name, NamespaceBundles(state.bundles.boundaries))

    with pytest.raises(InvariantViolatedError, match="version 0 follows version 1"):
        await leader.node.ledger.reshape("t/ns", forget, "a test")
    await eventually(lambda: leader.leads and leader.node.election.terms_won == 2)


ATTEMPTS = 5


@pytest.mark.parametrize(("conflicts", "attempts"), [(ATTEMPTS - 1, ATTEMPTS), (ATTEMPTS, ATTEMPTS)])
async def test_change_is_tried_five_times(conflicts: int, attempts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_leader() as (cluster, leader):
        agent = await cluster.a_broker()
        name = BundleName.parse((await cluster.a_namespace())[0])
        commit, tried = leader.store.commit, 0

        async def compete(ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
            nonlocal tried
            if any(isinstance(op, Put) and op.path == NAMESPACE for op in ops):
                tried += 1
                if tried <= conflicts:
                    await write(cluster.store, NAMESPACE, await read(cluster.store, NAMESPACE))
            return await commit(ops, session_id=session_id)

        def give(current: Ownership, stamp: Stamp, owner: Registration = agent.registration) -> Ownership:
            return assign(current, owner, stamp)

        monkeypatch.setattr(leader.store, "commit", compete)
        outcome = leader.node.ledger.apply("t/ns", name.range, give, "test")
        if conflicts < ATTEMPTS:
            assert (await outcome).owner == agent.registration
        else:
            with pytest.raises(TransactionFailedError, match="bad_version"):
                await outcome
        assert tried == attempts
