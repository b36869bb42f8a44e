"""Whole moves beside a Pulsar, wanted by rounds, drains, pins, plans and operators."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest
from support.pulsar_harness import (
    BUNDLE,
    BUNDLES,
    NEVER,
    Harness,
    asked,
    counts,
    is_settled,
    life,
    load,
    move,
    ownership,
    reasons,
    report,
)
from support.waiting import eventually

from loadmanager.cli.replay_command import find_start, planner_settings_of, recorded_items
from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.core.domain.plan import Unload
from loadmanager.core.domain.reasons import GuardrailReason, Reason
from loadmanager.core.protocol.guardrails import MoveHistory
from loadmanager.errors import UnloadCancelledError, UnloadFailedError
from loadmanager.history.reader import History
from loadmanager.lab.replay.replayer import replay
from loadmanager.pulsar import report_dates
from loadmanager.wire.plan_bodies import PlanRequest


async def test_bundle_moves_to_its_destination(harness: Harness) -> None:
    node = await harness.leader()
    source, to, _ = harness.pulsar.brokers
    done = await move(node, to)
    assert await harness.pulsar.owner(BUNDLE) == to.broker_id
    assert (done.state, done.owner, done.version) == (OwnershipState.OWNED, life(node, to), 3)
    await is_settled(harness, node)
    history = await harness.move_history()
    assert history == MoveHistory(touched_s=history.touched_s)
    assert history.touched_s.keys() == {source.broker_id, to.broker_id}
    assert len(asked(harness.pulsar, "/unload")) == 1
    assert f"destinationBroker={to.broker_id.replace(':', '%3A')}" in asked(harness.pulsar, "/unload")[0]


async def test_bundle_without_a_destination_is_placed_by_pulsar(harness: Harness) -> None:
    node = await harness.leader()
    done = await move(node, None)
    assert done.state is OwnershipState.OWNED
    assert "destinationBroker" not in asked(harness.pulsar, "/unload")[0]
    await is_settled(harness, node)
    assert (await harness.move_history()).failures == 0


async def test_pending_move_is_stored_and_blocks_other_moves(harness: Harness) -> None:
    node = await harness.leader()
    _, to, other = harness.pulsar.brokers
    harness.pulsar.lands[BUNDLE] = None
    moving = asyncio.create_task(move(node, to))
    await eventually(lambda: asked(harness.pulsar, "/unload"))
    assert (await harness.move_history()).in_progress.keys() == {BUNDLE}
    assert ownership(node, BUNDLE).state is OwnershipState.RELEASING
    with pytest.raises(Exception, match="cannot release"):
        await move(node, other)
    del harness.pulsar.lands[BUNDLE]
    assert (await moving).owner == life(node, to)
    await is_settled(harness, node)


async def test_operator_can_cancel_a_pending_move(harness: Harness) -> None:
    node = await harness.leader()
    source, to, _ = harness.pulsar.brokers
    harness.pulsar.faults.hold("/unload")
    moving = asyncio.create_task(move(node, to))
    await eventually(lambda: asked(harness.pulsar, "/unload"))
    await node.executor.cancel(BundleName.parse(BUNDLE))
    with pytest.raises(UnloadCancelledError, match=f"stays with {source.broker_id}"):
        await moving
    await is_settled(harness, node)
    assert (await harness.move_history()).failures == 0


async def test_move_by_pulsar_is_followed(harness: Harness) -> None:
    node = await harness.leader()
    third = harness.pulsar.brokers[2]
    await harness.pulsar.move(BUNDLE, third.broker_id)
    await eventually(lambda: ownership(node, BUNDLE).owner == life(node, third))


async def test_round_levels_brokers(harness: Harness) -> None:
    node = await harness.leader()
    await load(harness, node)
    plan = await node.shedding.run_round()
    assert len(plan.steps) == 2
    assert await counts(harness) == [2, 1, 1]
    await is_settled(harness, node)
    begun = [each for each in node.decision_log.recent(100) if each["kind"] == "unload"]
    assert {each["subject"] for each in begun} == {step.bundle for step in plan.steps}
    assert all("Shed 2 of 4 bundles because usage 80 %" in each["sentence"] for each in begun)
    assert len((await harness.move_history()).began_s) == 2


async def test_second_round_waits_for_reports_newer_than_the_moves_of_the_first(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await harness.leader()
    await load(harness, node)
    monkeypatch.setattr(report_dates, "MEASUREMENTS", 2)
    (step, *_) = (await node.shedding.run_round()).steps
    assert isinstance(step, Unload)
    first, to = step.source, step.destination
    assert to is not None
    another = replace(step, bundle=(await harness.pulsar.broker(first.broker).owned())[0])

    def why_not() -> list[tuple[Reason, object]]:
        return [(stop.verdict, stop.why["broker"]) for stop in node.actuator.guardrails.check_steps([another])[0]]

    assert why_not() == [], "the moves of one round were decided on one snapshot"
    node.actuator.guardrails.begin_round()
    assert why_not() == [(GuardrailReason.REPORT_BEFORE_MOVE, broker) for broker in (first.broker, to.broker)]
    monkeypatch.setattr(report_dates, "MEASUREMENTS", 0)
    await report(harness, node)
    assert why_not() == []


async def test_pinned_and_frozen_bundles_stay_in_a_round(harness: Harness) -> None:
    node = await harness.leader()
    first = harness.pulsar.brokers[0].broker_id
    pinned, frozen = BUNDLES[:2]
    await node.operators.update_controls(
        lambda controls: replace(controls, pinned={pinned: first}, frozen_bundles={frozen: "it is being looked at"})
    )
    await load(harness, node)
    plan = await node.shedding.run_round()
    assert {step.bundle for step in plan.steps}.isdisjoint({pinned, frozen})
    assert [await harness.pulsar.owner(bundle) for bundle in (pinned, frozen)] == [first, first]
    await node.operators.update_controls(lambda controls: replace(controls, frozen="a migration"))
    assert (await node.shedding.run_round()).steps == ()


async def test_moved_load_per_hour_is_limited(harness: Harness) -> None:
    node = await harness.leader(overrides={**NEVER, "loadBalancerMaxLoadMovedPerHourPercentage": "30"})
    await load(harness, node)
    assert len((await node.shedding.run_round()).steps) == 1
    assert await counts(harness) == [3, 1, 0] or await counts(harness) == [3, 0, 1]


async def test_drain_empties_a_broker(harness: Harness) -> None:
    node = await harness.leader()
    first = harness.pulsar.brokers[0].broker_id
    await load(harness, node)
    await node.drains.start(first)
    await eventually(lambda: node.drains.progress(first).bundles_left == 0)
    assert (await counts(harness))[0] == 0
    await is_settled(harness, node)
    assert (await harness.move_history()).began_s == (), "they are not counted as shedding's"


async def test_broker_gets_its_bundles_back_after_a_restart_while_settling(harness: Harness) -> None:
    node = await harness.leader(settling_seconds=3_600.0)
    first = harness.pulsar.brokers[0]
    its = await first.owned()
    await load(harness, node)
    await node.drains.start(first.broker_id, and_return=True)
    await eventually(lambda: node.drains.progress(first.broker_id).state == "done")
    await harness.pulsar.restart(first)
    await eventually(lambda: not node.mirror.operator_config.controls.draining, "another process is seen")
    await eventually(lambda: not node.mirror.operator_config.controls.returning, "all are at home")
    assert set(its) <= set(await first.owned())
    assert (await harness.move_history()).began_s == (), "they are not counted as shedding's"


async def test_pinned_bundle_is_moved_to_its_broker(harness: Harness) -> None:
    node = await harness.leader()
    third = harness.pulsar.brokers[2].broker_id
    await load(harness, node)
    await node.operators.update_controls(lambda controls: replace(controls, pinned={BUNDLE: third}))
    await eventually(lambda: ownership(node, BUNDLE).owner == life(node, harness.pulsar.brokers[2]))
    assert await harness.pulsar.owner(BUNDLE) == third


async def test_plan_is_executed_by_its_hash(harness: Harness) -> None:
    node = await harness.leader()
    await load(harness, node)
    plan = await node.plans.compute(PlanRequest(kind="shed"))
    done = await node.plans.execute(plan.hash, even_if_frozen=False)
    assert done.executed == len(plan.steps) == 2
    assert await counts(harness) == [2, 1, 1]


async def test_recorded_rounds_replay_to_the_same_decisions(harness: Harness) -> None:
    node = await harness.leader()
    await load(harness, node)
    third = harness.pulsar.brokers[2]
    harness.pulsar.faults.refuse("/unload", 500)
    harness.pulsar.lands[BUNDLE] = third.broker_id
    with contextlib.suppress(UnloadFailedError):
        await move(node, harness.pulsar.brokers[1])
    await report(harness, node)
    assert (await node.shedding.run_round()).steps
    await harness.pulsar.set_dynamic({"loadBalancerSheddingEnabled": "false"})
    await eventually(lambda: reasons(node) == [GuardrailReason.PULSAR_SPLITS])
    await report(harness, node)
    await node.shedding.run_round()
    await harness.close()
    history = History(str(harness.folder / "0" / "history"))
    outcome = replay(recorded_items(history, find_start(history, None), None), planner_settings_of)
    assert outcome.difference is None
    assert outcome.is_equal
    assert outcome.compared["shed"] == node.shedding.rounds == 3
