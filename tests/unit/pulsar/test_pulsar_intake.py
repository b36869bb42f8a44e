from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from support.fake_pulsar import EXTENSIBLE, FakePulsar, PulsarBroker
from support.pulsar_harness import NEVER, Harness, move, pulsar_harness
from support.registrations import write
from support.stores import MemoryWorld
from support.waiting import eventually, patience

from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.core.diagnosis.pulsar_comparison import Sighted
from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.errors import UnloadFailedError
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.pulsar import pulsar_intake, report_dates
from loadmanager.pulsar.broker_settings import BrokerSettingsPoll, PulsarSettings
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.pulsar_intake import PulsarIntake
from loadmanager.pulsar.rest_call import PulsarUnreachableError
from loadmanager.store import paths

NAMESPACE = "lm/bench"


class Poll:
    """An intake, its mirror, and what it tells."""

    def __init__(self, pulsar: FakePulsar, admin: PulsarAdmin, live: PulsarSettings) -> None:
        self.pulsar = pulsar
        self.mirror = ClusterMirror()
        self.moved: list[Sighted] = []
        self.intake = PulsarIntake(
            admin, BrokerSettingsPoll(admin), self.mirror, live, 0.02, lambda: None, self.moved.append
        )

    def owner(self, bundle: str) -> str | None:
        ownership = self.mirror.find_ownership(bundle)
        return None if ownership is None or ownership.owner is None else ownership.owner.broker


@contextlib.asynccontextmanager
async def polling(pulsar: FakePulsar) -> AsyncIterator[Poll]:
    urls = pulsar.urls[:1]
    async with PulsarAdmin(urls, timeout_s=patience()) as admin:
        live = PulsarSettings(await admin.settings(urls[0]), PulsarServiceSettings(admin_urls=tuple(urls)))
        poll = Poll(pulsar, admin, live)
        task = asyncio.create_task(poll.intake.run())
        try:
            await poll.intake.settled()
            yield poll
        finally:
            task.cancel()
            await asyncio.wait({task})


@pytest.fixture(params=["modular", "extensible"])
async def loaded(world: MemoryWorld, request: pytest.FixtureRequest) -> AsyncIterator[FakePulsar]:
    """Three brokers; the first owns four bundles, each with 100 messages a second of 1 KiB in and out."""
    async with FakePulsar(world) as pulsar:
        pulsar.extensible = request.param == "extensible"
        for bundle in await pulsar.add_namespace(NAMESPACE, 4, [pulsar.brokers[0].broker_id]):
            pulsar.load(bundle, 100.0)
        await pulsar.report()
        yield pulsar


async def test_one_address_suffices_to_mirror_a_cluster(loaded: FakePulsar) -> None:
    async with polling(loaded) as poll:
        first, *_ = [each.broker_id for each in loaded.brokers]
        assert sorted(poll.mirror.registrations) == sorted(each.broker_id for each in loaded.brokers)
        assert poll.mirror.is_fresh
        assert poll.mirror.faults == {}
        assert set(map(poll.owner, poll.intake.owners)) == {first}
        assert poll.intake.pulsars_leader == first
        assert EXTENSIBLE.endswith(poll.intake.load_manager(first).rpartition(".")[2]) is loaded.extensible
        snapshot = poll.mirror.model.snapshot(0.0, 1e9)
        row = snapshot.brokers.ids.index(first)
        assert snapshot.brokers.load[row].sum() == pytest.approx(2 * 4 * 100.0 * (1 + 1024.0))
        assert {asked.method for asked in loaded.asked} == {"GET"}


async def test_unowned_bundles_with_clients_are_named(loaded: FakePulsar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulsar_intake, "_UNSERVED_AFTER_S", 0.0)
    quiet, *_ = await loaded.add_namespace("lm/quiet", 1, [loaded.brokers[0].broker_id])
    async with polling(loaded) as poll:
        first, second = list(poll.intake.owners)[:2]
        await poll.intake.settled()
        for bundle in (first, second, quiet):
            await loaded.brokers[0].release(bundle)
        await eventually(lambda: poll.mirror.ownerless == sorted([first, second]))
        assert poll.owner(quiet) is None
        await loaded.brokers[1].acquire(first)
        await eventually(lambda: poll.mirror.ownerless == [second])
        monkeypatch.undo()
        await eventually(lambda: poll.mirror.ownerless == [], "not for a minute yet")


async def test_bundle_whose_owner_refuses_clients_is_named(loaded: FakePulsar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulsar_intake, "_UNSERVED_AFTER_S", 0.0)
    monkeypatch.setattr(pulsar_intake, "TOPICS_S", 0.0)
    async with polling(loaded) as poll:
        await poll.intake.settled()
        stuck, left = list(poll.intake.owners)[:2]
        assert not [each for each in loaded.asked if "/lookup" in each.path]
        loaded.faults.refuse("/lookup", 500, times=1_000)
        load = loaded.loads.pop(stuck)
        await loaded.report()
        await eventually(lambda: poll.mirror.ownerless == [stuck])
        loaded.loads[stuck] = load
        await loaded.report()
        await eventually(lambda: poll.mirror.ownerless == [])
        loaded.faults.forgive()
        loaded.asked.clear()
        del loaded.loads[left]
        await loaded.report()
        await eventually(lambda: [each for each in loaded.asked if "/lookup" in each.path])
        await poll.intake.settled()
        await poll.intake.settled()
        assert len([each for each in loaded.asked if "/lookup" in each.path]) == 1, "an answer ends the doubt"
        assert poll.mirror.ownerless == []


@pytest.mark.usefixtures("measured_hosts")
async def test_moved_bundle_keeps_its_rates_until_its_new_owner_has_measured_them(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_intake, "TOPICS_S", 0.0)
    async with FakePulsar(world) as pulsar:
        pulsar.extensible = True
        (bundle,) = await pulsar.add_namespace(NAMESPACE, 1, [pulsar.brokers[0].broker_id])
        pulsar.load(bundle, 100.0)
        async with polling(pulsar) as poll:
            owner = pulsar.brokers[1].broker_id
            await pulsar.move(bundle, owner)
            pulsar.load(bundle, 0.0, topics=3)
            await eventually(lambda: poll.owner(bundle) == owner)
            for _ in range(3):
                await poll.intake.settled()
            load = await reported_load(poll, owner, bundle)
            assert (load["msgRateIn"], load["msgThroughputOut"], load["producerCount"]) == (100.0, 102_400.0, 3)
            monkeypatch.setattr(report_dates, "TOPICS_MEASURED_S", 0.0)
            await poll.intake.settled()
            assert (await reported_load(poll, owner, bundle))["msgRateIn"] == 0.0


async def test_cpu_from_before_a_move_is_not_reported(loaded: FakePulsar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulsar_intake, "TOPICS_S", 0.0)
    source, destination, _ = loaded.brokers
    source.cpu, destination.cpu = 50.0, 2.0
    await loaded.report()
    async with polling(loaded) as poll:

        async def reported_cpu(broker: PulsarBroker, cpu: float) -> float:
            broker.cpu = cpu
            await loaded.report()
            for _ in range(2):
                await poll.intake.settled()
            brokers = poll.mirror.model.snapshot(0.0, 1e9).brokers
            return round(float(brokers.usage_percent[brokers.ids.index(broker.broker_id), 0]), 3)

        bundle = next(iter(poll.intake.owners))
        await loaded.move(bundle, destination.broker_id)
        await eventually(lambda: poll.owner(bundle) == destination.broker_id)
        assert await reported_cpu(destination, 2.0) == 2.0
        assert await reported_cpu(destination, 10.0) == 2.0, "averaged over a time that began before the move"
        assert await reported_cpu(destination, 20.0) == 20.0
        assert await reported_cpu(source, 40.0) == 50.0
        assert await reported_cpu(source, 30.0) == 30.0


async def reported_load(poll: Poll, broker: BrokerId, bundle: str) -> dict[str, float]:
    report = await poll.intake.find_report(paths.broker(broker))
    assert report is not None
    load: dict[str, float] = orjson.loads(report.data)["lastStats"][bundle]
    return load


async def doubtful(poll: Poll) -> str:
    """Have the owner of a bundle with clients lose its topics; the bundle."""
    await poll.intake.settled()
    bundle = next(iter(poll.intake.owners))
    del poll.pulsar.loads[bundle]
    await poll.pulsar.report()
    return bundle


def lookups(pulsar: FakePulsar) -> int:
    return sum("/lookup" in each.path for each in pulsar.asked)


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubt a bundle in the poll in which its topics are gone."""
    monkeypatch.setattr(pulsar_intake, "_UNSERVED_AFTER_S", 0.0)
    monkeypatch.setattr(pulsar_intake, "TOPICS_S", 0.0)


@pytest.mark.usefixtures("_at_once")
async def test_held_lookup_counts_as_refusal_before_the_timeout(loaded: FakePulsar) -> None:
    async with polling(loaded) as poll:
        loaded.faults.hold("/lookup", times=1_000)
        bundle = await doubtful(poll)
        async with asyncio.timeout(patience() / 2):
            await eventually(lambda: poll.mirror.ownerless == [bundle])
        assert poll.mirror.is_fresh


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("body", [b"", b"{", b'{"httpUrl": "http://["}'])
async def test_unusable_lookup_answer_keeps_the_bundle_state(loaded: FakePulsar, body: bytes) -> None:
    async with polling(loaded) as poll:
        loaded.faults.refuse("/lookup", 500)
        loaded.faults.answer("/lookup", 200, body, times=1_000)
        bundle = await doubtful(poll)
        await eventually(lambda: lookups(loaded) > 2)
        await poll.intake.settled()
        assert poll.mirror.ownerless == [bundle]
        assert poll.mirror.is_fresh
        loaded.faults.forgive()
        await eventually(lambda: poll.mirror.ownerless == [])


@pytest.mark.usefixtures("_at_once")
async def test_lookup_that_reaches_no_broker_is_repeated(loaded: FakePulsar, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = []

    async def look_up(*_: object) -> None:
        fresh.append(poll.mirror.is_fresh)
        loaded.faults.refuse("/ownedNamespaces", 500, times=1_000, at=loaded.brokers[2].broker_id)
        raise PulsarUnreachableError("no connection", was_not_heard=True)

    async with polling(loaded) as poll:
        monkeypatch.setattr(PulsarAdmin, "look_up", look_up)
        await doubtful(poll)
        await eventually(lambda: len(fresh) > 2)
        assert fresh[:2] == [True, False], "the poll tells what it found before it looks up"
        assert poll.mirror.ownerless == []


async def test_move_by_pulsar_is_announced(loaded: FakePulsar) -> None:
    async with polling(loaded) as poll:
        bundle, to = next(iter(poll.intake.owners)), loaded.brokers[1].broker_id
        await loaded.move(bundle, to)
        await poll.intake.settled()
        assert poll.owner(bundle) == to
        assert [(each.bundle, each.after and each.after.broker) for each in poll.moved][-1] == (bundle, to)


async def test_silent_broker_keeps_its_bundles(loaded: FakePulsar) -> None:
    async with polling(loaded) as poll:
        first = loaded.brokers[0].broker_id
        loaded.faults.refuse("/ownedNamespaces", 500, times=1_000, at=first)
        await eventually(lambda: not poll.mirror.is_fresh)
        assert first in poll.intake.fault
        assert paths.broker(first) in poll.mirror.faults
        assert set(map(poll.owner, poll.intake.owners)) == {first}
        loaded.faults.forgive()
        await eventually(lambda: poll.mirror.is_fresh and not poll.mirror.faults)


async def test_departed_broker_owns_nothing(loaded: FakePulsar) -> None:
    async with polling(loaded) as poll:
        before_s = poll.intake.changed_s
        bundles, first = list(poll.intake.owners), loaded.brokers[0]
        last = loaded.brokers[2]
        await loaded.kill(last)
        await eventually(lambda: len(poll.mirror.registrations) == 2)
        assert poll.intake.changed_s > before_s
        assert set(map(poll.owner, bundles)) == {first.broker_id}
        assert await poll.intake.find_report(paths.broker(last.broker_id)) is None


async def test_split_and_new_namespace_are_seen_with_the_next_poll(loaded: FakePulsar) -> None:
    async with polling(loaded) as poll:
        first = loaded.brokers[0]
        await loaded.add_namespace("lm/new", 2, [first.broker_id])
        await poll.intake.settled()
        assert len(poll.mirror.namespaces["lm/new"].state.ownerships) == 2
        await loaded.cut("lm/new", [0, 1 << 30, 1 << 31, 0xFFFFFFFF])
        await poll.intake.read_bundles("lm/new")
        assert len(poll.mirror.namespaces["lm/new"].state.ownerships) == 3


async def test_policies_of_the_cluster_are_read(pulsar: FakePulsar) -> None:
    cluster = f"/admin/clusters/{pulsar.cluster}"
    policy: dict[str, object] = {"namespaces": ["lm/.*"], "primary": ["127.0.0.21"], "secondary": []}
    policy |= {"auto_failover_policy": {"policy_type": "min_available", "parameters": {}}}
    await write(pulsar.operator, f"{cluster}/namespaceIsolationPolicies", orjson.dumps({"p": policy}))
    await write(pulsar.operator, f"{cluster}/failureDomain/d1", b'{"brokers": ["b1:8080"]}')
    local = f"/admin/local-policies/{NAMESPACE}"
    content = {**await pulsar.content(local), "namespaceAntiAffinityGroup": "g1"}
    await write(pulsar.operator, local, orjson.dumps(content))
    async with polling(pulsar) as poll:
        assert poll.mirror.operator_config.anti_affinity == {NAMESPACE: "g1"}
        assert list(poll.mirror.operator_config.isolation) == ["p"]
        assert poll.mirror.model.policies.failure_domains == {"b1:8080": "d1"}
        assert poll.intake.policies_fault is None


async def test_unreadable_policies_are_reported(pulsar: FakePulsar) -> None:
    pulsar.faults.answer("/namespaceIsolationPolicies", 200, b'{"p": {"namespaces": 1}}')
    async with polling(pulsar) as poll:
        assert "namespaceIsolationPolicies" in (poll.intake.policies_fault or "")


async def test_invalid_dynamic_settings_are_listed(pulsar: FakePulsar) -> None:
    async with polling(pulsar) as poll:
        await pulsar.set_dynamic({"loadBalancerSheddingIntervalMinutes": "often"})
        await eventually(lambda: any("often" in fault for fault in poll.mirror.faults.values()))


async def test_missing_answer_is_reported_until_there_is_one(pulsar: FakePulsar) -> None:
    async with polling(pulsar) as poll:
        pulsar.faults.refuse("/admin/v2/brokers", 503, times=1_000)
        await eventually(lambda: "503" in poll.intake.fault)
        assert not poll.mirror.is_fresh
        pulsar.faults.forgive()
        await eventually(lambda: poll.mirror.is_fresh)


async def test_owner_is_read_from_the_candidate_brokers(loaded: FakePulsar) -> None:
    async with polling(loaded) as poll:
        bundle, (first, second, _) = next(iter(poll.intake.owners)), loaded.brokers
        name = BundleName.parse(bundle)
        await loaded.move(bundle, second.broker_id)
        found = await poll.intake.read_owner(name, second.broker_id, BrokerId("gone:1"))
        assert found is not None
        assert found.broker == second.broker_id
        await second.release(bundle)
        assert await poll.intake.read_owner(name, first.broker_id) is None


async def test_two_processes_see_the_same_incarnations(loaded: FakePulsar) -> None:
    async with polling(loaded) as first, polling(loaded) as second:
        assert first.mirror.registrations == second.mirror.registrations


async def test_extensible_broker_that_refused_a_connection_counts_as_restarted(
    loaded: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with polling(loaded) as poll:
        first, second, _ = (each.broker_id for each in loaded.brokers)
        before = dict(poll.mirror.registrations)
        owned, refusals = PulsarAdmin.owned, [PulsarUnreachableError("no connection", was_not_heard=True)]

        async def refuse_once(admin: PulsarAdmin, cluster: str, broker: BrokerId) -> list[str]:
            if broker == first and refusals:
                raise refusals.pop()
            return await owned(admin, cluster, broker)

        monkeypatch.setattr(PulsarAdmin, "owned", refuse_once)
        await eventually(lambda: not refusals)
        await poll.intake.settled()
        await poll.intake.settled()
        after = poll.mirror.registrations
        assert (after[first] != before[first]) is loaded.extensible
        assert after[second] == before[second]
        assert (poll.intake.changed_s > 0) is loaded.extensible
        assert all(poll.owner(bundle) == first for bundle in poll.intake.owners)


@pytest.fixture
async def extensible(tmp_path: Path) -> AsyncIterator[Harness]:
    async with pulsar_harness(tmp_path) as harness:
        harness.pulsar.extensible = True
        yield harness


async def test_move_under_the_extensible_manager_is_one_unload(extensible: Harness) -> None:
    node = await extensible.leader()
    extensible.pulsar.elects = False
    _, to, _ = extensible.pulsar.brokers
    done = await move(node, to)
    assert done.owner is not None
    assert done.owner.broker == to.broker_id
    changed = [each.path for each in extensible.pulsar.asked if each.method != "GET" or "/lookup/" in each.path]
    assert len({path.partition("?")[0] for path in changed}) == 1


async def test_move_that_lands_elsewhere_is_a_miss_and_no_failure(extensible: Harness) -> None:
    node = await extensible.leader(overrides=NEVER)
    bundle = next(iter(node.intake.owners))
    _, to, third = extensible.pulsar.brokers
    extensible.pulsar.lands[bundle] = third.broker_id
    with pytest.raises(UnloadFailedError, match=f"Landed on {third.broker_id}"):
        await move(node, to, bundle)
    status = node.status()
    assert (status.misses, status.failures, status.stopped) == (1, 0, False)


async def test_process_with_silent_brokers_is_not_ready(harness: Harness) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/load-report", 500, times=1_000)
    await eventually(lambda: "no complete answer from" in (node.why_not_ready() or ""))
