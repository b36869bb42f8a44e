from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.delays import TURNS, a_memory_cluster
from support.pulsar_picture import (
    B1,
    B2,
    BUNDLE,
    DOMAIN,
    ISOLATION,
    MODULAR,
    NAMESPACE,
    OTHER,
    POLICIES,
    PULSAR,
    Beside,
    beside,
    broker,
    looking,
    state_of,
)
from support.pulsar_znodes import HISTORY, LOWER, UPPER
from support.registrations import write
from support.stores import MemoryWorld, in_memory
from support.waiting import eventually

from loadmanager.core.diagnosis.pulsar_comparison import NO_LIFE
from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.errors import LoadManagerError
from loadmanager.pulsar.read_only_store import ReadOnlyStore
from loadmanager.pulsar.watched_trees import WATCHED
from loadmanager.store import paths, pulsar_paths
from loadmanager.store.memory_store import MemoryCluster
from loadmanager.store.metadata_store import Create, Delete, MetadataStore, SessionState, Unsubscribe, Znode
from loadmanager.util.clock import now_s

QUARTERS = ["0x00000000_0x40000000", "0x40000000_0x80000000"]
WHOLE = "0x00000000_0xffffffff"


@pytest.fixture
async def world() -> AsyncIterator[MemoryWorld]:
    world = MemoryWorld(a_memory_cluster())
    yield world
    await world.close()


@pytest.fixture
async def pulsar(world: MemoryWorld) -> AsyncIterator[Beside]:
    async with beside(world) as pulsar:
        yield pulsar


async def test_the_first_view_is_the_whole_of_what_pulsars_znodes_say(pulsar: Beside) -> None:
    view, intake = pulsar.view, pulsar.intake
    assert view.is_fresh
    assert view.faults == {}
    assert set(view.registrations) == set(view.brokers) == {B1, B2}
    assert intake.load_managers == {B1: MODULAR, B2: MODULAR}
    entry = view.get_namespace(NAMESPACE)
    assert entry.state.bundles.hash_function == "crc32"
    assert [each.owner for each in entry.state.ownerships] == [view.registrations[B1]] * 2
    assert [each.state for each in entry.state.ownerships] == [OwnershipState.OWNED] * 2
    assert set(intake.owners) == {BUNDLE, OTHER}, "nobody moves what a broker tests itself in"
    assert view.operator_config.anti_affinity == {NAMESPACE: "g1"}
    assert list(view.operator_config.isolation) == ["p"]
    assert view.operator_config.failure_domains == {"d1": {"brokers": ["b1:8080"]}}
    assert intake.pulsars_leader == B1
    assert intake.dynamic == PULSAR["/admin/configuration"]
    assert not intake.is_read_only
    assert intake.changed_s == float("-inf")
    assert pulsar.sighted == []
    snapshot = view.model.snapshot(time.time(), 0.0)
    assert snapshot.bundles.movable[[snapshot.bundles.names.index(name) for name in (BUNDLE, OTHER)]].all()
    assert snapshot.policies.has_policy("other/ns")


async def test_when_brokers_made_their_reports_is_known(pulsar: Beside) -> None:
    record = PULSAR[paths.broker(B1)]
    assert pulsar.intake.reports_at_s(B1) == record["lastUpdate"] / 1000
    assert pulsar.intake.reports_at_s(BrokerId("nobody:1")) is None


async def test_an_owner_that_changes_is_followed_counted_and_told(pulsar: Beside) -> None:
    before, names = pulsar.ownership(BUNDLE), iter(pulsar.intake.owners)
    first = next(names)
    await pulsar.delete(pulsar_paths.owner(BUNDLE))
    assert {first, *names} == set(pulsar.intake.owners), "whoever goes through them meanwhile is not disturbed"
    gone = pulsar.ownership(BUNDLE)
    assert (gone.state, gone.owner, gone.version) == (OwnershipState.FREE, None, before.version + 1)
    await pulsar.own_by(BUNDLE, B2)
    after = pulsar.ownership(BUNDLE)
    assert (after.owner, after.version) == (pulsar.view.registrations[B2], before.version + 2)
    assert pulsar.ownership(OTHER).version == before.version
    told = [(each.bundle, each.before, each.after, each.by_us) for each in pulsar.sighted]
    assert told == [(BUNDLE, before.owner, None, False), (BUNDLE, None, after.owner, False)]
    assert pulsar.intake.owners[BUNDLE] == after.owner


async def test_a_bundle_on_its_way_is_left_as_it_is_and_what_happens_to_it_is_ours(pulsar: Beside) -> None:
    entry, index = pulsar.view.bundle(BundleName.parse(BUNDLE))
    source, destination = pulsar.view.registrations[B1], pulsar.view.registrations[B2]
    releasing = Ownership(OwnershipState.RELEASING, source, destination, 7)
    pulsar.view.put_namespace(
        type(entry)(entry.state.with_ownerships({index: releasing}), entry.version, entry.czxid, entry.digest)
    )
    await pulsar.own_by(BUNDLE, B2)
    await pulsar.delete(pulsar_paths.owner(OTHER))
    assert pulsar.ownership(BUNDLE) == releasing
    assert pulsar.ownership(OTHER).state is OwnershipState.FREE
    assert pulsar.intake.owners[BUNDLE] == destination
    assert [(each.bundle, each.by_us) for each in pulsar.sighted] == [(BUNDLE, True), (OTHER, False)]


async def test_the_owner_now_is_read_at_once_and_applied(pulsar: Beside) -> None:
    name = BundleName.parse(BUNDLE)
    await write(pulsar.store, pulsar_paths.owner(BUNDLE), b'{"brokerId": "b2:8080"}')
    assert await pulsar.intake.owner_now(name) == pulsar.view.registrations[B2]
    assert pulsar.owner(BUNDLE) == B2
    await pulsar.store.commit([Delete(pulsar_paths.owner(BUNDLE))])
    assert await pulsar.intake.owner_now(name) is None
    await pulsar.read()
    assert [each.after and each.after.broker for each in pulsar.sighted] == [B2, None]


class HeldBack(ReadOnlyStore):
    """Answers to reads of many znodes come when the test says so."""

    __slots__ = ("held", "may_answer")

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.held = 0

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        found = await super().get_many(paths)
        self.held += 1
        await self.may_answer.wait()
        return found


async def test_an_answer_from_before_the_owner_was_read_at_once_is_out_of_date(pulsar: Beside) -> None:
    held = HeldBack(pulsar.own)
    async with looking(held) as (view, intake, sighted):
        held.may_answer.clear()
        before = held.held
        intake.mark_dirty(pulsar_paths.owner(BUNDLE))
        await eventually(lambda: held.held > before)
        await write(pulsar.store, pulsar_paths.owner(BUNDLE), b'{"brokerId": "b2:8080"}')
        assert (await intake.owner_now(BundleName.parse(BUNDLE))) == view.registrations[B2]
        held.may_answer.set()
        await pulsar.own.sync()
        await intake.settled()
        assert [(name_of(each.before), name_of(each.after)) for each in sighted] == [(B1, B2)]


async def test_a_split_of_pulsars_gives_the_parts_to_its_owner_and_tells_of_no_move(pulsar: Beside) -> None:
    parts = [f"{NAMESPACE}/0x00000000_0x40000000", f"{NAMESPACE}/0x40000000_0x80000000"]
    for part in parts:
        await pulsar.own_by(part, B1)
    assert pulsar.view.find_ownership(parts[0]) is None
    cut = {"bundles": {"boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xffffffff"], "numBundles": 3}}
    await pulsar.put(POLICIES, cut)
    await pulsar.delete(pulsar_paths.owner(BUNDLE))
    assert [pulsar.owner(part) for part in parts] == [B1, B1]
    assert pulsar.ownership(parts[0]).version > 1
    assert set(pulsar.intake.owners) == {*parts, OTHER}
    assert pulsar.sighted == []
    assert pulsar.view.operator_config.anti_affinity == {}


async def test_a_broker_that_registers_again_owns_by_its_new_life_and_nothing_has_moved(pulsar: Beside) -> None:
    before = pulsar.view.registrations[B1]
    await pulsar.delete(paths.broker(B1))
    assert pulsar.ownership(BUNDLE).owner == Registration(B1, NO_LIFE)
    assert not pulsar.view.is_registered(pulsar.ownership(BUNDLE).owner)
    left_s = pulsar.intake.changed_s
    assert left_s > 0
    await pulsar.put(paths.broker(B1), broker(B1, {BUNDLE: 3.0}))
    assert pulsar.ownership(BUNDLE).owner == pulsar.view.registrations[B1] != before
    assert pulsar.intake.changed_s >= left_s
    assert pulsar.sighted == []


async def test_a_report_is_no_change_of_who_is_there(pulsar: Beside) -> None:
    await pulsar.put(paths.broker(B1), broker(B1, {BUNDLE: 5.0}))
    assert pulsar.intake.reports_applied == 3
    assert pulsar.intake.changed_s == float("-inf")


async def test_reports_one_after_the_other_cost_a_few_reads_a_second(
    pulsar: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Sequence[str]] = []
    read = pulsar.own.get_many

    async def counted(wanted: Sequence[str]) -> list[Znode | None]:
        reads.append(wanted)
        return await read(wanted)

    monkeypatch.setattr(pulsar.own, "get_many", counted)
    began_s = time.monotonic()
    for number in range(60):
        await write(pulsar.store, paths.broker(B1), json.dumps(broker(B1, {BUNDLE: 1.0 + number})).encode())
        await asyncio.sleep(0.01)
    batches = 2 + (time.monotonic() - began_s) / 0.25
    assert 1 <= len([wanted for wanted in reads if wanted]) <= batches


@pytest.mark.parametrize(
    "path", [paths.broker(B1), pulsar_paths.owner(BUNDLE), POLICIES, ISOLATION, DOMAIN, paths.LEADER]
)
async def test_garbage_is_a_fault_by_its_path_and_the_last_good_value_stays(pulsar: Beside, path: str) -> None:
    before = state_of(pulsar.view, pulsar.intake)
    for data in (b"{", b"", b"[]"):
        await pulsar.put(path, data)
        assert list(pulsar.view.faults) == [path]
        assert pulsar.view.faults[path].startswith(path)
        assert state_of(pulsar.view, pulsar.intake) == before
    counted = pulsar.intake.records_rejected
    pulsar.intake.mark_dirty("/")
    await pulsar.read()
    assert pulsar.intake.records_rejected == counted
    assert (pulsar.view.get_namespace(NAMESPACE).unreadable is not None) == (path == POLICIES)
    await pulsar.put(path, PULSAR[path])
    assert pulsar.view.faults == {}
    assert pulsar.view.get_namespace(NAMESPACE).unreadable is None
    assert state_of(pulsar.view, pulsar.intake) == before


async def test_garbage_that_goes_leaves_no_fault(pulsar: Beside) -> None:
    garbage = [paths.broker("b3:8080"), paths.broker("no-port"), pulsar_paths.owner(f"t/ns/{LOWER}")]
    garbage += [pulsar_paths.local_policies("t/ns"), "/admin/clusters/c1/failureDomain/d2"]
    for path in garbage:
        await pulsar.put(path, b"{")
    assert set(pulsar.view.faults) == set(garbage)
    assert BrokerId("b3:8080") in pulsar.view.registrations
    assert "t/ns" not in pulsar.view.namespaces
    await pulsar.delete(*garbage)
    assert pulsar.view.faults == {}


async def test_a_namespace_without_local_policies_is_one_bundle_while_it_is_owned(pulsar: Beside) -> None:
    whole = "t/new/0x00000000_0xffffffff"
    await pulsar.own_by(whole, B2)
    assert pulsar.owner(whole) == B2
    await pulsar.delete(pulsar_paths.owner(whole))
    assert "t/new" not in pulsar.view.namespaces
    assert whole not in pulsar.intake.owners
    await pulsar.put(pulsar_paths.local_policies("t/new"), PULSAR[POLICIES])
    await pulsar.delete(pulsar_paths.local_policies("t/new"))
    assert "t/new" not in pulsar.view.namespaces


async def test_namespaces_and_reports_of_the_first_form_are_taken_in(world: MemoryWorld) -> None:
    old = f"t/c1/old/{LOWER}"
    heartbeat = "pulsar/c1/b1:8080/0x00000000_0xffffffff"
    more = {
        "/admin/local-policies/t/c1": b"",
        pulsar_paths.local_policies("t/c1/old"): PULSAR[POLICIES],
        pulsar_paths.owner(old): {"brokerId": "b1:8080"},
        pulsar_paths.owner(heartbeat): {"brokerId": "b1:8080"},
        "/namespace/pulsar/c1/b2:8080": b"",
        paths.broker(B1): broker(B1, {BUNDLE: 1.0, old: 2.0, heartbeat: 0.0}),
    }
    async with beside(world, {**PULSAR, **more}) as pulsar:
        assert pulsar.view.faults == {}
        assert len(pulsar.view.get_namespace("t/c1/old").state.bundles) == 2
        assert pulsar.intake.owners[old] == pulsar.view.registrations[B1]
        assert heartbeat not in pulsar.intake.owners
        assert pulsar.view.operator_config.anti_affinity == {NAMESPACE: "g1", "t/c1/old": "g1"}
        snapshot = pulsar.view.model.snapshot(time.time(), 0.0)
        assert snapshot.bundles.movable[snapshot.bundles.names.index(old)]
        await pulsar.delete(pulsar_paths.local_policies("t/c1/old"))
        assert len(pulsar.view.get_namespace("t/c1/old").state.bundles) == 1


async def test_a_broker_that_publishes_no_load_is_said_and_offered_to_nobody(pulsar: Beside) -> None:
    extensible = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
    record = {"webServiceUrl": "http://b3:8080", "loadManagerClassName": extensible, "brokerVersion": "5.0.0"}
    path = paths.broker("b3:8080")
    await pulsar.put(path, record)
    pulsar.intake.mark_dirty(path)
    await pulsar.read()
    assert pulsar.view.faults == {path: f"{path}: publishes no load in ZooKeeper: ModularLoadManagerImpl is needed"}
    assert pulsar.intake.load_managers[BrokerId("b3:8080")] == extensible
    assert pulsar.view.model.snapshot(0.0, 0.0).brokers.ids == (B1, B2)


async def test_what_pulsars_admins_lay_down_is_followed(pulsar: Beside) -> None:
    await pulsar.put(DOMAIN, {"brokers": ["b1:8080", "b2:8080"]})
    await pulsar.put("/admin/clusters/c1/failureDomain/d2", {"brokers": []})
    assert set(pulsar.view.operator_config.failure_domains) == {"d1", "d2"}
    await pulsar.delete(DOMAIN, ISOLATION)
    assert set(pulsar.view.operator_config.failure_domains) == {"d2"}
    assert pulsar.view.operator_config.isolation == {}
    assert not pulsar.view.model.snapshot(0.0, 0.0).policies.has_policy("other/ns")
    await pulsar.put(pulsar_paths.READ_ONLY, b"")
    assert pulsar.intake.is_read_only
    await pulsar.delete(pulsar_paths.READ_ONLY)
    assert not pulsar.intake.is_read_only
    await pulsar.delete(paths.LEADER)
    assert pulsar.intake.pulsars_leader is None


async def test_dynamic_configuration_holds_and_what_cannot_be_used_is_said(pulsar: Beside) -> None:
    path = "/admin/configuration"
    await pulsar.put(path, {"loadBalancerSheddingIntervalMinutes": "3"})
    assert pulsar.intake._live.current.load_balancer_shedding_interval_minutes == 3
    await pulsar.put(path, {"loadBalancerSheddingIntervalMinutes": "x"})
    assert "loadBalancerSheddingIntervalMinutes" in pulsar.view.faults[path]
    await pulsar.delete(path)
    assert (pulsar.view.faults, pulsar.intake.dynamic) == ({}, {})


@pytest.mark.parametrize(
    ("name", "clusters", "fault"),
    [
        (None, ["c1", "c2"], "which cluster is it?: clusterName is one of: c1, c2"),
        ("c3", ["c1", "global"], "no cluster 'c3': clusterName is one of: c1"),
        (None, [], "no cluster is there: policies that a Pulsar keeps in a configuration store are not read"),
    ],
)
async def test_of_which_cluster_the_policies_are_has_to_be_known(
    world: MemoryWorld, name: str | None, clusters: list[str], fault: str
) -> None:
    znodes: dict[str, object] = {f"/admin/clusters/{each}": {} for each in clusters}
    async with beside(world, znodes, name) as pulsar:
        assert pulsar.view.faults == {"/admin/clusters": f"/admin/clusters: {fault}"}
        assert pulsar.view.is_fresh


async def test_a_named_cluster_is_one_of_several(world: MemoryWorld) -> None:
    async with beside(world, {**PULSAR, "/admin/clusters/c2": {}}, "c1") as pulsar:
        assert list(pulsar.view.operator_config.isolation) == ["p"]
        assert pulsar.view.faults == {}


async def test_the_history_that_pulsars_leader_has_is_taken_over_once(pulsar: Beside) -> None:
    await pulsar.intake.seeded.wait()
    assert pulsar.view.model.count_samples(BUNDLE) == (10, 412)
    await pulsar.put(paths.broker(B1), broker(B1, {BUNDLE: 3.0}))
    assert pulsar.view.model.count_samples(BUNDLE) == (10, 413)
    assert pulsar.view.model.count_samples(OTHER) == (1, 1)


async def test_history_that_cannot_be_read_is_left_out(world: MemoryWorld) -> None:
    async with beside(world, {**PULSAR, paths.bundle_data(BUNDLE): b"{", paths.bundle_data(OTHER): HISTORY}) as pulsar:
        await pulsar.intake.seeded.wait()
        assert pulsar.view.model.count_samples(BUNDLE) == (1, 1)
        assert pulsar.view.model.count_samples(OTHER) == (10, 412)


async def test_history_is_read_when_the_store_answers_again(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.initial_averages._AT_A_TIME", 1)
    monkeypatch.setattr("loadmanager.pulsar.initial_averages._PAUSE_S", 0.01)
    async with beside(world) as pulsar:
        world.cluster.partition(in_memory(pulsar.own), noticed=True)
        await asyncio.sleep(0.05)
        world.cluster.heal(in_memory(pulsar.own))
        await pulsar.intake.seeded.wait()
        assert pulsar.view.model.count_samples(BUNDLE) == (10, 412)


class Told(ReadOnlyStore):
    """Watches are in force, and say something, when the test has it so."""

    __slots__ = ("said_of", "session")
    session: Callable[[SessionState], None]

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.said_of: dict[str, Callable[[str], None]] = {}

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        self.said_of[path] = on_change
        return lambda: None

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        self.session = callback
        return lambda: None


async def test_the_view_is_whole_once_the_last_of_the_watches_is_in_force_and_not_before(pulsar: Beside) -> None:
    told = Told(pulsar.own)
    async with looking(told, awaited=False) as (view, intake, _):
        await eventually(lambda: len(told.said_of) == len(WATCHED))
        first_look = asyncio.create_task(intake.settled())
        for path in [*GOOD, *WATCHED[:-1]]:
            told.said_of[WATCHED[0]](path)
        await asyncio.sleep(0.02)
        assert not first_look.done()
        told.said_of[WATCHED[-1]](WATCHED[-1])
        await first_look
        assert view.is_fresh
        assert state_of(view, intake) == state_of(pulsar.view, pulsar.intake)
        told.session(SessionState.SUSPENDED)
        assert not view.is_fresh
        told.session(SessionState.CONNECTED)
        for path in [*GOOD, *WATCHED[:-1]]:
            told.said_of[WATCHED[0]](path)
        await intake.settled()
        assert not view.is_fresh
        told.said_of[WATCHED[-1]](WATCHED[-1])
        await intake.settled()
        assert view.is_fresh


async def test_while_the_leader_and_settings_change_the_view_stays_whole(pulsar: Beside) -> None:
    for path in (paths.LEADER, pulsar_paths.DYNAMIC_CONFIGURATION):
        pulsar.intake.mark_dirty(path)
        assert pulsar.view.is_fresh
    pulsar.intake.mark_dirty(pulsar_paths.LOCAL_POLICIES)
    assert not pulsar.view.is_fresh
    await eventually(lambda: pulsar.view.is_fresh)


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_after_a_disconnection_everything_is_read_again(
    world: MemoryWorld, pulsar: Beside, *, is_noticed: bool
) -> None:
    world.cluster.partition(in_memory(pulsar.own), noticed=is_noticed)
    await asyncio.sleep(0)
    if is_noticed:
        await eventually(lambda: not pulsar.view.is_fresh)
    await write(pulsar.store, pulsar_paths.owner(BUNDLE), b'{"brokerId": "b2:8080"}')
    await pulsar.store.commit([Delete(paths.broker(B1)), Delete(pulsar_paths.owner(OTHER)), Delete(POLICIES)])
    await pulsar.store.commit([Create(POLICIES, json.dumps(PULSAR[POLICIES]).encode())])
    world.cluster.heal(in_memory(pulsar.own))
    await eventually(lambda: pulsar.view.is_fresh and pulsar.owner(BUNDLE) == B2)
    assert pulsar.owner(OTHER) is None
    assert set(pulsar.view.registrations) == {B2}


CUTS = [["0x00000000", "0x80000000", "0xffffffff"], ["0x00000000", "0x40000000", "0x80000000", "0xffffffff"]]
OWNED = [f"t/ns/{own}" for own in (WHOLE, LOWER, UPPER, *QUARTERS)] + [f"t/c1/old/{LOWER}", f"t/c1/old/{UPPER}"]
GOOD: dict[str, list[object]] = {
    **{pulsar_paths.owner(name): [{"brokerId": "b1:8080"}, {"httpUrl": "http://b2:8080"}] for name in OWNED},
    **{
        paths.broker(name): [broker(name, {OWNED[1]: 1.0}), broker(name, dict.fromkeys(OWNED[2:4], 2.0))]
        for name in (B1, B2)
    },
    **{
        pulsar_paths.local_policies(name): [
            {"bundles": {"boundaries": CUTS[0]}, "namespaceAntiAffinityGroup": "g"},
            {"bundles": {"boundaries": CUTS[1]}},
        ]
        for name in ("t/ns", "t/c1/old")
    },
    ISOLATION: [PULSAR[ISOLATION], {}],
    DOMAIN: [{"brokers": ["b1:8080"]}, {"brokers": []}],
    paths.LEADER: [{"brokerId": "b1:8080"}, {"serviceUrl": "http://b2:8080"}],
    "/admin/configuration": [{"loadBalancerSheddingIntervalMinutes": "2"}, {"other": "x"}],
    pulsar_paths.READ_ONLY: [{}, {}],
}
"""Of each path what may be there."""

CHANGES = st.tuples(st.sampled_from(sorted(GOOD)), st.sampled_from(["first", "second", "garbage", "nothing", "again"]))
FATES = st.sampled_from(["cut off", "cut off unnoticed", "healed", "expired", "a while", "owner now"])


@given(events=st.lists(CHANGES | FATES, min_size=5, max_size=60), seed=st.integers(0, 2**32))
def test_whatever_changed_in_whatever_order_the_view_is_in_the_end_what_a_fresh_look_gives(
    events: list[tuple[str, str] | str], seed: int
) -> None:
    asyncio.run(follow(events, random.Random(seed)))


async def follow(events: list[tuple[str, str] | str], chance: random.Random) -> None:
    world = MemoryWorld(MemoryCluster(now_s, lambda: chance.choice(TURNS)))
    async with beside(world, {"/admin/clusters/c1": {}}) as pulsar:
        for event in events:
            if isinstance(event, tuple):
                await change(pulsar.store, *event)
            else:
                await suffer(world, pulsar, event, chance)
        world.cluster.heal(in_memory(pulsar.own))
        for path in GOOD:
            if find(await pulsar.store.get(path)) == b"{":
                await change(pulsar.store, path, "first")
        await pulsar.read()
        async with beside(world, {}) as fresh:
            assert pulsar.view.faults == fresh.view.faults == {}
            assert state_of(pulsar.view, pulsar.intake) == state_of(fresh.view, fresh.intake)
            assert pulsar.view.is_fresh
        assert all(name_of(each.before) != name_of(each.after) for each in pulsar.sighted)


async def change(store: MetadataStore, path: str, to: str) -> None:
    there = await store.get(path)
    if to in ("nothing", "again") and there is not None:
        await store.commit([Delete(path)])
    if to == "again" and there is not None:
        await write(store, path, there.data)
    elif to == "garbage":
        await write(store, path, b"{")
    elif to in ("first", "second"):
        await write(store, path, json.dumps(GOOD[path][to == "second"]).encode())


async def suffer(world: MemoryWorld, pulsar: Beside, fate: str, chance: random.Random) -> None:
    match fate:
        case "cut off" | "cut off unnoticed":
            world.cluster.partition(in_memory(pulsar.own), noticed=fate == "cut off")
        case "healed":
            world.cluster.heal(in_memory(pulsar.own))
        case "expired":
            world.cluster.expire(in_memory(pulsar.own))
        case "owner now":
            with contextlib.suppress(LoadManagerError):
                await pulsar.intake.owner_now(BundleName.parse(chance.choice(OWNED[:5])))
        case _:
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            await asyncio.sleep(chance.choice([0.0, 0.003]))


def find(znode: Znode | None) -> bytes | None:
    return None if znode is None else znode.data


def name_of(owner: Registration | None) -> BrokerId | None:
    return None if owner is None else owner.broker
