from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from support.fake_pulsar import FakePulsar
from support.pulsar_harness import (
    BUNDLE,
    Harness,
    asked,
    change_load_manager,
    counts,
    delete_leader,
    is_settled,
    load,
    move,
    reasons,
)
from support.waiting import eventually

from loadmanager.core.domain.reasons import GuardrailReason
from loadmanager.pulsar.guardrail_facts import GuardrailError
from loadmanager.pulsar.pulsar_service import PulsarService
from loadmanager.store.metadata_store import Delete


async def sheds(pulsar: FakePulsar) -> None:
    pulsar.brokers[1].settings["loadBalancerSheddingEnabled"] = "true"
    await pulsar.set_dynamic({"loadBalancerAutoBundleSplitEnabled": "false"})


async def splits(pulsar: FakePulsar) -> None:
    pulsar.brokers[1].settings["loadBalancerSheddingEnabled"] = "false"
    await pulsar.set_dynamic({"loadBalancerSheddingEnabled": "false", "loadBalancerAutoBundleSplitEnabled": "true"})


async def an_unregistered_leader(pulsar: FakePulsar) -> None:
    pulsar.elects = False
    await pulsar.elect(pulsar.brokers[2])
    await pulsar.brokers[2].store.commit([Delete(pulsar.brokers[2].path)])


Breaks = Callable[[FakePulsar], Awaitable[None]]


@pytest.mark.parametrize(
    ("harness", "breaks", "reason"),
    [
        ("modular", sheds, GuardrailReason.PULSAR_SHEDS),
        ("extensible", sheds, GuardrailReason.PULSAR_SHEDS),
        ("modular", splits, GuardrailReason.PULSAR_SPLITS),
        ("extensible", splits, GuardrailReason.PULSAR_SPLITS),
        ("modular", change_load_manager, GuardrailReason.LOAD_MANAGER_UNKNOWN),
        ("modular", delete_leader, GuardrailReason.PULSAR_HAS_NO_LEADER),
        ("modular", an_unregistered_leader, GuardrailReason.PULSAR_HAS_NO_LEADER),
    ],
    indirect=["harness"],
    ids=lambda each: getattr(each, "__name__", None),
)
async def test_violated_precondition_stops_rounds_and_moves(
    harness: Harness, breaks: Breaks, reason: GuardrailReason
) -> None:
    node = await harness.leader()
    await load(harness, node)
    await breaks(harness.pulsar)
    await eventually(lambda: reason in reasons(node))
    await stops(harness, node, reason)


async def stops(harness: Harness, node: PulsarService, reason: GuardrailReason) -> None:
    """A round is planned and shown, a move at an operator's word refused, and nobody asked to let go."""
    before = await counts(harness)
    plan = await node.shedding.run_round()
    for step in plan.steps:
        (entry, *_) = node.decision_log.recent(1, step.bundle)
        assert (entry["kind"], entry["acted"]) == ("would_unload", False)
        assert entry["sentence"].startswith("No move because ")
    said = [each["sentence"] for each in node.decision_log.recent(100) if each["kind"] == "guardrail"]
    beginnings = [sentence.split("{")[0] for sentence in reason.sentences]
    assert [each for each in said if any(beginning in each for beginning in beginnings)]
    with pytest.raises(GuardrailError) as refused:
        await move(node, harness.pulsar.brokers[1], next(iter(await harness.pulsar.brokers[0].owned())))
    assert reason in [stop.verdict for stop in refused.value.stops]
    assert (await counts(harness), asked(harness.pulsar, "/unload")) == (before, [])
    assert (await harness.move_history()).in_progress == {}


async def test_nothing_moves_while_brokers_join_and_leave(harness: Harness) -> None:
    node = await harness.leader(settling_seconds=3_600.0)
    assert reasons(node) == [], "they were there when it began to look"
    await load(harness, node)
    await harness.pulsar.join()
    await eventually(lambda: len(node.mirror.registrations) == 4 and not node.brokers.unknown())
    assert reasons(node) == [GuardrailReason.BROKERS_SETTLING]
    (limit,) = node.actuator.guardrails.limits()
    assert (limit.reason, limit.until_s is None) == (GuardrailReason.BROKERS_SETTLING, False)
    plan = await node.shedding.run_round()
    assert plan.steps
    assert asked(harness.pulsar, "/unload") == []


async def test_broker_with_unknown_settings_stops_everything(harness: Harness) -> None:
    node = await harness.leader()
    await load(harness, node)
    harness.pulsar.faults.refuse("/configuration/runtime", 500, times=1_000, at=harness.pulsar.brokers[2].broker_id)
    await harness.pulsar.set_dynamic({**await harness.pulsar.dynamic(), "loadBalancerNamespaceBundleMaxTopics": "2000"})
    await eventually(lambda: reasons(node) == [GuardrailReason.SETTINGS_UNKNOWN])
    await stops(harness, node, GuardrailReason.SETTINGS_UNKNOWN)


async def test_excluded_namespaces_stay_and_others_are_moved(harness: Harness) -> None:
    others = await harness.pulsar.add_namespace("lm/other", 4, [harness.pulsar.brokers[0].broker_id])
    node = await harness.leader(excluded_namespaces=("lm/b.*",))
    await load(harness, node)
    plan = await node.shedding.run_round()
    assert {step.bundle for step in plan.steps} <= {*others}
    assert await harness.pulsar.brokers[1].owned() + await harness.pulsar.brokers[2].owned() != []
    with pytest.raises(GuardrailError, match=f"{BUNDLE}: No move because lm/bench is excluded by lm/b"):
        await move(node, harness.pulsar.brokers[1])
    await is_settled(harness, node)


@pytest.mark.parametrize(
    ("limit", "reason"), [("moves_per_round", "round_limit_reached"), ("moves_per_hour", "hourly_limit_reached")]
)
async def test_number_of_moves_is_limited(harness: Harness, limit: str, reason: str) -> None:
    node, began_s = await harness.leader(**{limit: 1}), time.time()
    await load(harness, node)
    assert len((await node.shedding.run_round()).steps) == 2
    assert sorted(await counts(harness)) == [0, 1, 3]
    assert [each["reason"] for each in node.decision_log.recent(100) if each["kind"] == "guardrail"] == [reason]
    limits = {each.reason: each.until_s for each in node.stuck_monitor.limits}
    assert set(limits) == ({GuardrailReason.HOURLY_LIMIT_REACHED} if limit == "moves_per_hour" else set())
    assert all(end is not None and end > began_s for end in limits.values())
    await is_settled(harness, node)


async def test_stop_that_needs_an_operator_is_a_limit_without_an_end(harness: Harness) -> None:
    node = await harness.leader()
    node.actuator.move_log.history = replace(node.actuator.move_log.history, failures=99)
    (failing,) = node.actuator.guardrails.limits()
    assert (failing.reason, failing.until_s) == (GuardrailReason.TOO_MANY_FAILURES, None)
