"""A process beside a Pulsar judges what it sees: from rounds and moves to the diary, the verdict and metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from support.builders import broker, bundle, report, snapshot, throughput
from support.waiting import eventually

from loadmanager.config.node_settings import Settings
from loadmanager.core.diagnosis.pulsar_comparison import Sighted
from loadmanager.core.domain.plan import Plan
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import State, plan_shedding
from loadmanager.core.planning.shedding_round import plan_as_pulsar
from loadmanager.lab.decide.decision_settings import settings_for
from loadmanager.lab.whatif.range_figures import RangeFigures
from loadmanager.lab.whatif.score_worker import ScoreAnswer, ScoreQuestion
from loadmanager.pulsar import comparison_driver
from loadmanager.pulsar.activity_log import HOUR_MS, ActivityLog
from loadmanager.pulsar.broker_settings import PulsarSettings
from loadmanager.pulsar.comparison_driver import VERDICT_AFTER_MS, ComparisonDriver, log_scores
from loadmanager.pulsar.scores import Scores
from loadmanager.pulsar.verdict import ServiceLocation

NOON_MS = 1_789_992_000_000
A, B, C = broker("a"), broker("b"), broker("c")


def reports(cpu: float) -> dict[str, BrokerReport]:
    """`a` has two bundles and uses so much, each of the others three, and 10 %."""
    own = {bundle(1): throughput(50), bundle(2): throughput(40)}
    others = [{bundle(first + i): throughput(1) for i in range(3)} for first in (3, 6)]
    return {"a": report(own, cpu=cpu), "b": report(others[0], cpu=10), "c": report(others[1], cpu=10)}


class Bench:
    """A judge whose time the test gives in minutes after noon, with the settings of both: `theirs` and `current`."""

    def __init__(self, theirs: Mapping[str, Any] | None = None, *, is_acting: bool = False) -> None:
        self.diary = ActivityLog(None, zone=UTC)
        self.current = ours = settings_for({}, "test")
        self.theirs: Settings = settings_for(theirs or {}, "test")
        self.scores = Scores(lambda: ours, (), self.ask, log_scores(self.diary), zone=UTC)
        self.doubt = ""
        where = ServiceLocation(Path("/var/beside"), "http://here:8085")
        self.comparison = ComparisonDriver(
            cast("PulsarSettings", self),
            self.diary,
            self.scores,
            where,
            0,
            is_acting=is_acting,
            is_bundle=lambda _: True,
            take_snapshot=lambda: self.seen,
        )
        self._planner = ours.planner_settings()

    async def ask(self, question: ScoreQuestion) -> ScoreAnswer:
        return ScoreAnswer(2.0, dict.fromkeys(question.strategies, RangeFigures(1.2, 0.5, 3.0, 9.0, 0.0, 0.0)))

    def at(self, minute: float, cpu: float = 60.0) -> tuple[Plan, Snapshot]:
        self.seen = replace(snapshot(reports(cpu)), taken_at_s=NOON_MS / 1000 + minute * 60)
        return plan_shedding(self.seen, self._planner, {}, np.random.default_rng(0))[0], self.seen

    async def round(self, minute: float, cpu: float = 60.0) -> None:
        await self.comparison.compare(*self.at(minute, cpu))

    def tick(self, minute: float) -> None:
        self.comparison.tick(NOON_MS + round(minute * 60_000))

    def text(self) -> str:
        return self.diary.text(100)

    def gauges(self) -> dict[str, float]:
        return {name: value for name, _, _, value in self.comparison.gauges()}


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison_driver, "VERDICT_AFTER_MS", HOUR_MS)


@pytest.mark.usefixtures("no_verdict")
async def test_stall_is_reported_with_its_reason_and_remedy(bench: Bench) -> None:
    for minute in range(3):
        await bench.round(minute)
        bench.tick(minute + 0.5)
    (paragraph,) = bench.text().split("\n2026")
    head, stalled, alone = paragraph.splitlines()
    assert head == ("2026-09-21 12:02 Of 3 brokers a:8080 is the busiest with 60 %, 2.25 times the mean of 27 %.")
    assert "Pulsar has stalled: for 2 rounds its strategy selected 1 of the bundles of a:8080" in stalled
    assert "set loadBalancerDistributeBundlesEvenlyEnabled to false" in stalled
    assert alone.strip().startswith(f"{bundle(1)}: We would move it from a:8080 to ")
    assert bench.gauges() == {
        "loadmanager_pulsar_stalled": 1.0,
        "loadmanager_pulsar_wanted_moves": 1.0,
        "loadmanager_pulsar_unjudged_moves": 0.0,
        "loadmanager_pulsar_max_over_mean": pytest.approx(2.25),
    }
    assert {labels["reason"]: value for _, _, labels, value in bench.comparison.counters()} == {
        "stalled_on_owner": 1,
        "we_alone_stays": 1,
    }


async def test_move_by_pulsar_is_reported_in_the_next_round_with_its_load(bench: Bench) -> None:
    await bench.round(0)
    bench.comparison.note_move(Sighted(bundle(2), A, C, NOON_MS + 10_000, by_us=False))
    bench.comparison.note_move(Sighted(bundle(99), None, C, NOON_MS + 10_000, by_us=False))
    bench.tick(0.5)
    assert bench.text() == ""
    await bench.round(1, cpu=20)
    lines = bench.text().splitlines()
    assert lines[1] == (
        f"    {bundle(2)}: Pulsar moved it from a:8080 to c:8080, 80 MiB/s; we would have taken others from there (1),"
        f" {bundle(1)} first."
    )
    assert lines[2] == "    Other bundles: 1 placed at a lookup, 1 no longer to be moved."


@pytest.mark.usefixtures("no_verdict")
async def test_bundles_of_a_departed_broker_are_only_counted(bench: Bench) -> None:
    await bench.round(0, cpu=20)
    bench.comparison.note_departure(A, NOON_MS + 1_000)
    bench.comparison.note_move(Sighted(bundle(1), A, B, NOON_MS + 2_000, by_us=False))
    bench.tick(1)
    await bench.round(1, cpu=20)
    assert bench.text() == ""
    assert [record["reason"] for record in bench.diary.records(5)] == ["owner_left"]


async def test_round_of_pulsar_uses_the_settings_of_pulsar() -> None:
    bench = Bench({"loadBalancerSheddingEnabled": False})
    for minute in range(3):
        await bench.round(minute)
    assert "and Pulsar does not: its shedding is off. Pulsar, of cluster: No move because" in bench.text()
    assert "stalled" not in bench.text()


async def test_doubt_about_the_rounds_of_pulsar_is_reported_once(bench: Bench) -> None:
    bench.doubt = "They may be others."
    await bench.round(0, cpu=20)
    await bench.round(1, cpu=20)
    bench.doubt = ""
    await bench.round(2, cpu=20)
    assert bench.text() == "2026-09-21 12:00 They may be others.\n"


async def test_disabled_shedding_of_pulsar_is_not_reported_while_acting() -> None:
    bench = Bench({"loadBalancerSheddingEnabled": False}, is_acting=True)
    for minute in range(3):
        await bench.round(minute)
    assert (bench.text(), bench.diary.records(9), bench.comparison.counters()) == ("", [], [])


async def test_unknown_strategy_of_pulsar_is_reported(bench: Bench) -> None:
    planner = replace(bench.theirs.planner_settings(), shedding_strategy="org.example.OurOwn")
    bench.theirs = _With(bench.theirs, planner)  # type: ignore[assignment]
    for minute in range(3):
        await bench.round(minute)
    assert "its strategy is unknown here. Pulsar, of cluster: Pulsar's own round cannot be computed here" in (
        bench.text()
    )


class _With:
    """Settings that plan by others."""

    def __init__(self, settings: Settings, planner: object) -> None:
        self.load_balancer_shedding_interval_minutes = settings.load_balancer_shedding_interval_minutes
        self._planner = planner

    def planner_settings(self) -> object:
        return self._planner


async def test_first_verdict_comes_once_with_next_steps(bench: Bench) -> None:
    bench.tick(0)
    for minute in range(2):
        await bench.round(minute)
        bench.tick(minute)
        bench.tick(minute + 0.1)
    assert bench.text().count("FIRST VERDICT") == 1
    verdict = bench.text()[bench.text().index("2026-09-21 12:01 FIRST VERDICT") :].splitlines()
    assert verdict[0] == (
        "2026-09-21 12:01 FIRST VERDICT after 1 min. Of 3 brokers a:8080 is the busiest with 60 %, 2.25 times the mean"
        " of 27 %. That is not level."
    )
    assert verdict[1].strip() == (
        "Level would move 1 bundles, 80 MiB/s; traffic highest/mean 2.81 -> 1.56. To have it: overrides:"
        " {loadBalancerLoadSheddingStrategy: Level, loadBalancerLoadPlacementStrategy: Level}"
    )
    assert verdict[2].strip() == "Pulsar has moved nothing yet; its strategy selects bundles, as computed here: 1."
    assert verdict[3].strip() == "We would move bundles now: 1, 100 MiB/s."
    assert verdict[4].strip().startswith(f"{bundle(1)} from a:8080 to ")
    assert verdict[5].strip() == "What to do next:"
    assert [line.strip().split(":")[0] for line in verdict[6:]] == [
        "read on",
        "why a bundle would move",
        "why a broker sheds or not",
        "how even it could be, and what would have to move",
        "scores, after each hour",
        "what another strategy would have made of it",
        "have it moved",
    ]
    assert VERDICT_AFTER_MS < 60_000


@pytest.mark.parametrize(
    ("theirs", "cpu", "moves", "expected"),
    [
        ({}, 11.0, [], "Pulsar moves nothing: its strategy selects no bundle, as computed here."),
        ({"loadBalancerSheddingEnabled": False}, 60.0, [], "Pulsar sheds nothing: No move because"),
        (
            {},
            60.0,
            [Sighted(bundle(1), A, B, NOON_MS + 1_000, by_us=False)],
            "Pulsar moved bundles in that time: 1, 100",
        ),
    ],
)
async def test_verdict_describes_what_pulsar_does(
    theirs: dict[str, Any], cpu: float, moves: list[Sighted], expected: str
) -> None:
    bench = Bench(theirs, is_acting=True)
    await bench.round(0, cpu)
    for each in moves:
        bench.comparison.note_move(each)
    bench.tick(0.5)
    await bench.round(0.7, cpu)
    bench.tick(1)
    verdict = bench.text()[bench.text().index("FIRST VERDICT") :]
    assert expected in verdict
    assert "mode: act" not in verdict
    assert ("The configured strategy would move nothing. Of a:8080: No move because" in verdict) == (cpu < 60)
    assert "That is level." not in verdict, "the traffic of a broker is far above the mean"


async def test_verdict_after_one_round_says_that_nothing_moved_yet(bench: Bench) -> None:
    await bench.round(0)
    bench.tick(4)
    assert "Pulsar has moved nothing yet; its strategy selects bundles, as computed here: 1." in bench.text()


async def test_hours_are_scored_and_reported(bench: Bench) -> None:
    await bench.round(1)
    running = asyncio.create_task(bench.scores.run(flushed_s=0.0))
    bench.comparison.tick(NOON_MS + HOUR_MS)
    await eventually(lambda: "Score of the hour" in bench.text())
    running.cancel()
    assert bench.text().splitlines()[-1].partition(" Score")[2] == (
        " of the hour from 2026-09-21 12:01 to 2026-09-21 13:00: the busiest broker had 2.25 times the mean; imbalance"
        " by the model 2.00, with ThresholdShedder 1.20; 0 moves of 0 MiB/s, with ThresholdShedder 3 by the model."
    )


async def test_day_is_reported_in_a_table(bench: Bench) -> None:
    await bench.round(1)
    running = asyncio.create_task(bench.scores.run(flushed_s=0.0))
    bench.comparison.tick(NOON_MS + 12 * HOUR_MS)
    await eventually(lambda: "Score of the day" in bench.text())
    running.cancel()
    score = bench.text()[bench.text().index("Score of the day") :].splitlines()
    assert score[2].split()[:4] == ["As", "it", "was", "2.25"]
    assert score[3].split()[:2] == ["With", "ThresholdShedder,"]


async def test_moves_are_reported_after_the_end_of_a_term(bench: Bench) -> None:
    for minute in range(3):
        await bench.round(minute)
    bench.comparison.add_round(*bench.at(3))
    bench.comparison.end_term()
    assert bench.gauges()["loadmanager_pulsar_stalled"] == 0
    bench.comparison.note_move(Sighted(bundle(1), A, B, NOON_MS + 240_000, by_us=False))
    bench.tick(9)
    assert "before our first round" in bench.text()


async def test_round_computed_at_the_end_of_a_term_is_not_judged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*arguments: Any) -> tuple[Plan, State]:  # noqa: ANN401 - as it is called
        bench.comparison.end_term()
        return plan_as_pulsar(*arguments)

    monkeypatch.setattr(comparison_driver, "plan_as_pulsar", plan)
    await bench.round(0)
    assert "loadmanager_pulsar_max_over_mean" not in bench.gauges()


async def test_failed_comparison_does_not_stop_the_driver(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ticks: list[int] = []

    def tick(now_ms: int) -> None:
        ticks.append(now_ms)
        raise ValueError("out of order")

    monkeypatch.setattr(comparison_driver, "_TICK_S", 0.001)
    monkeypatch.setattr(bench.comparison, "tick", tick)
    running = asyncio.create_task(bench.comparison.run())
    bench.comparison.add_round(*bench.at(0)[:1], None)  # type: ignore[arg-type]
    bench.comparison.add_round(*bench.at(1))
    await eventually(lambda: "loadmanager_pulsar_max_over_mean" in bench.gauges())
    await eventually(lambda: len(ticks) > 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    said = capsys.readouterr().out
    assert "round_not_judged" in said
    assert "moves_not_judged" in said


async def test_verdict_says_why_level_would_move_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    indivisible = {**reports(60.0), "a": report({bundle(1): throughput(90)}, cpu=60.0)}
    monkeypatch.setitem(globals(), "reports", lambda _: indivisible)
    await bench.round(0)
    await bench.round(0.7)
    bench.tick(1)
    line = next(line for line in bench.text().splitlines() if "Level would move" in line)
    assert re.search(
        r"Level would move nothing: traffic highest/mean \d\.\d\d\. Of a:8080: No move because .+\.$", line
    )


async def test_verdict_uses_current_figures_not_those_of_the_last_round(bench: Bench) -> None:
    await bench.round(0, 1.0)
    bench.at(0.9, 60.0)
    bench.tick(1)
    assert "a:8080 is the busiest with 60 %, 2.25 times the mean" in bench.text()
    assert "Level would move 1 bundles, 80 MiB/s" in bench.text()
