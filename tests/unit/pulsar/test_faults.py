from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.fake_pulsar import PulsarBroker
from support.pulsar_harness import (
    BUNDLE,
    NAMESPACE,
    ON_BOTH,
    Harness,
    asked,
    is_settled,
    life,
    move,
    ownership,
    reasons,
    said,
)
from support.waiting import eventually

from loadmanager.core.domain.ownership import Ownership, OwnershipState
from loadmanager.core.domain.reasons import GuardrailReason
from loadmanager.core.strategies.shedding.overload_shedder import OverloadReason
from loadmanager.errors import DestinationMissedError, LoadManagerError, UnloadFailedError
from loadmanager.pulsar import pulsar_intake
from loadmanager.pulsar.guardrail_facts import GuardrailError
from loadmanager.pulsar.pulsar_service import PulsarService
from loadmanager.store.metadata_store import Delete

pytestmark = ON_BOTH


async def fails(harness: Harness, node: PulsarService, why: str, to: PulsarBroker | None = None) -> None:
    with pytest.raises(UnloadFailedError, match=why):
        await move(node, to or harness.pulsar.brokers[1])
    await is_settled(harness, node)


@pytest.mark.parametrize("status", [403, 404, 409, 412])
async def test_final_refusal_is_not_retried(harness: Harness, status: int) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/unload", status)
    await fails(harness, node, f"stays with {harness.pulsar.brokers[0].broker_id}: http.*/unload.* answered {status}")
    assert len(asked(harness.pulsar, "/unload")) == 1
    assert (await harness.move_history()).failures == 1


async def test_refused_token_moves_nothing(harness: Harness) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/unload", 401, times=2)
    await fails(harness, node, "answered 401")
    assert (await harness.move_history()).failures == 1


async def test_temporary_error_is_retried(harness: Harness) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/unload", 500, times=2)
    to = harness.pulsar.brokers[1]
    assert (await move(node, to)).owner == life(node, to)
    await is_settled(harness, node)
    assert (await harness.move_history()).failures == 0


async def test_persistent_error_fails_within_the_timeout(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=1_000)
    harness.pulsar.faults.refuse("/unload", 500, times=1_000)
    await fails(harness, node, "answered 500")
    assert (await harness.move_history()).failures == 1


async def test_redirect_to_a_foreign_host_is_not_followed(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=1_000)
    harness.pulsar.faults.send_away("/unload", "http://127.0.0.1:1", times=1_000)
    await fails(harness, node, "127.0.0.1:1")


async def test_missing_answer_fails_at_the_timeout(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=1_000)
    harness.pulsar.faults.hold("/unload")
    await fails(harness, node, f"after 1.0 s {harness.pulsar.brokers[0].broker_id} has it")


async def test_unload_with_a_lost_answer_is_detected(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=1_000)
    harness.pulsar.faults.hold("/unload", done=True)
    to = harness.pulsar.brokers[1]
    assert (await move(node, to)).owner == life(node, to), "the modular manager places it by the lookup in the end"
    await is_settled(harness, node)
    assert (await harness.move_history()).failures == 0


async def test_bundle_that_lands_elsewhere_is_a_miss(harness: Harness) -> None:
    node = await harness.leader()
    third = harness.pulsar.brokers[2]
    harness.pulsar.lands[BUNDLE] = third.broker_id
    landed = f"Landed on {third.broker_id} instead of {harness.pulsar.brokers[1].broker_id}"
    await fails(harness, node, landed)
    assert ownership(node, BUNDLE).owner == life(node, third)
    assert len(asked(harness.pulsar, "/unload")) == 1
    (entry,) = said(node, "unloaded")
    assert (entry["reason"], entry["sentence"]) == ("destination_missed", landed)
    assert (node.executor.unloads_failed, node.executor.unloads_completed) == (0, 1)
    assert BUNDLE not in node.mirror.model.unloads.of_bundles, "no grace period"
    history = await harness.move_history()
    assert (history.failures, node.actuator.move_log.misses) == (0, 1)
    assert set(history.touched_s) == {harness.pulsar.brokers[0].broker_id, third.broker_id}


async def test_misses_of_shedding_count_for_the_circuit_breaker(harness: Harness) -> None:
    node = await harness.leader()
    first, wanted, third = harness.pulsar.brokers
    for lands_on in (third, first, third):
        harness.pulsar.lands[BUNDLE] = lands_on.broker_id
        with pytest.raises(DestinationMissedError):
            await move(node, wanted, reason=OverloadReason.BROKER_OVERLOADED)
    assert node.planner.churn.figures().frozen_for_s.keys() == {BUNDLE}
    assert node.actuator.move_log.misses == 3


async def test_bundle_that_lands_nowhere_is_a_failure(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=1_000)
    harness.pulsar.lands[BUNDLE] = None
    await fails(harness, node, r"is with nobody: after 1\.0 s nobody has it")
    assert ownership(node, BUNDLE).state is OwnershipState.FREE
    assert (await harness.move_history()).failures == 1


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("number", [0, 1], ids=["source", "destination"])
async def test_bundle_has_an_owner_after_a_broker_dies_during_its_move(
    harness: Harness, number: int, *, done: bool
) -> None:
    harness.admin_timeout_s = 10.0  # a lookup is never answered
    node = await harness.leader(move_timeout_ms=5_000)
    await harness.pulsar.elect(harness.pulsar.brokers[2])
    leader = harness.pulsar.brokers[2].broker_id
    await eventually(lambda: node.intake.pulsars_leader == leader and node.mirror.is_fresh)
    dying, to = harness.pulsar.brokers[number], harness.pulsar.brokers[1]
    if number == 0:
        harness.pulsar.faults.kill("/unload", at=dying.broker_id, done=done)
    else:
        harness.pulsar.faults.hold("/lookup")
    moving = asyncio.create_task(move(node, to))
    if number == 1:
        is_looked_up = done and not harness.pulsar.extensible
        await eventually(lambda: asked(harness.pulsar, "/lookup" if is_looked_up else "/unload"))
        await harness.pulsar.kill(dying)
    with contextlib.suppress(UnloadFailedError):
        await moving
    await eventually(lambda: dying.broker_id not in node.mirror.registrations)
    owner = await harness.pulsar.owner(BUNDLE)
    has_arrived = (
        harness.pulsar.extensible and number == 1
    )  # and dies with its broker: the fake places nothing by itself
    assert owner is not None or has_arrived
    assert owner != dying.broker_id
    await is_settled(harness, node)


async def begin_move_to_nowhere(harness: Harness, node: PulsarService) -> asyncio.Task[Ownership]:
    harness.pulsar.lands[BUNDLE] = None
    moving = asyncio.create_task(move(node, harness.pulsar.brokers[1]))

    async def is_on_its_way() -> bool:
        return await harness.pulsar.owner(BUNDLE) is None

    await eventually(is_on_its_way)
    return moving


async def is_forgotten(harness: Harness, moving: asyncio.Task[Ownership]) -> None:
    with pytest.raises(LoadManagerError):
        await moving
    history = await harness.move_history()
    assert (history.in_progress, history.failures) == ({}, 0)


async def test_split_during_a_move_is_no_failure(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=2_000)
    moving = await begin_move_to_nowhere(harness, node)
    boundaries = (await harness.pulsar.bundles(NAMESPACE)).boundaries
    await harness.pulsar.cut(NAMESPACE, sorted({*boundaries, boundaries[1] // 2}))
    await is_forgotten(harness, moving)
    assert BUNDLE not in node.intake.owners


async def test_deletion_of_the_namespace_during_a_move_is_no_failure(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulsar_intake, "POLICIES_S", 0.0)
    node = await harness.leader(move_timeout_ms=2_000)
    moving = await begin_move_to_nowhere(harness, node)
    first = harness.pulsar.brokers[0]
    for bundle in await first.owned():
        await first.release(bundle)
    paths = [f"/admin/{kind}/{NAMESPACE}" for kind in ("local-policies", "policies")]
    await harness.pulsar.operator.commit([Delete(path) for path in paths])
    await is_forgotten(harness, moving)
    await eventually(lambda: node.intake.owners == {})


async def test_repeated_failures_stop_all_moves_until_an_operator_resumes(harness: Harness) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/unload", 412, times=3)
    for failures in (1, 2, 3):
        await fails(harness, node, "answered 412")
        assert (await harness.move_history()).failures == failures
    assert reasons(node) == [GuardrailReason.TOO_MANY_FAILURES]
    with pytest.raises(GuardrailError, match="the last 3 moves failed"):
        await move(node, harness.pulsar.brokers[1])
    assert len(asked(harness.pulsar, "/unload")) == 3
    await node.resume()
    assert (await harness.move_history()).failures == 0
    assert (await move(node, harness.pulsar.brokers[1])).owner == life(node, harness.pulsar.brokers[1])


async def test_successful_move_resets_failures(harness: Harness) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/unload", 412, times=2)
    for _ in range(2):
        await fails(harness, node, "answered 412")
    await move(node, harness.pulsar.brokers[1])
    assert (await harness.move_history()).failures == 0
