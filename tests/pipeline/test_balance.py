from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from support.builders import Load, broker, bundle
from support.frames import DAY_MS, MINUTE_MS, START_MS, Timed, histories_of, history_of, reported, rows_of
from support.ingested import ingested
from support.window_frames import frame_of as window_rows

from loadmanager.core.domain.resources import HOT as OVERLOADED
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.planning import churn
from loadmanager.history.entry_rows import HistoryEvent, MoveRow
from loadmanager.history.table_schemas import MOVES
from loadmanager.pipeline.balance import (
    flapping,
    hot_bundles,
    imbalance,
    inconsistent_brokers,
    move_effects,
    time_above,
)
from loadmanager.pipeline.history_tables import HistoryTables


def mib(each_way: float) -> Load:
    return (each_way * 10, each_way * 10, each_way * 1000, each_way * 1000)


UNEVEN: list[Timed] = [
    (0, reported("a", {bundle(1): mib(3), bundle(2): mib(3)}, cpu=95)),
    (1, reported("b", {bundle(3): mib(2)}, cpu=20)),
    (2, reported("c", {bundle(4, "t/other"): mib(1)}, cpu=20)),
    (5 * MINUTE_MS, reported("a", {bundle(1): mib(3)}, cpu=50)),
    (5 * MINUTE_MS + 1, reported("b", {bundle(2): mib(3), bundle(3): mib(2)}, cpu=60)),
    (5 * MINUTE_MS + 2, reported("c", {bundle(4, "t/other"): mib(1)}, cpu=20)),
]


CRASHED: list[Timed] = [
    (0, reported("a", {bundle(1): mib(3)})),
    (0, reported("b", {bundle(2): mib(3)})),
    (MINUTE_MS, HistoryEvent("broker_gone", "a:8080")),
    (MINUTE_MS, reported("b", {bundle(1): mib(3), bundle(2): mib(3)})),
]
"""Load of a fleet in which one broker carries everything after a minute; the range ends a minute later."""

HOT = {bundle(1): mib(6), bundle(2): mib(3), bundle(3): mib(1), bundle(4): mib(0)}
TWO = {bundle(2): mib(1), bundle(3): mib(1)}
INCONSISTENT: list[Timed] = [
    (0, reported("a", {bundle(1): mib(1)})),
    (1, reported("b", TWO, load=(20, 20, 2000, 4000))),
    (2, reported("b", TWO, load=(20, 20, 2000, 2010))),
    (3, reported("c", {}, load=(0, 0, 500, 0))),
]


def some_moves(start_ms: int) -> list[Timed]:
    """Three of them, of which the leader has measured the first; the last one failed long afterwards."""

    def began(number: int) -> MoveRow:
        return MoveRow(
            "began", bundle(number), "a:8080", None, "broker_overloaded", load=mib(3), imbalance_before=2.0,
            imbalance_after=1.5, started_ms=start_ms + 310_000,
        )  # fmt: skip

    entries: list[Timed] = [*UNEVEN[:3], (310_000, began(2)), (310_001, began(3)), (310_002, began(4))]
    first = len(UNEVEN[:3])

    def later(kind: str, number: int, move: int, **more: Any) -> MoveRow:  # noqa: ANN401 - the other fields
        return MoveRow(kind, bundle(number), "a:8080", "b:8080", "broker_overloaded", move=first + move, **more)

    entries += [
        (311_000, later("done", 2, 0, ended_ms=start_ms + 311_000, outcome="Owned")),
        (311_000, later("done", 3, 1, ended_ms=start_ms + 311_000, outcome="Owned")),
        (311_000, later("kept", 4, 2, ended_ms=start_ms + 10**8, outcome="failed")),
        (320_000, later("measured", 2, 0, imbalance_before=2.1, imbalance_after=1.7)),
    ]
    entries += [(11 * MINUTE_MS + at, entry) for at, (_, entry) in enumerate(UNEVEN[3:])]
    return [*entries, (10**6, HistoryEvent("nothing"))]


UNEVEN_DAY, IDLE_DAY, CRASHED_DAY, HOT_DAY, INCONSISTENT_DAY, MOVES_DAY = range(6)


@dataclass(frozen=True)
class Days:
    """Results of a history with a day for each of the above."""

    broker_windows: DataFrame
    bundle_windows: DataFrame
    totals_compared: DataFrame
    moves: DataFrame


def start_of(day: int) -> int:
    return START_MS + day * DAY_MS


def of(day: int, frame: DataFrame) -> DataFrame:
    at = f.col("start_ms" if "start_ms" in frame.columns else "at_ms")
    return frame.where(at.between(start_of(day), start_of(day + 1) - 1))


@pytest.fixture(scope="module")
def days(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Days:
    folder = tmp_path_factory.mktemp("days")
    url = histories_of(
        tmp_path_factory.mktemp("days"),
        [
            (UNEVEN, 10 * MINUTE_MS),
            ([(0, reported("a", {}))], 1),
            (CRASHED, 2 * MINUTE_MS),
            ([(0, reported("a", HOT))], 1),
            (INCONSISTENT, 4),
            (some_moves(start_of(MOVES_DAY)), 20 * MINUTE_MS),
            ([(0, reported("a", {}))], 1),  # without a later report nothing would be valid after the last one
        ],
    )
    tables = ingested(spark, url, folder / "out")
    moves = HistoryTables(spark, url).frame(MOVES)
    return Days(tables.read("broker_windows"), tables.read("bundle_windows"), tables.read("totals_compared"), moves)


def test_imbalance_is_the_busiest_broker_over_the_mean(days: Days) -> None:
    windows = of(UNEVEN_DAY, days.broker_windows)
    first, second = rows_of(imbalance(windows, OVERLOADED, threshold=1.9), "start_ms")
    assert (first["start_ms"], first["brokers"], first["covered_s"]) == (START_MS, 3, 300.0)
    assert first["load"] == pytest.approx(18_000, rel=1e-4)
    assert first["max_over_mean"] == pytest.approx(12 / 6, rel=1e-4)
    assert first["cv"] == pytest.approx(((36 + 4 + 16) / 3) ** 0.5 / 6, rel=1e-4)
    assert (first["worst_broker"], first["worst_used_broker"]) == ("a:8080", "a:8080")
    assert (first["worst_usage"], first["overloaded_brokers"], first["above_threshold"]) == (0.95, 1, True)
    assert second["max_over_mean"] == pytest.approx(10 / 6, rel=1e-4)
    assert (second["worst_broker"], second["above_threshold"]) == ("b:8080", False)


def test_idle_cluster_is_balanced(days: Days) -> None:
    (row,) = rows_of(imbalance(of(IDLE_DAY, days.broker_windows), OVERLOADED))
    assert (row["max_over_mean"], row["cv"], row["above_threshold"]) == (1.0, 0.0, False)


def test_crashed_broker_counts_for_its_time_present(days: Days) -> None:
    windows = of(CRASHED_DAY, days.broker_windows)
    even = imbalance(windows, OVERLOADED)
    (row,) = rows_of(even)
    assert (row["covered_s"], row["load"], row["brokers"]) == (120.0, 12_000.0, 2)
    assert row["max_over_mean"] == pytest.approx(9 / 8)  # 6 for a minute, 9 for two
    assert row["cv"] == pytest.approx(((1 * 2**2 + 2 * 1**2) / 3) ** 0.5 / 8)
    observed = {each["subject"]: each["observed_s"] for each in rows_of(time_above(even, windows))}
    assert observed == {"cluster": 120.0, "a:8080": 60.0, "b:8080": 120.0}


def test_time_above_counts_covered_window_time(days: Days) -> None:
    windows = of(UNEVEN_DAY, days.broker_windows)
    even = imbalance(windows, OVERLOADED)
    found = {row["subject"]: row for row in rows_of(time_above(even, windows, threshold=1.9))}
    assert found["cluster"] | {"above_s": 300.0, "threshold": 1.9, "what": "imbalance"} == found["cluster"]
    assert found["a:8080"]["above_s"] == 300.0
    assert found["a:8080"]["share"] == pytest.approx(300 / found["a:8080"]["observed_s"])
    assert (found["b:8080"]["above_s"], found["b:8080"]["what"]) == (0.0, "usage")


def test_windows_without_known_usage_are_not_counted(spark: SparkSession) -> None:
    window = {"broker": "a", "window_s": 300, "covered_s": 300.0}
    rows = [{**window, "mean_usage": 0.9}, {**window, "start_ms": 300_000, "mean_usage": None}]
    rows += [{**window, "broker": "b", "mean_usage": None}]
    windows = window_rows(spark, "broker_windows", rows)
    even = window_rows(spark, "imbalance", [])
    (found,) = rows_of(time_above(even, windows))
    assert (found["subject"], found["above_s"], found["observed_s"], found["share"]) == ("a", 300.0, 300.0, 1.0)
    first, second = rows_of(imbalance(windows, OVERLOADED), "start_ms")
    assert (first["worst_usage"], first["worst_used_broker"], first["overloaded_brokers"]) == (0.9, "a", 1)
    assert second["worst_usage"] is None


def test_hot_bundles_are_ranked_by_load_of_the_day(days: Days) -> None:
    windows = of(HOT_DAY, days.bundle_windows)
    found = rows_of(hot_bundles(windows, most=2), "rank")
    assert [(row["bundle"], row["rank"], row["load"]) for row in found] == [
        (bundle(1), 1, 12_000),
        (bundle(2), 2, 6000),
    ]
    assert [row["share"] for row in found] == pytest.approx([0.6, 0.3])
    assert [row["times_mean"] for row in found] == pytest.approx([2.4, 1.2])
    assert found[0]["msg_rate"] == 120
    assert [row["rank"] for row in rows_of(hot_bundles(windows), "rank")] == [1, 2, 3]


def done(at_s: float, number: int, source: str, destination: str | None, share: float, *, own: bool = True) -> Timed:
    ends = {"source": [f"{source}:8080", 1], "destination": destination and [f"{destination}:8080", 1]}
    move = MoveRow(
        kind="done",
        bundle=bundle(number),
        source=f"{source}:8080",
        destination=destination and f"{destination}:8080",
        reason="broker_overloaded" if own else "drain",
        detail={"atS": at_s, "isOwn": own, "share": share, **ends},
    )
    return (round(at_s * 1000), move)


def test_returns_and_thrash_equal_those_counted_by_the_leader(spark: SparkSession, tmp_path: Path) -> None:
    script: list[tuple[float, int, str, str | None, float, bool]] = [
        (0, 1, "a", "b", 0.1, True),
        (60, 1, "b", "a", 0.2, True),
        (120, 1, "a", "b", 0.05, True),
        (130, 2, "a", "b", 0.3, True),
        (200, 2, "b", "a", 0.3, False),
        (300, 3, "a", None, 0.1, True),
        (4000, 3, "b", "a", 0.1, True),
    ]
    moves = [done(at, number, source, to, share, own=own) for at, number, source, to, share, own in script]
    url = history_of(tmp_path, [*moves, (5_000_000, reported("a", {}))])
    found = {row["bundle"]: row for row in rows_of(flapping(HistoryTables(spark, url).frame(MOVES), PlannerSettings()))}
    settings = PlannerSettings()
    for number in (1, 2, 3):
        state: dict[str, Any] = {}
        own = [step for step in script if step[1] == number]
        for at_s, _, source, to, share, is_own in own:
            destination = None if to is None else broker(to)
            state, _ = churn.noted(
                state, bundle(number), broker(source), destination, share, settings, at_s=at_s, is_own=is_own
            )
        memory = churn.MoveMemory.of(state)
        row = found[bundle(number)]
        assert row["thrash"] == memory.moved_back(own[-1][0])
        assert (row["moves"], row["own_moves"]) == (len(own), sum(step[-1] for step in own))
    assert {name: row["returns"] for name, row in found.items()} == {bundle(1): 2, bundle(2): 1, bundle(3): 1}
    assert [found[bundle(number)]["moved_again"] for number in (1, 2, 3)] == pytest.approx([0.25, 0.0, 0.1])
    assert found[bundle(1)]["first_ms"] == START_MS
    assert found[bundle(1)]["moved_share"] == pytest.approx(0.35)


def test_return_to_a_restarted_broker_is_not_counted(spark: SparkSession, tmp_path: Path) -> None:
    there = done(0, 1, "a", "b", 0.1)
    assert isinstance(there[1], MoveRow)
    back = MoveRow(
        kind="done", bundle=bundle(1), source="b:8080", destination="a:8080", reason="broker_overloaded",
        detail={"atS": 60, "isOwn": True, "share": 0.1, "source": ["b:8080", 1], "destination": ["a:8080", 2]},
    )  # fmt: skip
    url = history_of(tmp_path, [there, (60_000, back)])
    (row,) = rows_of(flapping(HistoryTables(spark, url).frame(MOVES), PlannerSettings()))
    assert (row["moves"], row["returns"], row["thrash"]) == (2, 0, 0.0)


def test_move_effect_uses_leader_measurement_or_windows(days: Days) -> None:
    start_ms, imbalances = start_of(MOVES_DAY), imbalance(of(MOVES_DAY, days.broker_windows), OVERLOADED)
    by_leader, by_windows, kept = rows_of(move_effects(days.moves, imbalances), "sequence")
    assert (by_leader["destination"], by_leader["outcome"], by_leader["load"]) == ("b:8080", "Owned", 6000)
    assert (by_leader["measured_before"], by_leader["measured_after"], by_leader["measured_by"]) == (2.1, 1.7, "leader")
    assert by_leader["error"] == pytest.approx(0.2)
    seen = {row["start_ms"]: row["max_over_mean"] for row in rows_of(imbalances)}
    assert by_windows["measured_by"] == "windows"
    assert by_windows["measured_before"] == seen[start_ms]
    assert by_windows["measured_after"] == seen[start_ms + 3 * 300_000]
    assert by_windows["error"] == pytest.approx(seen[start_ms + 3 * 300_000] - 1.5)
    assert (kept["outcome"], kept["measured_by"], kept["measured_after"], kept["error"]) == ("failed", None, None, None)


def test_broker_with_differing_bundle_total_is_listed(days: Days) -> None:
    worst, other = rows_of(inconsistent_brokers(of(INCONSISTENT_DAY, days.totals_compared)), "broker")
    assert worst == {
        "broker": "b:8080", "what": "msg_throughput_out", "reports": 2, "inconsistent": 1, "worst_difference": 0.5,
        "at_ms": start_of(INCONSISTENT_DAY) + 1, "reported": 4000.0, "summed": 2000.0,
    }  # fmt: skip
    assert (other["broker"], other["what"], other["summed"]) == ("c:8080", "msg_throughput_in", 0.0)
