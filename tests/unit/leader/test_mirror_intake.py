from __future__ import annotations

import asyncio
import contextlib
import gzip
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import pytest
from support.builders import owned
from support.delays import a_memory_cluster
from support.memory_store import MemoryCluster, MemoryStore
from support.registrations import a_record, load_of, register, write
from support.waiting import eventually, patience

from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.strategies.shedding.transfer_shedder import TransferReason, TransferShedder
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.mirror.mirror_intake import MirrorIntake
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Delete, MetadataStore, Put, Znode
from loadmanager.store.znode_codec import pack
from loadmanager.util.clock import now_s
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import encode_local_broker_data
from loadmanager.wire.control_records import encode_controls
from loadmanager.wire.store_records import encode_namespace

B1 = BrokerId("b1:8080")
BROKER = paths.broker("b1:8080")
NAMESPACE = paths.namespace("t/ns")
BUNDLE = "t/ns/0x00000000_0x80000000"


@dataclass
class Mirror:
    """A running intake, and another session that writes."""

    cluster: MemoryCluster
    own: MemoryStore
    store: MetadataStore
    mirror: ClusterMirror
    intake: MirrorIntake
    batches: list[None] = field(default_factory=list)
    """One entry per batch that was applied."""

    async def read(self) -> None:
        """Return when all earlier writes have been applied."""
        await self.own.sync()
        await asyncio.sleep(0)  # watches are delivered first
        await self.intake.settled()

    async def put(self, path: str, data: bytes) -> None:
        await write(self.store, path, data)
        await self.read()

    @property
    def faults(self) -> dict[str, str]:
        return self.mirror.faults


@pytest.fixture
async def mirror(request: pytest.FixtureRequest) -> AsyncIterator[Mirror]:
    cluster = getattr(request, "param", a_memory_cluster)()
    own, other = MemoryStore(cluster), MemoryStore(cluster)
    await own.start()
    await other.start()
    for path in paths.PERSISTENT_PARENTS:
        await other.ensure_path(path)
    mirror = ClusterMirror()
    batches: list[None] = []
    intake = MirrorIntake(own, mirror, LiveSettings(Settings()), lambda: batches.append(None))
    task = asyncio.create_task(intake.run())
    await intake.settled()
    yield Mirror(cluster, own, other, mirror, intake, batches)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await own.close()
    await other.close()


def namespace(bundles: int = 2) -> bytes:
    return namespace_record("t/ns", bundles)


def namespace_record(name: str, bundles: int) -> bytes:
    return encode_namespace(
        NamespaceState.unowned(NamespaceName.parse(name), NamespaceBundles(equal_boundaries(bundles)))
    )


def report(mib_per_s: float) -> bytes:
    return encode_local_broker_data(a_record("b1:8080", {BUNDLE: load_of(mib_per_s)}))


async def test_broker_follows_its_znode(mirror: Mirror) -> None:
    registration = await register(mirror.store, "b1:8080", a_record())
    await mirror.read()
    assert mirror.mirror.is_registered(registration)
    assert mirror.mirror.brokers[B1].record.get("pulsarServiceUrl") == "pulsar://b1:6650"
    await mirror.store.commit([Delete(BROKER)])
    await mirror.read()
    assert not mirror.mirror.is_registered(registration)
    assert B1 not in mirror.mirror.brokers


def many_bundles(count: int, mib_per_s: float = 1.0) -> bytes:
    return encode_local_broker_data(
        a_record("b1:8080", {f"t/ns/0x{number:08x}_0xffffffff": load_of(mib_per_s) for number in range(count)})
    )


@dataclass
class HeldBack:
    """Replaces `report_of`: records its threads and waits for the test."""

    may_go_on: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def __call__(self, *arguments: Any) -> BrokerReport:  # noqa: ANN401 - those of `report_of`
        self.threads.append(threading.current_thread())
        assert self.may_go_on.wait(patience()), "the loop was blocked"
        return report_of(*arguments)


@pytest.mark.parametrize("encode", [bytes, lambda data: gzip.compress(data[:-1] + b" " * 99 + data[-1:])])
async def test_long_report_is_decoded_in_a_thread_and_a_later_one_wins(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch, encode: Callable[[bytes], bytes]
) -> None:
    held = HeldBack()
    monkeypatch.setattr("loadmanager.leader.mirror.broker_records.report_of", held)
    count = 1_000 if encode is bytes else 1
    await write(mirror.store, BROKER, encode(many_bundles(count)))
    await eventually(lambda: held.threads)
    assert held.threads != [threading.main_thread()]
    await write(mirror.store, BROKER, report(7.0))
    held.may_go_on.set()
    await mirror.read()
    bundles = mirror.mirror.model.snapshot(0.0, 0.0).bundles
    assert mirror.mirror.brokers[B1].znode_version == 1
    assert mirror.mirror.brokers[B1].record["msgThroughputIn"] == 7 * 2**20
    assert BUNDLE in bundles.names
    assert held.threads[1:] == [threading.main_thread()]


async def test_known_report_is_not_decoded_again(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldBack()
    held.may_go_on.set()
    monkeypatch.setattr("loadmanager.leader.mirror.broker_records.report_of", held)
    await mirror.put(BROKER, many_bundles(1_000))
    mirror.intake.mark_dirty(BROKER)
    await mirror.read()
    assert len(held.threads) == mirror.intake.reports_applied == 1


async def test_too_large_report_is_listed(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    await mirror.put(BROKER, report(7.0))
    monkeypatch.setattr("loadmanager.leader.mirror.broker_records.MAX_BUNDLES_PER_REPORT", 1_500)
    await mirror.put(BROKER, many_bundles(1_500))
    assert mirror.faults == {}
    await mirror.put(BROKER, many_bundles(1_501))
    assert mirror.faults == {BROKER: f"{BROKER}: more than 1500 bundles"}
    assert B1 in mirror.mirror.registrations
    await mirror.put(BROKER, report(7.0))
    assert mirror.faults == {}


async def test_report_far_above_the_limit_is_refused_undecoded(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.wire.broker_data.decode_local_broker_data", None)
    monkeypatch.setattr("loadmanager.leader.mirror.broker_records.MAX_BUNDLES_PER_REPORT", 10)
    for data in (many_bundles(1_100), b'{"bundles": [%s""]}' % (b'"",' * 20_000)):
        await mirror.put(BROKER, pack(data))
        assert mirror.faults == {BROKER: f"{BROKER}: more than 10 bundles"}
        await mirror.store.commit([Delete(BROKER)])
        await mirror.read()


async def test_re_registration_between_two_reads_is_noticed(mirror: Mirror) -> None:
    first = await register(mirror.store, "b1:8080", a_record())
    await mirror.read()
    await mirror.store.commit([Delete(BROKER)])
    second = await register(mirror.store, "b1:8080", a_record())
    await mirror.read()
    assert first != second
    assert mirror.mirror.registrations[B1] == second


async def test_rereading_a_report_adds_no_sample(mirror: Mirror) -> None:
    await register(mirror.store, "b1:8080", report(1))
    await mirror.read()
    await mirror.put(BROKER, report(3))
    for _ in range(3):
        mirror.intake.mark_dirty(BROKER)
        await mirror.read()
    mirror.intake.mark_dirty(paths.ROOT)
    await mirror.read()
    assert mirror.intake.reports_applied == 2
    averages = mirror.mirror.model.bundle_averages("t/ns")[BUNDLE]
    assert averages.short_samples == 2
    assert averages.short[2] == 2 * 1024 * 1024


async def test_report_without_a_time_is_not_outdated(mirror: Mirror) -> None:
    record = a_record("b1:8080", {BUNDLE: load_of(1)})
    del record["lastUpdate"]
    before_ms = time.time_ns() // 1_000_000
    await register(mirror.store, "b1:8080", record)
    await mirror.read()
    snapshot = mirror.mirror.model.snapshot(time.time(), 0.0)
    assert snapshot.brokers.last_update_ms[0] >= before_ms
    settings = PlannerSettings(shedding_strategy="TransferShedder")
    shed = TransferShedder(settings).find_bundles_for_unloading(snapshot, {})
    assert TransferReason.OUT_DATED_DATA not in [verdict.verdict for verdict in shed.verdicts]


@pytest.mark.parametrize("mirror", [lambda: MemoryCluster(now_s)], indirect=True, ids=["at once"])
async def test_burst_of_changes_of_one_znode_costs_one_read(mirror: Mirror) -> None:
    await register(mirror.store, "b1:8080", report(1))
    await mirror.read()
    before = len(mirror.batches)
    for mib_per_s in range(20):
        await write(mirror.store, BROKER, report(mib_per_s))
    await mirror.read()
    assert len(mirror.batches) == before + 1
    assert mirror.intake.reports_applied == 2


async def test_broker_without_an_address_is_registered_but_not_offered(mirror: Mirror) -> None:
    await register(mirror.store, "b1:8080", b"{}")
    await mirror.read()
    assert "b1:8080" in mirror.mirror.registrations
    assert "b1:8080" not in mirror.mirror.brokers
    assert "no address for clients" in mirror.mirror.faults[BROKER]


async def test_unsettled_counts_lost_brokers_and_not_reports(mirror: Mirror) -> None:
    await register(mirror.store, "b1:8080", report(1))
    await mirror.read()
    before = mirror.mirror.unsettled
    await write(mirror.store, BROKER, report(2))
    await mirror.read()
    assert mirror.mirror.unsettled == before, "a load report leaves nothing to finish"
    await mirror.store.commit([Delete(BROKER)])
    await mirror.read()
    assert mirror.mirror.unsettled == before + 1, "a broker that is gone leaves its bundles"


async def test_unreadable_report_keeps_the_last_good_one(mirror: Mirror) -> None:
    registration = await register(mirror.store, "b1:8080", report(1))
    await mirror.read()
    await mirror.put(BROKER, b"{garbage")
    assert mirror.mirror.is_registered(registration)
    assert mirror.mirror.brokers[B1].record.get("pulsarServiceUrl") == "pulsar://b1:6650"
    assert BROKER in mirror.faults[BROKER]
    assert "Invalid JSON" in mirror.faults[BROKER]
    await mirror.put(BROKER, report(2))
    assert mirror.faults == {}


async def test_rejected_report_keeps_the_last_good_load(mirror: Mirror) -> None:
    await register(mirror.store, "b1:8080", report(3))
    await mirror.read()
    doubtful = a_record("b1:8080", {BUNDLE: load_of(3)})
    doubtful["msgThroughputIn"] *= 100_000
    await write(mirror.store, BROKER, encode_local_broker_data(doubtful))
    await mirror.read()
    assert "the report is rejected: it carries" in mirror.mirror.faults[BROKER]
    assert (mirror.intake.reports_applied, mirror.intake.records_rejected) == (1, 1)
    assert mirror.mirror.model.snapshot(0.0, 0.0).brokers.load[0][2] == load_of(3)["msgThroughputIn"]
    mirror.intake.mark_dirty(paths.ROOT)
    await mirror.read()
    assert BROKER in mirror.mirror.faults, "reading it again does not make it better"
    await mirror.put(BROKER, report(4))
    assert BROKER not in mirror.mirror.faults
    assert mirror.intake.reports_applied == 2


async def test_first_report_of_a_new_owner_counts_when_it_comes_with_the_record(mirror: Mirror) -> None:
    state = NamespaceState.unowned(NamespaceName("t", "ns"), NamespaceBundles(equal_boundaries(2)))
    first = await register(mirror.store, "b1:8080", a_record("b1:8080", {BUNDLE: load_of(1.0)}))
    second = await register(mirror.store, "b2:8080", a_record("b2:8080"))
    await mirror.put(NAMESPACE, encode_namespace(state.with_ownerships({0: owned(first, 1)})))
    moved = encode_namespace(state.with_ownerships({0: owned(second, 2)}))
    reported = encode_local_broker_data(a_record("b2:8080", {BUNDLE: load_of(2.0)}))
    await mirror.store.commit([Put(paths.broker(second.broker), reported), Put(NAMESPACE, moved)])
    await mirror.read()
    bundles = mirror.mirror.model.snapshot(time.time(), 0.0).bundles
    assert bundles.movable.tolist() == [True, False]
    assert mirror.mirror.model.count_samples(BUNDLE) == (2, 2)


async def test_broker_registered_with_garbage_is_not_offered(mirror: Mirror) -> None:
    registration = await register(mirror.store, "b1:8080", b"\xff\xfe")
    await mirror.read()
    assert mirror.mirror.is_registered(registration)
    assert B1 not in mirror.mirror.brokers
    assert "not UTF-8" in mirror.faults[BROKER]


async def test_unreadable_namespace_record_keeps_its_state_and_is_marked(mirror: Mirror) -> None:
    await mirror.put(NAMESPACE, namespace())
    await mirror.put(NAMESPACE, b"[]")
    entry = mirror.mirror.get_namespace("t/ns")
    assert len(entry.state.bundles) == 2
    assert entry.unreadable is not None
    assert NAMESPACE in entry.unreadable
    await mirror.put(NAMESPACE, namespace(4))
    assert mirror.mirror.get_namespace("t/ns").unreadable is None
    assert len(mirror.mirror.get_namespace("t/ns").state.bundles) == 4
    assert mirror.faults == {}


@pytest.mark.parametrize("path", [BROKER, NAMESPACE, paths.node("n1:8080"), paths.LEADER])
async def test_fault_stays_listed_and_is_counted_once(mirror: Mirror, path: str) -> None:
    await mirror.put(NAMESPACE, namespace())
    await mirror.put(path, b"{garbage")
    for dirty in (path, paths.ROOT, path):
        mirror.intake.mark_dirty(dirty)
        await mirror.read()
        assert list(mirror.faults) == [path]
    assert mirror.intake.records_rejected == 1


@pytest.mark.parametrize("path", [BROKER, NAMESPACE, paths.node("n1:8080"), paths.LEADER])
async def test_fault_ends_with_its_znode(mirror: Mirror, path: str) -> None:
    await mirror.put(path, b"{garbage")
    assert path in mirror.faults
    await mirror.store.commit([Delete(path)])
    await mirror.read()
    assert mirror.faults == {}


async def test_unknown_znodes_are_ignored(mirror: Mirror) -> None:
    await mirror.put(f"{paths.ROOT}/something/else", b"\xff")
    await mirror.put(f"{paths.ROOT}/namespaces/t/ns/below", b"\xff")
    assert mirror.faults.keys() <= {NAMESPACE}
    assert mirror.mirror.is_fresh


@pytest.mark.parametrize("name", ["no-port", "b1:0", "b1:99999", "b1:http", ":8080"])
async def test_broker_znode_with_an_invalid_name_is_a_fault(mirror: Mirror, name: str) -> None:
    await mirror.put(paths.broker(name), encode_local_broker_data(a_record()))
    assert "expected 'host:port'" in mirror.faults[paths.broker(name)]
    assert mirror.mirror.brokers == {}
    assert mirror.mirror.registrations == {}


async def test_reconnection_rereads_all_and_drops_deleted_records(mirror: Mirror) -> None:
    await register(mirror.store, "b1:8080", report(1))
    await mirror.put(NAMESPACE, namespace())
    await mirror.put(paths.node("n1:8080"), b'{"nodeId":"n1:8080","serviceUrl":"u","version":"1","startTimestamp":1}')
    await mirror.put(paths.node("n2:8080"), b"{garbage")
    mirror.cluster.partition(mirror.own, noticed=True)
    await asyncio.sleep(0)
    assert not mirror.mirror.is_fresh
    gone = (BROKER, NAMESPACE, paths.node("n1:8080"), paths.node("n2:8080"))
    await mirror.store.commit([Delete(path) for path in gone])
    assert mirror.mirror.brokers
    mirror.cluster.heal(mirror.own)
    await eventually(lambda: mirror.mirror.is_fresh)
    assert (mirror.mirror.brokers, mirror.mirror.registrations) == ({}, {})
    assert (mirror.mirror.namespaces, mirror.mirror.nodes, mirror.faults) == ({}, {}, {})


async def test_store_rollback_resets_the_mirror(mirror: Mirror) -> None:
    """The mirror drops all changes that the rollback undid."""
    controls = encode_controls(Controls(dry_run=True))
    for path, data in ((NAMESPACE, namespace()), (paths.CONTROLS, controls), (BROKER, report(1))):
        await mirror.put(path, data)
    saved = mirror.cluster.save()
    for bundles in (4, 8):
        await mirror.put(NAMESPACE, namespace(bundles))
    await mirror.put(paths.CONTROLS, encode_controls(Controls()))
    await mirror.put(BROKER, encode_local_broker_data(a_record("b1:8080", agent_url="http://other:1")))
    await mirror.put(paths.namespace("t/later"), namespace_record("t/later", 1))
    await mirror.store.commit([Put(paths.EPOCH, b"n1"), Create(paths.LEADER, b"{}", ephemeral=True)])
    await mirror.read()
    assert (mirror.mirror.epoch, len(mirror.mirror.get_namespace("t/ns").state.bundles)) == (1, 8)
    mirror.cluster.set_back(saved)
    await mirror.read()
    assert mirror.mirror.is_fresh
    assert list(mirror.mirror.namespaces) == ["t/ns"]
    assert len(mirror.mirror.get_namespace("t/ns").state.bundles) == 2
    assert mirror.mirror.operator_config.controls.dry_run
    assert mirror.mirror.brokers[B1].command_url is None
    assert (mirror.mirror.epoch, mirror.mirror.leader) == (0, None)


async def test_different_record_of_the_same_version_is_applied(mirror: Mirror) -> None:
    """The next version had 4 bundles before the rollback, and has 8 after it."""
    await mirror.put(NAMESPACE, namespace())
    saved = mirror.cluster.save()
    await mirror.put(NAMESPACE, namespace(4))
    known = mirror.mirror.get_namespace("t/ns")
    mirror.cluster.set_back(saved)
    await write(mirror.store, NAMESPACE, namespace(8))
    await mirror.read()
    read = mirror.mirror.get_namespace("t/ns")
    assert (read.version, read.czxid) == (known.version, known.czxid)
    assert len(read.state.bundles) == 8


async def test_outdated_read_does_not_undo_a_commit(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    await mirror.put(NAMESPACE, namespace())
    asked, may_answer = asyncio.Event(), asyncio.Event()
    get_many = mirror.own.get_many

    async def answer_late(wanted: Sequence[str]) -> list[Znode | None]:
        znodes = await get_many(wanted)
        asked.set()
        await may_answer.wait()
        return znodes

    monkeypatch.setattr(mirror.own, "get_many", answer_late)
    mirror.intake.mark_dirty(NAMESPACE)
    await asked.wait()
    (version,) = await mirror.own.commit([Put(NAMESPACE, namespace(4))])
    known = mirror.mirror.get_namespace("t/ns")
    state = NamespaceState.unowned(NamespaceName("t", "ns"), NamespaceBundles(equal_boundaries(4)))
    mirror.mirror.commit_namespace(NamespaceEntry(state, version, known.czxid, hash(namespace(4))))
    applied = len(mirror.batches)
    may_answer.set()
    while len(mirror.batches) == applied:  # noqa: ASYNC110 - check before the next batch repairs it
        await asyncio.sleep(0)
    assert len(mirror.mirror.get_namespace("t/ns").state.bundles) == 4


async def test_own_commit_is_not_applied_again(mirror: Mirror) -> None:
    await mirror.put(NAMESPACE, namespace())
    (version,) = await mirror.own.commit([Put(NAMESPACE, namespace(4))])
    known = mirror.mirror.get_namespace("t/ns")
    state = NamespaceState.unowned(NamespaceName("t", "ns"), NamespaceBundles(equal_boundaries(4)))
    mirror.mirror.commit_namespace(NamespaceEntry(state, version, known.czxid, hash(namespace(4))))
    before = mirror.mirror.unsettled
    await mirror.read()
    assert mirror.mirror.unsettled == before
    assert mirror.mirror.get_namespace("t/ns").state is state


async def test_mirror_catches_up_after_an_unnoticed_partition(mirror: Mirror) -> None:
    mirror.cluster.partition(mirror.own)
    mirror.intake.mark_dirty(NAMESPACE)
    await write(mirror.store, NAMESPACE, namespace())
    mirror.cluster.heal(mirror.own)
    await mirror.read()
    assert "t/ns" in mirror.mirror.namespaces


async def test_persisted_history_seeds_bundles_and_faults_are_listed(mirror: Mirror) -> None:
    await mirror.put(NAMESPACE, namespace())
    mean = '{"maxSamples":10,"numSamples":7,"msgThroughputIn":1,"msgThroughputOut":2,"msgRateIn":3,"msgRateOut":4}'
    entry = f'{{"shortTermData":{mean},"longTermData":{mean},"topics":5}}'
    await mirror.put(paths.bundle_data("t/ns"), f'{{"0x00000000_0x80000000":{entry},"0x0_0x1":{entry}}}'.encode())
    await mirror.put(paths.bundle_data("t/other"), b'{"0x00000000_0x80000000":{"topics":1}}')
    await mirror.intake.load_history()
    averages = mirror.mirror.model.bundle_averages("t/ns")
    assert list(averages) == [BUNDLE]
    assert averages[BUNDLE].short.tolist() == [3.0, 4.0, 1.0, 2.0]
    assert (averages[BUNDLE].long_samples, averages[BUNDLE].topics) == (7, 5)
    assert "shortTermData: Field required" in mirror.faults[paths.bundle_data("t/other")]
    assert mirror.intake.records_rejected == 1


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Held(Znode):
    """A znode that supports weak references."""


@dataclass
class WatchedReads:
    """Replaces `get_many` of a store; records requests and how many answers are alive."""

    store: MemoryStore
    asked: list[list[str]] = field(default_factory=list)
    answered: list[weakref.ref[Held]] = field(default_factory=list)
    most_kept: int = 0
    meanwhile: Callable[[], Awaitable[None]] | None = None
    """Action that runs once, after half of the reads."""

    async def get_many(self, asked: Sequence[str]) -> list[Znode | None]:
        self.asked.append(list(asked))
        if len(self.asked) == BROKERS // 64 and self.meanwhile is not None:
            await self.meanwhile()
        found = [
            None if znode is None else Held(*astuple(znode)) for znode in await MemoryStore.get_many(self.store, asked)
        ]
        self.answered += [weakref.ref(znode) for znode in found if znode is not None]
        self.most_kept = max(self.most_kept, sum(ref() is not None for ref in self.answered))
        return [*found]


BROKERS = 160


@pytest.fixture
async def many(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> WatchedReads:
    """Register brokers, whose reports are about to be read with everything else."""
    data = encode_local_broker_data(a_record())
    await mirror.store.commit([Create(paths.broker(f"b{number:03d}:8080"), data) for number in range(BROKERS)])
    await mirror.read()
    mirror.mirror.brokers.clear()
    reads = WatchedReads(mirror.own)
    monkeypatch.setattr(mirror.own, "get_many", reads.get_many)
    mirror.intake.mark_dirty(paths.ROOT)
    return reads


async def test_records_are_read_and_freed_in_parts(mirror: Mirror, many: WatchedReads) -> None:
    await mirror.read()
    assert len(mirror.mirror.brokers) == BROKERS
    assert max(map(len, many.asked)) <= 32
    assert many.most_kept <= 2 * 32, "all that was read was in memory at once"


async def test_leader_znode_is_read_before_other_pending_records(mirror: Mirror, many: WatchedReads) -> None:
    seen: list[int] = []
    mirror.intake._on_change = lambda: seen.append(len(mirror.mirror.brokers) if mirror.mirror.leader else 0)

    async def another_leads() -> None:
        await mirror.store.commit([Create(paths.LEADER, b"{}", ephemeral=True)])

    many.meanwhile = another_leads
    await mirror.read()
    assert 0 < seen[0] < BROKERS


async def test_new_leader_reads_only_announced_brokers(mirror: Mirror, many: WatchedReads) -> None:
    await mirror.read()
    many.asked.clear()
    late = await register(mirror.store, "late:8080", a_record("late:8080"))
    await mirror.own.sync()
    await mirror.intake.settle_registrations()
    assert mirror.mirror.is_registered(late)
    assert sum(map(len, many.asked)) < 32
