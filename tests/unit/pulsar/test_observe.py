"""A process that only looks: what it tells of a fake Pulsar's own moves, from its znodes to the diary."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.pulsar_harness import NAMESPACE, Harness, knows_owners, pulsar_harness
from support.waiting import eventually

from loadmanager.config.dynamic_settings import values_as_text
from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.lab.whatif.score_worker import ScoreQuestion, answer
from loadmanager.pulsar.pulsar_service import PulsarService

BUNDLE, OTHER = (f"{NAMESPACE}/{each}" for each in ("0x00000000_0x40000000", "0x40000000_0x80000000"))


@pytest.fixture
async def harness(tmp_path: Path, measured_hosts: None) -> AsyncIterator[Harness]:
    del measured_hosts
    async with pulsar_harness(tmp_path) as harness:
        for number, bundle in enumerate((BUNDLE, OTHER), 1):
            harness.pulsar.load(bundle, rate=1_000.0 * number)
        await harness.pulsar.report()
        yield harness


async def looking(harness: Harness, mode: str = "observe") -> PulsarService:
    """One that has judged its first round."""
    node = await harness.leader(mode=mode)
    await eventually(lambda: "loadmanager_pulsar_max_over_mean" in gauges(node))
    return node


def gauges(node: PulsarService) -> dict[str, float]:
    return {name: value for name, _, _, value in node.comparison.gauges()}


async def told(harness: Harness, node: PulsarService, reason: str, moves: int = 1) -> str:
    """Return the diary after the next round, once a number of moves have been observed and have settled."""

    def seen() -> float:
        judged = sum(count for _, _, labels, count in node.comparison.counters() if labels["reason"] == reason)
        return gauges(node)["loadmanager_pulsar_unjudged_moves"] + judged

    await eventually(lambda: knows_owners(harness, node), what="every owner is seen as it is in Pulsar's store")
    await eventually(lambda: seen() == moves)
    node.comparison.tick(time.time_ns() // 1_000_000 + 60_000)
    await node.shedding.begin_round()
    await eventually(lambda: any(record["reason"] == reason for record in node.diary.records(100)))
    return node.diary.text(100)


async def test_move_by_pulsar_is_reported(harness: Harness) -> None:
    node = await looking(harness)
    first, _, third = harness.pulsar.brokers
    await harness.pulsar.move(BUNDLE, third.broker_id)
    text = await told(harness, node, "moved_unselected")
    assert f"{BUNDLE}: It was moved from {first.broker_id} to {third.broker_id}, " in text
    assert (node.settings.folder / "diary.txt").read_text() == text
    assert await harness.pulsar.owner(BUNDLE) == third.broker_id


async def test_departure_of_an_owner_is_no_move(harness: Harness) -> None:
    node = await looking(harness)
    await harness.pulsar.kill(harness.pulsar.brokers[0])
    text = await told(harness, node, "owner_left", moves=4)
    assert "moved from" not in text
    assert {record["reason"] for record in node.diary.records(100)} == {"owner_left"}


async def test_own_move_is_reported_as_own(harness: Harness) -> None:
    node = await looking(harness, "act")
    to = node.mirror.registrations[harness.pulsar.brokers[1].broker_id]
    await node.executor.unload(BundleName.parse(OTHER), to, OwnershipReason.ADMIN_UNLOAD)
    await told(harness, node, "moved_by_us")
    (record,) = node.diary.records(100)
    assert (record["subject"], record["why"]["destination"]) == (OTHER, to.broker)
    assert record["bytesPerS"] > 0


async def test_gauges_are_exported(harness: Harness) -> None:
    node = await looking(harness)
    scrape = node.scrape()
    assert {name for name, *_ in scrape.gauges} >= {
        "loadmanager_pulsar_stalled",
        "loadmanager_pulsar_wanted_moves",
        "loadmanager_pulsar_max_over_mean",
    }


async def test_failed_first_round_does_not_end_the_term(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such column")

    monkeypatch.setattr("loadmanager.core.planning.shedding_round.propose", fail)
    node = await harness.leader(mode="observe")
    await eventually(lambda: node.shedding.rounds_failed)
    monkeypatch.undo()
    await node.shedding.begin_round()
    assert node.shedding.rounds == 1
    assert node.is_leading
    assert not node.failure.done()

    assert {name for name, *_ in node.scrape().gauges} >= gauges(node).keys()


async def test_recorded_history_can_be_scored(harness: Harness) -> None:
    begin_ms = time.time_ns() // 1_000_000
    node = await looking(harness)
    for broker, cpu in zip(harness.pulsar.brokers, (90.0, 10.0, 10.0), strict=True):
        broker.cpu = cpu
    applied = node.intake.reports_applied
    await harness.pulsar.report()
    await eventually(lambda: node.intake.reports_applied >= applied + 3)
    settings = node.live.current
    await node.stop()
    end_ms = max(begin_ms + 5_000, time.time_ns() // 1_000_000)
    found = answer(
        ScoreQuestion(settings.history_url, begin_ms, end_ms, values_as_text(settings), ["ThresholdShedder"], 1.0, 0)
    )
    assert (found.error, found.left_out, set(found.worlds)) == ("", {}, {"ThresholdShedder"})
    assert found.imbalance == pytest.approx(3.0)


async def test_unknown_resource_does_not_hide_why_a_broker_sheds_nothing(harness: Harness) -> None:
    node = await looking(harness)
    calm = harness.pulsar.brokers[2].broker_id
    entry = next(each for each in node.decision_log.recent(100, calm) if each["kind"] == "shed")
    assert entry["reason"] == "below_threshold"
    assert "is below average" in entry["sentence"]
    assert entry["sentence"].endswith("so their usage does not count: declare them")
