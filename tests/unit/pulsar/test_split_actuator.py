from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_pulsar_rest import Asked
from support.pulsar_harness import NAMESPACE, NEVER, Harness, pulsar_harness, said
from support.waiting import eventually

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import IllegalTransitionError
from loadmanager.core.domain.plan import Unload, Verdict
from loadmanager.core.domain.reasons import GuardrailReason, OwnershipReason, SplitReason
from loadmanager.core.protocol.reshape_machine import Reshaping
from loadmanager.core.strategies.splitting.split_finder import Split
from loadmanager.errors import NotLeaderError
from loadmanager.pulsar.pulsar_service import PulsarService

LOWER, UPPER = f"{NAMESPACE}/0x00000000_0x80000000", f"{NAMESPACE}/0x80000000_0xffffffff"
LIMIT = {**NEVER, "loadBalancerNamespaceBundleMaxTopics": "10"}


@pytest.fixture
async def harness(tmp_path: Path, measured_hosts: None) -> AsyncIterator[Harness]:
    """Two bundles, of which the lower one has more topics than the limit of `LIMIT`."""
    del measured_hosts
    async with pulsar_harness(tmp_path, bundles=2) as harness:
        harness.pulsar.load(LOWER, 100.0, topics=50)
        harness.pulsar.load(UPPER, 100.0, topics=5)
        await harness.pulsar.report()
        yield harness


async def leader(harness: Harness, overrides: dict[str, str] = LIMIT, **changes: Any) -> PulsarService:  # noqa: ANN401 - whatever a setting may be
    for broker in harness.pulsar.brokers:
        broker.settings |= {key: text for key, text in overrides.items() if key.startswith("supported")}
    return await harness.leader(splits_enabled=True, overrides=overrides, **changes)


def asked_to_split(harness: Harness) -> list[Asked]:
    return [asked for asked in harness.pulsar.asked if asked.method == "PUT"]


async def cut(harness: Harness) -> list[int]:
    return list((await harness.pulsar.bundles(NAMESPACE)).boundaries)


async def test_bundle_above_a_limit_is_halved_at_a_position(harness: Harness) -> None:
    node = await leader(harness)
    await node.actuator.reshaping.round()
    assert await cut(harness) == [0, 0x40000000, 0x80000000, 0xFFFFFFFF]
    assert {asked.path for asked in asked_to_split(harness)} == {
        f"/admin/v2/namespaces/{LOWER}/split?unload=true&splitAlgorithmName=specified_positions_divide"
    }
    (entry,) = said(node, "split")
    assert (entry["subject"], entry["reason"], entry["acted"]) == (LOWER, "topics", True)
    assert entry["source"] == entry["destination"] == harness.pulsar.brokers[0].broker_id
    assert (entry["why"]["boundaries"], entry["why"]["parts"]) == ("0x40000000", 2)
    splits = node.scrape().splits
    assert (splits["Success", "Topics"], splits["Failure", "Unknown"]) == (1, 0)
    counters = {name: value for name, _, _, value in node.scrape().counters}
    assert (counters["pulsar_lb_bundles_split"], counters["loadmanager_reshaping_rounds"]) == (1.0, 1.0)


@pytest.mark.parametrize("unload", [False, True])
async def test_parts_are_unloaded_as_pulsar_is_configured(harness: Harness, *, unload: bool) -> None:
    node = await leader(harness, {**LIMIT, "loadBalancerAutoUnloadSplitBundlesEnabled": str(unload).lower()})
    await node.actuator.reshaping.round()
    owner = None if unload else harness.pulsar.brokers[0].broker_id
    parts = [f"{NAMESPACE}/0x00000000_0x40000000", f"{NAMESPACE}/0x40000000_0x80000000"]
    assert [await harness.pulsar.owner(part) for part in parts] == [owner, owner]


async def test_broker_without_position_support_splits_by_its_own_algorithm(harness: Harness) -> None:
    overrides = {**LIMIT, "supportedNamespaceBundleSplitAlgorithms": "range_equally_divide"}
    node = await leader(harness, overrides)
    await node.actuator.reshaping.round()
    assert {asked.path for asked in asked_to_split(harness)} == {f"/admin/v2/namespaces/{LOWER}/split?unload=true"}
    assert await cut(harness) == [0, 0x40000000, 0x80000000, 0xFFFFFFFF]
    assert [entry["subject"] for entry in said(node, "split") if entry["acted"]] == [LOWER]


async def test_actual_boundaries_are_recorded(harness: Harness) -> None:
    overrides = {**LIMIT, "supportedNamespaceBundleSplitAlgorithms": "range_equally_divide"}
    node = await leader(harness, overrides)
    harness.pulsar.faults.answer("/split", 204, b"")
    splitting = asyncio.create_task(node.actuator.reshaping.round())
    await eventually(lambda: asked_to_split(harness))
    await harness.pulsar.cut(NAMESPACE, [0, 0x10000000, 0x20000000, 0x80000000, 0xFFFFFFFF])
    await splitting
    (entry,) = [each for each in said(node, "split") if each["acted"]]
    assert (entry["why"]["boundaries"], entry["why"]["parts"]) == ("0x10000000, 0x20000000", 3)


async def test_nothing_is_split_unless_enabled(harness: Harness) -> None:
    node = await harness.leader(overrides=LIMIT)
    await node.actuator.reshaping.round()
    assert asked_to_split(harness) == []
    assert [entry["reason"] for entry in said(node, "split")] == ["splitting_disabled"]


async def test_intended_split_and_obstacles_are_recorded_while_observing(harness: Harness) -> None:
    node = await leader(harness, mode="observe")
    await harness.pulsar.set_dynamic({})
    await eventually(lambda: len(node.brokers.splitting()) == 3)
    await node.actuator.reshaping.round()
    assert asked_to_split(harness) == []
    (entry,) = said(node, "would_split")
    assert (entry["subject"], entry["reason"], entry["acted"]) == (LOWER, "topics", False)
    assert "50 topics" in entry["sentence"]
    assert "mode is observe" in entry["sentence"]
    assert "Pulsar's own splits are on at 3 of 3 brokers" in entry["sentence"]
    assert (await harness.move_history()).failures == 0


async def test_dry_run_and_freeze_apply_to_splits(harness: Harness) -> None:
    node = await leader(harness)
    await node.operators.update_controls(lambda controls: replace(controls, dry_run=True))
    await eventually(lambda: node.mirror.operator_config.controls.dry_run)
    await node.actuator.reshaping.round()
    assert len(said(node, "would_split")) == 1
    await node.operators.update_controls(lambda controls: replace(controls, frozen="maintenance"))
    await eventually(lambda: node.mirror.operator_config.controls.frozen)
    await harness.pulsar.report()
    await node.actuator.reshaping.round()
    assert asked_to_split(harness) == []


@pytest.mark.parametrize("algorithm", ["topic_count_equally_divide", "flow_or_qps_equally_divide"])
async def test_algorithm_that_needs_topics_splits_nothing_and_names_another(harness: Harness, algorithm: str) -> None:
    supported = {"supportedNamespaceBundleSplitAlgorithms": f"range_equally_divide,{algorithm}"}
    node = await leader(harness, {**LIMIT, **supported, "defaultNamespaceBundleSplitAlgorithm": algorithm})
    await node.actuator.reshaping.round()
    assert asked_to_split(harness) == []
    (entry,) = [each for each in said(node, "split") if each["subject"] == LOWER]
    assert entry["reason"] == "owner_silent"
    assert "range_equally_divide in overrides" in entry["sentence"]


async def test_split_with_a_lost_answer_is_detected(harness: Harness) -> None:
    node = await leader(harness, move_timeout_ms=5_000)
    harness.pulsar.faults.answer("/split", 503, b"")
    splitting = asyncio.create_task(node.actuator.reshaping.round())
    await eventually(lambda: asked_to_split(harness))
    await harness.pulsar.cut(NAMESPACE, [0, 0x40000000, 0x80000000, 0xFFFFFFFF])
    await splitting
    assert [entry["acted"] for entry in said(node, "split")][-1]
    assert node.actuator.reshaper.splits_failed == 0


async def test_repeated_split_failures_stop_all_acting_until_an_operator_resumes(harness: Harness) -> None:
    node = await leader(harness, move_timeout_ms=5_000)
    harness.pulsar.faults.refuse("/split", 412, "no such bundle")
    harness.pulsar.faults.answer("/split", 204, b"")
    harness.pulsar.faults.answer("/split", 500, b"")
    for failures, sentence in [
        (1, "answered 412"),
        (2, "the bundle is not split after"),
        (3, "answered 500"),
    ]:
        await harness.pulsar.report()
        await node.intake.settled()
        await node.actuator.reshaping.round()
        assert (await harness.move_history()).failures == failures
        (entry,) = [each for each in said(node, "split") if each["subject"] == LOWER]
        assert (entry["reason"], entry["acted"]) == ("split_failed", False)
        assert sentence in entry["sentence"]
    assert node.scrape().splits["Failure", "Unknown"] == 3
    assert node.status().stopped
    asked = len(asked_to_split(harness))
    await harness.pulsar.report()
    await node.intake.settled()
    await node.actuator.reshaping.round()
    assert len(asked_to_split(harness)) == asked
    assert "the last 3 moves failed" in said(node, "would_split")[0]["sentence"]
    await node.resume()
    await harness.pulsar.report()
    await node.intake.settled()
    await node.actuator.reshaping.round()
    assert (await harness.move_history()).failures == 0
    assert await cut(harness) == [0, 0x40000000, 0x80000000, 0xFFFFFFFF]


async def test_successful_split_resets_failures(harness: Harness) -> None:
    node = await leader(harness)
    await node.actuator.move_log.not_split()
    await node.actuator.reshaping.round()
    assert (await harness.move_history()).failures == 0


async def test_owner_of_a_split_bundle_is_not_unloaded_before_its_next_report(
    harness: Harness,
) -> None:
    node = await leader(harness)
    owner = harness.pulsar.brokers[0].broker_id
    step = Unload(UPPER, node.mirror.registrations[owner], None, OwnershipReason.ADMIN_UNLOAD)
    node.actuator.guardrails.begin_round()
    assert node.actuator.guardrails.check_steps([step])[0] == []
    await node.actuator.reshaping.round()
    node.actuator.guardrails.begin_round()
    assert [stop.verdict for stop in node.actuator.guardrails.check_steps([step])[0]] == [
        GuardrailReason.REPORT_BEFORE_MOVE
    ]
    await harness.pulsar.report()
    await eventually(lambda: not node.actuator.guardrails.check_steps([step])[0])


def a_split(bundle: str, boundary: int) -> Reshaping:
    name = BundleName.parse(bundle)
    split = Reshaping(name, SplitReason.TOPICS, (name.range,))
    split.cut(Split(bundle, (boundary,), SplitReason.TOPICS), Verdict(bundle, SplitReason.TOPICS, acted=True, why={}))
    return split


async def test_unknown_or_moving_bundle_is_not_split(harness: Harness) -> None:
    node = await leader(harness)
    with pytest.raises(IllegalTransitionError, match="not a current bundle"):
        await node.actuator.reshaper.carry_out(a_split(f"{NAMESPACE}/0x00000000_0x40000000", 0x20000000))
    harness.pulsar.faults.hold("/unload")
    destination = node.mirror.registrations[harness.pulsar.brokers[1].broker_id]
    moving = asyncio.create_task(
        node.executor.unload(BundleName.parse(UPPER), destination, OwnershipReason.ADMIN_UNLOAD)
    )
    await eventually(lambda: any("/unload" in asked.path for asked in harness.pulsar.asked))
    with pytest.raises(IllegalTransitionError, match="cannot split bundle"):
        await node.actuator.reshaper.carry_out(a_split(UPPER, 0xC0000000))
    assert not any("/split" in asked.path for asked in harness.pulsar.asked)
    assert (await harness.move_history()).failures == 0
    moving.cancel()


async def test_excluded_namespace_is_not_split(harness: Harness) -> None:
    node = await leader(harness, excluded_namespaces=("lm/.*",))
    await node.actuator.reshaping.round()
    assert asked_to_split(harness) == []
    (entry,) = said(node, "would_split")
    assert f"{NAMESPACE} is excluded by lm/.*" in entry["sentence"]


async def test_former_leader_splits_nothing(harness: Harness) -> None:
    node = await leader(harness)
    await node.election.resign()
    with pytest.raises(NotLeaderError):
        await node.actuator.reshaper.carry_out(a_split(LOWER, 0x40000000))
    assert asked_to_split(harness) == []
    assert node.actuator.move_log.history.failures == 0
