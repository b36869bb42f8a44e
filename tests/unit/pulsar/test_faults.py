from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.fake_pulsar import PulsarBroker
from support.pulsar_harness import (
    BUNDLE,
    Harness,
    asked,
    is_settled,
    life,
    move,
    ownership,
    reasons,
)
from support.waiting import eventually

from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.core.domain.reasons import GuardrailReason
from loadmanager.errors import UnloadFailedError
from loadmanager.pulsar.guardrail_facts import RailError
from loadmanager.pulsar.pulsar_service import PulsarService


async def fails(harness: Harness, node: PulsarService, why: str, to: PulsarBroker | None = None) -> None:
    with pytest.raises(UnloadFailedError, match=why):
        await move(node, to or harness.pulsar.brokers[1])
    await is_settled(harness, node)


@pytest.mark.parametrize("status", [403, 404, 409, 412])
async def test_what_pulsar_refuses_is_not_asked_again(harness: Harness, status: int) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/unload", status)
    await fails(harness, node, f"stays with {harness.pulsar.brokers[0].broker_id}: http.*/unload.* answered {status}")
    assert len(asked(harness.pulsar, "/unload")) == 1
    assert (await harness.acts()).failures == 1


async def test_a_token_that_is_refused_moves_nothing(harness: Harness) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/unload", 401, times=2)
    await fails(harness, node, "answered 401")
    assert (await harness.acts()).failures == 1


async def test_what_pulsar_cannot_do_now_is_asked_again(harness: Harness) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/unload", 500, times=2)
    to = harness.pulsar.brokers[1]
    assert (await move(node, to)).owner == life(node, to)
    await is_settled(harness, node)
    assert (await harness.acts()).failures == 0


async def test_what_pulsar_never_does_fails_within_its_time(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=1_000)
    harness.pulsar.faults.refuse("/unload", 500, times=1_000)
    await fails(harness, node, "answered 500")
    assert (await harness.acts()).failures == 1


async def test_a_redirect_to_a_host_that_is_none_of_pulsars_is_not_followed(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=1_000)
    harness.pulsar.faults.send_away("/unload", "http://127.0.0.1:1", times=1_000)
    await fails(harness, node, "127.0.0.1:1")


async def test_an_answer_that_never_comes_ends_with_the_time_of_the_move(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=1_000)
    harness.pulsar.faults.hold("/unload")
    await fails(harness, node, f"after 1.0 s {harness.pulsar.brokers[0].broker_id} has it")


async def test_an_unload_whose_answer_is_lost_is_seen_to_have_happened(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=1_000)
    harness.pulsar.faults.hold("/unload", done=True)
    with pytest.raises(UnloadFailedError, match=r"after 1\.0 s nobody has it"):
        await move(node, harness.pulsar.brokers[1])
    await is_settled(harness, node)
    assert await harness.pulsar.owner(BUNDLE) is not None, "it was looked up in the end"


async def test_a_bundle_that_lands_elsewhere_is_a_miss_and_the_mirror_says_where_it_is(harness: Harness) -> None:
    node = await harness.leader()
    third = harness.pulsar.brokers[2]
    harness.pulsar.lands[BUNDLE] = third.broker_id
    await fails(harness, node, f"is with {third.broker_id}: it went to {third.broker_id}")
    assert ownership(node, BUNDLE).owner == life(node, third)
    assert len(asked(harness.pulsar, "/unload")) == 1
    acts = await harness.acts()
    assert (acts.failures, node.hands.memory.misses) == (0, 1)
    assert set(acts.touched_s) == {harness.pulsar.brokers[0].broker_id, third.broker_id}


async def test_a_bundle_that_lands_nowhere_is_a_failure(harness: Harness) -> None:
    node = await harness.leader(move_timeout_ms=1_000)
    harness.pulsar.lands[BUNDLE] = None
    await fails(harness, node, r"is with nobody: after 1\.0 s nobody has it")
    assert ownership(node, BUNDLE).state is OwnershipState.FREE
    assert (await harness.acts()).failures == 1


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("number", [0, 1], ids=["source", "destination"])
async def test_a_broker_that_dies_in_the_middle_of_a_move_leaves_a_bundle_that_somebody_owns(
    harness: Harness, number: int, *, done: bool
) -> None:
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
        await eventually(lambda: asked(harness.pulsar, "/lookup" if done else "/unload"))
        await harness.pulsar.kill(dying)
    with contextlib.suppress(UnloadFailedError):
        await moving
    await eventually(lambda: dying.broker_id not in node.mirror.registrations)
    owner = await harness.pulsar.owner(BUNDLE)
    assert owner is not None
    assert owner != dying.broker_id
    await is_settled(harness, node)


async def test_moves_that_keep_failing_stop_everything_until_an_operator_says_go_on(harness: Harness) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/unload", 412, times=3)
    for failures in (1, 2, 3):
        await fails(harness, node, "answered 412")
        assert (await harness.acts()).failures == failures
    assert reasons(node) == [GuardrailReason.MOVES_KEEP_FAILING]
    with pytest.raises(RailError, match="the last 3 moves failed"):
        await move(node, harness.pulsar.brokers[1])
    assert len(asked(harness.pulsar, "/unload")) == 3
    await node.go_on()
    assert (await harness.acts()).failures == 0
    assert (await move(node, harness.pulsar.brokers[1])).owner == life(node, harness.pulsar.brokers[1])


async def test_a_move_that_lands_sets_the_failures_before_it_back(harness: Harness) -> None:
    node = await harness.leader()
    harness.pulsar.faults.refuse("/unload", 412, times=2)
    for _ in range(2):
        await fails(harness, node, "answered 412")
    await move(node, harness.pulsar.brokers[1])
    assert (await harness.acts()).failures == 0
