from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.delays import a_memory_cluster
from support.fake_pulsar import FakePulsar
from support.memory_store import MemoryStore
from support.nodes import in_memory
from support.pulsar_harness import NAMESPACE, NEVER, Harness, change_load_manager, delete_leader, pulsar_harness, said
from support.stores import read_all_znodes
from support.waiting import eventually

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.reasons import GuardrailReason, OwnershipReason
from loadmanager.errors import ConflictError, UnloadFailedError
from loadmanager.pulsar.guardrail_facts import GuardrailError
from loadmanager.pulsar.pulsar_service import PulsarService
from loadmanager.wire.plan_bodies import PlanRequest

BUNDLES = 8
OFTEN = {**NEVER, "loadBalancerSheddingIntervalMinutes": "0.002", "minUnloadMessageThroughput": "0"}
"""A round each tenth of a second."""


@pytest.fixture
async def harness(tmp_path: Path, measured_hosts: None) -> AsyncIterator[Harness]:
    """Eight bundles, as busy as each other, all on the first of three brokers."""
    del measured_hosts
    async with pulsar_harness(tmp_path, bundles=BUNDLES) as harness:
        for text in (await harness.pulsar.bundles(NAMESPACE)).range_texts():
            harness.pulsar.load(f"{NAMESPACE}/{text}", 100.0, bytes_each=100 * 1024.0)
        await harness.pulsar.report()
        yield harness


async def counts(pulsar: FakePulsar) -> list[int]:
    """Count the bundles of each broker."""
    return [len(await broker.owned()) for broker in pulsar.brokers]


def commands(pulsar: FakePulsar) -> list[str]:
    """Return the requests to Pulsar that change something."""
    return [asked.path for asked in pulsar.asked if asked.method != "GET"]


async def move_one(harness: Harness, node: PulsarService) -> None:
    """Have a bundle moved from the first broker to the second."""
    first, second, _ = harness.pulsar.brokers
    bundle = BundleName.parse((await first.owned())[0])
    await node.executor.unload(bundle, node.mirror.registrations[second.broker_id], OwnershipReason.ADMIN_UNLOAD)


# Observe


async def test_observing_plans_and_changes_nothing_of_pulsar(harness: Harness) -> None:
    before = await read_all_znodes(harness.pulsar.operator)
    node = await harness.leader(mode="observe", state_store_url="", overrides=OFTEN)
    await eventually(lambda: node.shedding.rounds >= 3 and bool(said(node, "would_unload")))
    assert commands(harness.pulsar) == []
    assert await read_all_znodes(harness.pulsar.operator) == before
    (stop, *_) = said(node, "guardrail")
    assert (stop["subject"], stop["reason"]) == ("cluster", "mode_is_observe")
    status = node.status()
    assert (status.mode, status.leading, status.acting, status.stopped) == ("observe", True, False, False)
    (obstacle,) = status.obstacles
    assert obstacle.startswith("No move because mode is observe")


async def test_orders_are_refused_while_observing(harness: Harness) -> None:
    node = await harness.leader(mode="observe")
    first = harness.pulsar.brokers[0].broker_id
    plan = await node.plans.compute(PlanRequest(kind="drain", broker=first))
    assert len(plan.steps) == BUNDLES
    with pytest.raises(ConflictError, match=r"mode is observe.*start this process with mode: act"):
        await node.plans.execute(plan.hash, even_if_frozen=False)
    with pytest.raises(ConflictError, match="a plan of kind drain shows what it would take"):
        await node.drains.start(first)
    assert commands(harness.pulsar) == []


# Act


async def reports_until(harness: Harness, has_happened: Callable[[], Awaitable[bool]]) -> None:
    """Brokers report each moment, as moves wait for reports that are younger than those before."""

    async def after_a_report() -> bool:
        await harness.pulsar.report()
        return await has_happened()

    await eventually(after_a_report)


async def test_acting_levels_brokers_by_requests_to_pulsar(harness: Harness) -> None:
    node = await harness.leader(overrides=OFTEN)

    async def is_level() -> bool:
        return max(await counts(harness.pulsar)) <= BUNDLES // 2 and not (await harness.move_history()).in_progress

    await reports_until(harness, is_level)
    assert sum(await counts(harness.pulsar)) == BUNDLES, "somebody owns each of them"
    moved = {each["subject"] for each in said(node, "unload")}
    assert moved
    assert all(any(f"{bundle}/unload?" in path for path in commands(harness.pulsar)) for bundle in moved)
    assert all("destinationBroker" in path for path in commands(harness.pulsar))
    assert node.status().acting


async def sheds(pulsar: FakePulsar) -> None:
    await pulsar.set_dynamic({"loadBalancerAutoBundleSplitEnabled": "false"})


async def splits(pulsar: FakePulsar) -> None:
    await pulsar.set_dynamic({"loadBalancerSheddingEnabled": "false"})


@pytest.mark.parametrize(
    ("what", "reason", "sentence"),
    [
        (sheds, GuardrailReason.PULSAR_SHEDS, "Pulsar's own shedding is on at 3 of 3 brokers"),
        (splits, GuardrailReason.PULSAR_SPLITS, "Pulsar's own splits are on at 3 of 3 brokers"),
        (
            change_load_manager,
            GuardrailReason.LOAD_MANAGER_UNKNOWN,
            "1 of 3 brokers run an unknown load manager",
        ),
        (delete_leader, GuardrailReason.PULSAR_HAS_NO_LEADER, "none of Pulsar's 3 registered brokers leads"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_obstacle_to_acting_is_in_status_and_decisions(
    harness: Harness, what: Callable[[FakePulsar], Awaitable[None]], reason: GuardrailReason, sentence: str
) -> None:
    await what(harness.pulsar)
    node = await harness.leader(overrides=OFTEN)
    await eventually(lambda: any(sentence in each["sentence"] for each in said(node, "guardrail")))
    await eventually(lambda: bool(said(node, "would_unload")))
    (stop,) = said(node, "guardrail")
    assert (stop["subject"], stop["reason"], stop["acted"]) == ("cluster", reason.value, False)
    assert sentence in said(node, "would_unload")[0]["sentence"]
    status = node.status()
    assert not status.acting
    assert [each for each in status.obstacles if sentence in each]
    assert commands(harness.pulsar) == []


async def test_excluded_namespace_is_not_moved(harness: Harness) -> None:
    node = await harness.leader(overrides=OFTEN, excluded_namespaces=("lm/.*",))
    await eventually(lambda: node.shedding.rounds >= 3)
    with pytest.raises(GuardrailError, match=f"{NAMESPACE} is excluded by lm/"):
        await move_one(harness, node)
    assert node.status().acting, "other namespaces are moved"
    assert commands(harness.pulsar) == []


async def test_moves_per_hour_are_limited(harness: Harness) -> None:
    node = await harness.leader(overrides=OFTEN, moves_per_hour=1)
    await eventually(lambda: any(each["reason"] == "hourly_limit_reached" for each in said(node, "guardrail")))
    await eventually(lambda: node.executor.unloads_completed == 1)
    assert len(commands(harness.pulsar)) == 1
    assert not node.status().acting
    assert "1 moves began within the hour (movesPerHour 1)" in node.status().obstacles[0]


async def test_freeze_and_dry_run_are_effective(harness: Harness) -> None:
    node = await harness.leader(overrides=NEVER, mode="observe")
    await node.operators.update_controls(lambda controls: replace(controls, dry_run=True))
    await node.stop()
    node = await harness.leader(overrides=NEVER)
    await node.shedding.run_round()
    assert said(node, "would_unload")
    assert said(node, "guardrail") == [], "nothing but the operator stops it"
    await node.operators.update_controls(lambda controls: replace(controls, dry_run=False, frozen="an upgrade"))
    assert (await node.shedding.run_round()).steps == ()
    assert commands(harness.pulsar) == []
    await node.operators.update_controls(lambda controls: replace(controls, frozen=""))
    await node.shedding.run_round()
    assert commands(harness.pulsar) != []


async def test_controls_are_kept_for_the_next_process(harness: Harness) -> None:
    one = await harness.leader()
    first, _, third = harness.pulsar.brokers
    bundle = (await first.owned())[0]
    await one.operators.update_controls(lambda controls: replace(controls, pinned={bundle: third.broker_id}))
    await one.stop()
    await harness.leader()

    async def is_home() -> bool:
        return await harness.pulsar.owner(bundle) == third.broker_id

    await eventually(is_home)


async def test_readiness_names_the_unreachable_store(tmp_path: Path) -> None:
    cluster = a_memory_cluster()
    async with pulsar_harness(tmp_path) as harness:
        harness.connect = in_memory(cluster)
        node = await harness.leader()
        assert node.why_not_ready() is None
        assert isinstance(node.store, MemoryStore)
        cluster.partition(node.store, noticed=True)
        await eventually(lambda: (node.why_not_ready() or "").startswith("stateStoreUrl: the session with ZooKeeper"))
        cluster.heal(node.store)
        await eventually(lambda: node.why_not_ready() is None)


# One after the other


async def fails(harness: Harness, node: PulsarService) -> None:
    """One move, which Pulsar refuses."""
    with pytest.raises(UnloadFailedError):
        await move_one(harness, node)


async def test_standby_takes_over_and_finishes_moves_of_an_expired_leader(
    tmp_path: Path,
) -> None:
    cluster = a_memory_cluster()
    async with pulsar_harness(tmp_path, bundles=BUNDLES) as harness:
        harness.connect = in_memory(cluster)
        harness.store = await harness.connect()
        one = await harness.leader()
        other = await harness.start()
        assert not other.is_leading
        with pytest.raises(Exception, match="lead"):
            other.must_lead()
        harness.pulsar.faults.refuse("/unload", 412)
        await fails(harness, one)
        harness.pulsar.faults.hold("/unload")
        drained = harness.pulsar.brokers[0]
        await one.drains.start(drained.broker_id)
        await eventually(lambda: any("/unload" in path for path in commands(harness.pulsar)[1:]))
        assert isinstance(one.store, MemoryStore)
        cluster.partition(one.store, noticed=False)
        cluster.expire(one.store)
        await eventually(lambda: other.is_leading and not other.actuator.move_log.open_moves)
        assert said(other, "repair"), "what was under way is seen through"

        async def is_drained() -> bool:
            """And somebody owns each of the bundles."""
            return await drained.owned() == [] and sum(await counts(harness.pulsar)) == BUNDLES

        await eventually(is_drained)
        cluster.heal(one.store)


async def test_failures_and_moves_of_the_hour_survive_a_restart(harness: Harness) -> None:
    one = await harness.leader(moves_per_hour=2)
    await harness.pulsar.report()
    await one.shedding.run_round()
    assert len((await harness.move_history()).began_s) == 2
    harness.pulsar.faults.refuse("/unload", 412, times=2)
    await fails(harness, one)
    await fails(harness, one)
    await one.stop()
    again = await harness.leader(moves_per_hour=2)
    assert (again.status().failures, again.status().stopped) == (2, False)
    assert "2 moves began within the hour (movesPerHour 2)" in again.status().obstacles[0]
    harness.pulsar.faults.refuse("/unload", 412)
    await fails(harness, again)
    assert (again.status().failures, again.status().stopped) == (3, True)
    await again.stop()
    third = await harness.leader()
    assert third.status().stopped
    await third.resume()
    assert third.status().obstacles == []
