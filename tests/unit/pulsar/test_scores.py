from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path

import pytest
from support.waiting import eventually

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.config.node_settings import Settings
from loadmanager.core.diagnosis.pulsar_comparison import ComparisonEntry
from loadmanager.core.diagnosis.pulsar_tally import UsageLevel
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import ComparisonReason
from loadmanager.lab.whatif.range_figures import RangeFigures
from loadmanager.lab.whatif.score_worker import ScoreAnswer, ScoreQuestion, ScoringError
from loadmanager.pulsar.activity_log import HOUR_MS, BoundedFile
from loadmanager.pulsar.scores import DAY, HOUR, RangeScore, Scores

MIDNIGHT_MS = 1_789_948_800_000
NOON_MS = MIDNIGHT_MS + 12 * HOUR_MS
MIB = 1024 * 1024
SETTINGS = {"historyUrl": "/history", "loadBalancerLoadSheddingStrategy": "org.apache.pulsar.x.ThresholdShedder"}


def level(max_over_mean: float) -> UsageLevel:
    return UsageLevel(3, BrokerId("b1:8080"), 0.6, 0.6 / max_over_mean)


def moved(reason: ComparisonReason = ComparisonReason.MOVED_AS_WE_WOULD, mib: float = 10.0) -> ComparisonEntry:
    return ComparisonEntry(NOON_MS, Verdict("t/n/0x0_0x4", reason, acted=True), (), mib * MIB)


@dataclass
class Bench:
    """Scores, what they asked a model that answers the next of `answers` or what was told last, and what they told."""

    answers: list[ScoreAnswer | str] = field(default_factory=list)
    strategies: tuple[str, ...] = ()
    file: BoundedFile | None = None
    asked: list[ScoreQuestion] = field(default_factory=list)
    told: list[RangeScore] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = settings_of(SETTINGS, "test")
        self.scores = Scores(
            lambda: self._settings(settings), self.strategies, self.ask, self.told.append, self.file, UTC
        )

    def _settings(self, settings: Settings) -> Settings:
        return settings

    async def ask(self, question: ScoreQuestion) -> ScoreAnswer:
        self.asked.append(question)
        answer = (
            self.answers.pop(0)
            if self.answers
            else ScoreAnswer(2.0, {name: worlds(1.5) for name in question.strategies})
        )
        if isinstance(answer, str):
            raise ScoringError(answer)
        return answer

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.scores.run(flushed_s=0.0))
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def worlds(imbalance: float, moves: float = 4.0) -> RangeFigures:
    return RangeFigures(imbalance, 0.7, moves, 20.0, 5.0, 0.0)


async def test_finished_hour_is_scored_as_measured_and_as_modelled() -> None:
    bench = Bench(strategies=("AvgShedder", "ThresholdShedder"))
    bench.scores.see(NOON_MS, level(2.0), [])
    bench.scores.see(NOON_MS + HOUR_MS // 2, level(1.0), [moved(), moved(ComparisonReason.MOVED_UNSELECTED, 5.0)])
    bench.scores.tick(NOON_MS + HOUR_MS - 1)
    assert bench.scores.text() == "There is no score yet: the first one comes when the hour is over.\n"
    assert bench.scores.samples() == []
    bench.scores.tick(NOON_MS + HOUR_MS)
    async with bench.running():
        await eventually(lambda: bench.told)
    (score,) = bench.told
    assert (score.period, score.measured.moves, score.measured.agreed, score.measured.moved_load) == (
        HOUR,
        2,
        1,
        15 * MIB,
    )
    assert score.measured.max_over_mean == pytest.approx(1.5)
    assert (score.imbalance, list(score.worlds)) == (2.0, ["ThresholdShedder", "AvgShedder"])
    (question,) = bench.asked
    assert (question.url, question.from_ms, question.to_ms) == ("/history", NOON_MS, NOON_MS + HOUR_MS)
    assert question.settings["loadBalancerLoadSheddingStrategy"] == SETTINGS["loadBalancerLoadSheddingStrategy"]


async def test_score_is_shown_as_a_table() -> None:
    bench = Bench(strategies=("AvgShedder",))
    bench.scores.see(
        NOON_MS,
        level(2.0),
        [moved(), moved(ComparisonReason.MOVED_BY_US, 3.0), moved(ComparisonReason.WE_ALONE_STAYS, 7.0)],
    )
    stall = ComparisonEntry(NOON_MS + 30 * 60_000, Verdict("pulsar", ComparisonReason.STALLED_ON_OWNER, acted=False))
    bench.scores.see(NOON_MS + 30 * 60_000, level(2.0), [stall])
    bench.answers.append(ScoreAnswer(2.4, {"ThresholdShedder": worlds(1.25)}, {"AvgShedder": "it is out of order"}))
    bench.scores.tick(NOON_MS + HOUR_MS)
    async with bench.running():
        await eventually(lambda: bench.told)
    lines = bench.scores.text().splitlines()
    assert lines[0] == "Score of the hour from 2026-09-21 12:00 to 2026-09-21 13:00"
    assert [line.split() for line in lines[1:4]] == [
        ["max/mean", "Imbalance", "Worst", "broker", "Moves", "MiB/s", "moved", "Again", "Back"],
        ["As", "it", "was", "2.00", "2.40", "60", "%", "2", "13", "0", "0"],
        ["With", "ThresholdShedder,", "modelled", "1.25", "70", "%", "4", "20", "5", "0"],
    ]
    assert lines[4:8] == [
        "We wanted 1 of Pulsar's 1 moves, too; 1 that we wanted were not made, 7 MiB/s.",
        "We made 1 moves, 3 MiB/s.",
        "Pulsar had stalled for 30 min.",
        "There is no model of AvgShedder: it is out of order.",
    ]
    assert "promises nothing" in lines[-1]


async def test_day_is_aggregated_from_its_hours() -> None:
    bench = Bench(
        [ScoreAnswer(2.0, {"ThresholdShedder": worlds(1.0)}), ScoreAnswer(4.0, {"ThresholdShedder": worlds(2.0)})]
    )
    bench.scores.see(MIDNIGHT_MS - HOUR_MS - HOUR_MS // 2, level(2.0), [moved()])
    bench.scores.tick(MIDNIGHT_MS)
    async with bench.running():
        await eventually(lambda: len(bench.told) == 3)
    first, second, day = bench.told
    assert [score.period for score in bench.told] == [HOUR, HOUR, DAY]
    assert (first.measured.to_ms, second.measured.from_ms) == (MIDNIGHT_MS - HOUR_MS,) * 2
    assert (day.measured.from_ms, day.measured.to_ms, day.measured.moves) == (MIDNIGHT_MS - 5_400_000, MIDNIGHT_MS, 1)
    assert day.imbalance == pytest.approx((2.0 * 0.5 + 4.0 * 1.0) / 1.5)
    world = day.worlds["ThresholdShedder"]
    assert (world.moves, world.moved_mib_per_s, world.worst_usage) == (8.0, 40.0, 0.7)
    assert world.imbalance == pytest.approx((0.5 + 2.0) / 1.5)
    assert [record["period"] for record in bench.scores.records()] == [DAY, HOUR, HOUR]
    assert bench.scores.text().count("Score of the") == 2


async def test_day_includes_strategies_modelled_in_every_hour() -> None:
    bench = Bench(
        [
            "nothing was recorded",
            ScoreAnswer(2.0, {"ThresholdShedder": worlds(1.0), "AvgShedder": worlds(1.0)}),
            ScoreAnswer(2.0, {"ThresholdShedder": worlds(1.0)}),
        ]
    )
    bench.scores.see(MIDNIGHT_MS - 3 * HOUR_MS, level(2.0), [])
    bench.scores.tick(MIDNIGHT_MS)
    async with bench.running():
        await eventually(lambda: len(bench.told) == 4)
    assert list(bench.told[-1].worlds) == ["ThresholdShedder"]
    assert bench.told[-1].imbalance == 2.0


async def test_score_without_a_model_states_the_reason() -> None:
    bench = Bench(["the history is gone"])
    bench.scores.see(MIDNIGHT_MS - HOUR_MS - 60_000, level(2.0), [])
    bench.scores.tick(MIDNIGHT_MS)
    async with bench.running():
        await eventually(lambda: len(bench.told) == 3)
    notes = [score.note for score in bench.told]
    assert notes == ["the model needs 5 steps of 60 s", "the history is gone", "none of its hours has one"]
    assert "There is no model: the history is gone." in bench.scores.text()
    assert {name for name, *_ in bench.scores.samples()} == {
        "loadmanager_pulsar_hour_max_over_mean",
        "loadmanager_pulsar_hour_moves",
        "loadmanager_pulsar_hour_moved_again_bytes_per_second",
        "loadmanager_pulsar_hour_moved_back_bytes_per_second",
    }


async def test_scores_are_written_to_a_file_as_json(tmp_path: Path) -> None:
    bench = Bench(file=BoundedFile(tmp_path / "scores.jsonl"))
    bench.scores.see(NOON_MS, level(2.0), [])
    bench.scores.tick(NOON_MS + HOUR_MS)
    async with bench.running():
        await eventually(lambda: bench.told)
    record = json.loads((tmp_path / "scores.jsonl").read_text())
    assert record == bench.scores.records()[0]
    assert (record["period"], record["fromMs"], record["maxOverMean"]) == (HOUR, NOON_MS, 2.0)
    assert record["model"]["strategies"]["ThresholdShedder"]["movedMibPerS"] == 20.0


async def test_exported_moves_of_the_hour_are_those_of_the_table() -> None:
    bench = Bench()
    bench.scores.see(NOON_MS, level(2.0), [moved(), moved(ComparisonReason.MOVED_BY_US)])
    bench.scores.tick(NOON_MS + HOUR_MS)
    async with bench.running():
        await eventually(lambda: bench.told)
    found = {(name, labels.get("strategy", "")): value for name, _, labels, value in bench.scores.samples()}
    row = next(line for line in bench.scores.text().splitlines() if line.startswith("As it was"))
    assert found["loadmanager_pulsar_hour_moves", "as_it_was"] == float(row.split()[7]) == 2.0


async def test_last_hour_is_exported_by_strategy() -> None:
    bench = Bench()
    bench.scores.see(NOON_MS, level(2.0), [moved()])
    bench.scores.tick(NOON_MS + HOUR_MS)
    async with bench.running():
        await eventually(lambda: bench.told)
    found = {(name, labels.get("strategy", "")): value for name, _, labels, value in bench.scores.samples()}
    assert found == {
        ("loadmanager_pulsar_hour_max_over_mean", ""): 2.0,
        ("loadmanager_pulsar_hour_imbalance", "as_it_was"): 2.0,
        ("loadmanager_pulsar_hour_imbalance", "ThresholdShedder"): 1.5,
        ("loadmanager_pulsar_hour_moves", "as_it_was"): 1.0,
        ("loadmanager_pulsar_hour_moves", "ThresholdShedder"): 4.0,
        ("loadmanager_pulsar_hour_moved_again_bytes_per_second", "as_it_was"): 0.0,
        ("loadmanager_pulsar_hour_moved_again_bytes_per_second", "ThresholdShedder"): 5.0 * MIB,
        ("loadmanager_pulsar_hour_moved_back_bytes_per_second", "as_it_was"): 0.0,
        ("loadmanager_pulsar_hour_moved_back_bytes_per_second", "ThresholdShedder"): 0.0,
    }
