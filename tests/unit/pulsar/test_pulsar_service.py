from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.beside import NAMESPACE, NEVER, Beside, beside_pulsar, change_load_manager, delete_leader
from support.delays import a_memory_cluster
from support.fake_pulsar import FakePulsar
from support.nodes import in_memory
from support.stores import read_all_znodes
from support.waiting import eventually

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.reasons import GuardrailReason, OwnershipReason
from loadmanager.errors import ConflictError, UnloadFailedError
from loadmanager.pulsar.guardrail_facts import RailError
from loadmanager.pulsar.pulsar_service import BesideNode
from loadmanager.store.memory_store import MemoryStore
from loadmanager.wire.plan_bodies import PlanRequest

BUNDLES = 8
OFTEN = {**NEVER, "loadBalancerSheddingIntervalMinutes": "0.002", "minUnloadMessageThroughput": "0"}
"""A round each tenth of a second."""


@pytest.fixture
async def beside(tmp_path: Path) -> AsyncIterator[Beside]:
    """Eight bundles, as busy as each other, all on the first of three brokers."""
    async with beside_pulsar(tmp_path, bundles=BUNDLES) as beside:
        for text in (await beside.pulsar.bundles(NAMESPACE)).range_texts():
            beside.pulsar.load(f"{NAMESPACE}/{text}", 100.0, bytes_each=100 * 1024.0)
        await beside.pulsar.report()
        yield beside


async def counts(pulsar: FakePulsar) -> list[int]:
    """How many bundles each broker owns."""
    return [len(await broker.owned()) for broker in pulsar.brokers]


def commands(pulsar: FakePulsar) -> list[str]:
    """What was asked of Pulsar that changes something."""
    return [asked.path for asked in pulsar.asked if asked.method != "GET"]


async def move_one(beside: Beside, node: BesideNode) -> None:
    """Have a bundle moved from the first broker to the second."""
    first, second, _ = beside.pulsar.brokers
    bundle = BundleName.parse((await first.owned())[0])
    await node.executor.unload(bundle, node.view.registrations[second.broker_id], OwnershipReason.ADMIN_UNLOAD)


def said(node: BesideNode, kind: str) -> list[dict[str, Any]]:
    return [each for each in node.decision_log.recent(500) if each["kind"] == kind]


# Shadow


async def test_shadow_plans_and_changes_nothing_of_pulsars(beside: Beside) -> None:
    before = await read_all_znodes(beside.pulsar.operator)
    node = await beside.leader(mode="shadow", state_store_url="", overrides=OFTEN)
    await eventually(lambda: node.shedding.cycles >= 3 and bool(said(node, "would_unload")))
    assert commands(beside.pulsar) == []
    assert await read_all_znodes(beside.pulsar.operator) == before
    (stop, *_) = said(node, "rail")
    assert (stop["subject"], stop["reason"]) == ("cluster", "mode_is_shadow")
    status = node.status()
    assert (status.mode, status.leading, status.acting, status.stopped) == ("shadow", True, False, False)
    (obstacle,) = status.obstacles
    assert obstacle.startswith("No move because mode is shadow")


async def test_in_shadow_whatever_is_ordered_is_refused_in_a_sentence(beside: Beside) -> None:
    node = await beside.leader(mode="shadow")
    first = beside.pulsar.brokers[0].broker_id
    plan = await node.plans_to_order.compute(PlanRequest(kind="drain", broker=first))
    assert len(plan.steps) == BUNDLES
    with pytest.raises(ConflictError, match=r"mode is shadow.*start this process with mode: act"):
        await node.plans_to_order.execute(plan.hash, even_if_frozen=False)
    with pytest.raises(ConflictError, match="a plan of kind drain shows what it would take"):
        await node.drains_to_order.start(first)
    assert commands(beside.pulsar) == []


# Act


async def reports_until(beside: Beside, has_happened: Callable[[], Awaitable[bool]]) -> None:
    """Brokers report each moment, as moves wait for reports that are younger than those before."""

    async def after_a_report() -> bool:
        await beside.pulsar.report()
        return await has_happened()

    await eventually(after_a_report)


async def test_acting_ends_level_by_moves_that_pulsar_was_asked_for(beside: Beside) -> None:
    node = await beside.leader(overrides=OFTEN)

    async def is_level() -> bool:
        return max(await counts(beside.pulsar)) <= BUNDLES // 2 and not (await beside.acts()).under_way

    await reports_until(beside, is_level)
    assert sum(await counts(beside.pulsar)) == BUNDLES, "somebody owns each of them"
    moved = {each["subject"] for each in said(node, "unload")}
    assert moved
    assert all(any(f"{bundle}/unload?" in path for path in commands(beside.pulsar)) for bundle in moved)
    assert all("destinationBroker" in path for path in commands(beside.pulsar))
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
async def test_what_stops_acting_is_said_in_the_status_and_among_the_decisions(
    beside: Beside, what: Callable[[FakePulsar], Awaitable[None]], reason: GuardrailReason, sentence: str
) -> None:
    await what(beside.pulsar)
    node = await beside.leader(overrides=OFTEN)
    await eventually(lambda: any(sentence in each["sentence"] for each in said(node, "rail")))
    await eventually(lambda: bool(said(node, "would_unload")))
    (stop,) = said(node, "rail")
    assert (stop["subject"], stop["reason"], stop["acted"]) == ("cluster", reason.value, False)
    assert sentence in said(node, "would_unload")[0]["sentence"]
    status = node.status()
    assert not status.acting
    assert [each for each in status.obstacles if sentence in each]
    assert commands(beside.pulsar) == []


async def test_a_namespace_that_is_left_out_stays_where_it_is(beside: Beside) -> None:
    node = await beside.leader(overrides=OFTEN, excluded_namespaces=("lm/.*",))
    await eventually(lambda: node.shedding.cycles >= 3)
    with pytest.raises(RailError, match=f"{NAMESPACE} is left out by lm/"):
        await move_one(beside, node)
    assert node.status().acting, "other namespaces are moved"
    assert commands(beside.pulsar) == []


async def test_moves_of_an_hour_end_with_their_number(beside: Beside) -> None:
    node = await beside.leader(overrides=OFTEN, moves_per_hour=1)
    await eventually(lambda: any(each["reason"] == "hour_is_full" for each in said(node, "rail")))
    await eventually(lambda: node.executor.unloads_completed == 1)
    assert len(commands(beside.pulsar)) == 1
    assert not node.status().acting
    assert "1 moves began within the hour (movesPerHour 1)" in node.status().obstacles[0]


async def test_an_operators_freeze_and_dry_run_hold(beside: Beside) -> None:
    node = await beside.leader(overrides=NEVER, mode="shadow")
    await node.operators.update_controls(lambda controls: replace(controls, dry_run=True))
    await node.stop()
    node = await beside.leader(overrides=NEVER)
    await node.shedding.cycle()
    assert said(node, "would_unload")
    assert said(node, "rail") == [], "nothing but the operator stops it"
    await node.operators.update_controls(lambda controls: replace(controls, dry_run=False, frozen="an upgrade"))
    assert (await node.shedding.cycle()).steps == ()
    assert commands(beside.pulsar) == []
    await node.operators.update_controls(lambda controls: replace(controls, frozen=""))
    await node.shedding.cycle()
    assert commands(beside.pulsar) != []


async def test_what_operators_say_to_one_holds_for_the_next(beside: Beside) -> None:
    one = await beside.leader()
    first, _, third = beside.pulsar.brokers
    bundle = (await first.owned())[0]
    await one.operators.update_controls(lambda controls: replace(controls, pinned={bundle: third.broker_id}))
    await one.stop()
    await beside.leader()

    async def is_home() -> bool:
        return await beside.pulsar.owner(bundle) == third.broker_id

    await eventually(is_home)


async def test_which_store_is_away_is_said_where_readiness_is_asked_for(tmp_path: Path) -> None:
    cluster = a_memory_cluster()
    async with beside_pulsar(tmp_path) as beside:
        beside.connect = in_memory(cluster)
        node = await beside.leader()
        assert node.why_not_ready() is None
        assert isinstance(node.store, MemoryStore)
        cluster.partition(node.store, noticed=True)
        await eventually(lambda: (node.why_not_ready() or "").startswith("stateStoreUrl: the session with ZooKeeper"))
        cluster.heal(node.store)
        await eventually(lambda: node.why_not_ready() is None)


# One after the other


async def fails(beside: Beside, node: BesideNode) -> None:
    """One move, which Pulsar refuses."""
    with pytest.raises(UnloadFailedError):
        await move_one(beside, node)


async def test_of_two_processes_one_acts_and_the_other_goes_on_when_that_one_is_gone_without_a_word(
    tmp_path: Path,
) -> None:
    cluster = a_memory_cluster()
    async with beside_pulsar(tmp_path, bundles=BUNDLES) as beside:
        beside.connect = in_memory(cluster)
        beside.store = await beside.connect()
        one = await beside.leader()
        other = await beside.start()
        assert not other.is_leading
        with pytest.raises(Exception, match="lead"):
            other.must_lead()
        beside.pulsar.faults.refuse("/unload", 412)
        await fails(beside, one)
        beside.pulsar.faults.hold("/unload")
        drained = beside.pulsar.brokers[0]
        await one.drains_to_order.start(drained.broker_id)
        await eventually(lambda: any("/unload" in path for path in commands(beside.pulsar)[1:]))
        assert isinstance(one.store, MemoryStore)
        cluster.partition(one.store, noticed=False)
        cluster.expire(one.store)
        await eventually(lambda: other.is_leading and not other.hands.memory.open_moves)
        assert said(other, "heal"), "what was under way is seen through"

        async def is_drained() -> bool:
            """And somebody owns each of the bundles."""
            return await drained.owned() == [] and sum(await counts(beside.pulsar)) == BUNDLES

        await eventually(is_drained)
        cluster.heal(one.store)


async def test_failures_and_moves_of_the_hour_outlive_a_restart(beside: Beside) -> None:
    one = await beside.leader(moves_per_hour=2)
    await beside.pulsar.report()
    await one.shedding.cycle()
    assert len((await beside.acts()).began_s) == 2
    beside.pulsar.faults.refuse("/unload", 412, times=2)
    await fails(beside, one)
    await fails(beside, one)
    await one.stop()
    again = await beside.leader(moves_per_hour=2)
    assert (again.status().failures, again.status().stopped) == (2, False)
    assert "2 moves began within the hour (movesPerHour 2)" in again.status().obstacles[0]
    beside.pulsar.faults.refuse("/unload", 412)
    await fails(beside, again)
    assert (again.status().failures, again.status().stopped) == (3, True)
    await again.stop()
    third = await beside.leader()
    assert third.status().stopped
    await third.go_on()
    assert third.status().obstacles == []
