"""Windows of drawn histories with crashes, moves, splits, merges and elections, against the same moment by moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from support.builders import broker
from support.drawn_fleet import Drawn, Entries
from support.frames import HOUR_MS, START_MS
from support.ingested import flushed, ingested, rows_in, write_files
from support.plain_windows import Bundle, PlainWindow, Reported, plain_windows

from loadmanager.history.table_schemas import LOAD_COLUMNS
from loadmanager.pipeline.attribution import epoch_ends, overlaps
from loadmanager.pipeline.datasets import frame_of
from loadmanager.pipeline.windows import SHORTEST_S

HISTORIES = 16
APART_MS = 3 * HOUR_MS


def drawn_histories() -> Entries:
    entries: Entries = []
    for number in range(HISTORIES):
        rng = np.random.default_rng([0, number])
        begin_ms = START_MS + number * APART_MS + int(rng.integers(0, 3600)) * 1000
        drawn = Drawn(rng, begin_ms, epoch=1 + number * 1000)
        drawn.sequence = len(entries)
        entries += [each for each in drawn.go_on(steps=80) if each.at_ms < begin_ms + APART_MS - HOUR_MS]
    return entries


ENTRIES = drawn_histories()[:-20]
"""Until the midst of the last one."""
END_MS = max(each.at_ms for each in ENTRIES if isinstance(each, Reported)) + 1


@dataclass(frozen=True)
class Found:
    bundles: list[dict[str, Any]]
    brokers: list[dict[str, Any]]
    namespaces: list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Windows of 5 minutes."""
    folder = tmp_path_factory.mktemp("drawn")
    url = str(folder / "history")
    write_files(url, flushed(ENTRIES, np.random.default_rng(1)))
    tables = ingested(spark, url, folder / "out")
    names = ("bundle_windows", "broker_windows", "namespace_windows")
    return Found(*([row for row in rows_in(tables, name) if row["window_s"] == SHORTEST_S] for name in names))


def test_windows_equal_the_moment_by_moment_computation(found: Found) -> None:
    expected = plain_windows(ENTRIES, END_MS)
    bundles = {(name_of(bundle), start): window for (bundle, start), window in expected.bundles.items()}
    assert_as(found.bundles, "bundle", bundles)
    brokers = {(str(broker(name).broker), start): window for (name, start), window in expected.brokers.items()}
    assert_as(found.brokers, "broker", brokers)
    assert_as(found.namespaces, "namespace", expected.namespaces)
    for row in found.bundles:
        window = bundles[row["bundle"], row["start_ms"]]
        assert row["n"] == window.n
        assert [row[f"max_{name}"] for name in LOAD_COLUMNS] == window.highest
    for row in found.brokers:
        window = brokers[row["broker"], row["start_ms"]]
        assert row["n"] == window.n
        assert row["mean_cpu"] == pytest.approx(window.cpu / window.covered_ms)
        assert row["bundles"] == pytest.approx(window.bundles_ms / window.covered_ms)
        assert [row[f"max_{name}"] for name in LOAD_COLUMNS] == window.highest
    for row in found.namespaces:
        assert row["bundles"] == len(expected.namespaces[row["namespace"], row["start_ms"]].names)


def assert_as(rows: Sequence[Mapping[str, Any]], subject: str, expected: Mapping[tuple[str, int], PlainWindow]) -> None:
    by_key = {(row[subject], row["start_ms"]): row for row in rows}
    assert by_key.keys() == expected.keys()
    for key, window in expected.items():
        row = by_key[key]
        assert row["covered_s"] == window.covered_ms / 1000, key
        means = [load / window.covered_ms for load in window.load]
        assert [row[f"mean_{name}"] for name in LOAD_COLUMNS] == pytest.approx(means, rel=1e-9), key


def name_of(bundle: Bundle) -> str:
    return f"{bundle[0]}/0x{bundle[1]:08x}_0x{bundle[2]:08x}"


def test_bundles_namespaces_and_brokers_add_up_to_the_same_load(found: Found) -> None:
    for figure in (*(f"mean_{name}" for name in LOAD_COLUMNS), "topics", "sessions"):
        sums: list[dict[int, float]] = []
        for rows in (found.bundles, found.namespaces, found.brokers):
            by_window: dict[int, float] = defaultdict(float)
            for row in rows:
                by_window[row["start_ms"]] += row[figure] * row["covered_s"]
            sums.append({start: total for start, total in by_window.items() if total})
        of_bundles, of_namespaces, of_brokers = sums
        assert of_namespaces == pytest.approx(of_bundles, rel=1e-9)
        assert of_brokers == pytest.approx(of_namespaces, rel=1e-9)


def test_coverage_ends_with_the_window_and_the_last_report(found: Found) -> None:
    for row in [*found.bundles, *found.brokers, *found.namespaces]:
        assert 0 < row["covered_s"] <= min(SHORTEST_S, (END_MS - row["start_ms"]) / 1000)


def test_epoch_ends_with_its_term_the_next_term_or_the_history() -> None:
    first = {
        ("term_began", 2): 10, ("term_ended", 2): 20, ("term_began", 5): 30, ("broker_gone", 7): 40,
        ("term_began", 9): 50, ("term_ended", 0): 60, ("term_ended", 11): 200,
    }  # fmt: skip
    ends = {0: 100, 1: 10, 2: 20, 3: 30, 5: 50, 7: 50, 9: 100, 11: 100}
    assert epoch_ends(first, [0, 1, 2, 3, 5, 7, 9, 11], 100) == ends
    assert epoch_ends({}, [0, 1], 100) == {0: 100, 1: 100}


def test_overlaps_pair_exactly_the_bundles_that_share_hashes(spark: SparkSession) -> None:
    rng = np.random.default_rng(3)
    bounds = [sorted(rng.choice(60, 2, replace=False).tolist()) for _ in range(80)]
    ranges = {(f"t/{number % 4}", lower, upper) for number, (lower, upper) in enumerate(bounds)}
    ranges |= {("t/cut", 0, 16), ("t/cut", 0, 8), ("t/cut", 8, 16), ("t/apart", 0, 8), ("t/apart", 8, 16)}
    expected = {
        (one[0], *one[1:], *other[1:])
        for one in ranges
        for other in ranges
        if one != other and one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
    }
    schema = "namespace string, range_lower long, range_upper long"
    frame = spark.createDataFrame(sorted(ranges), schema)
    rows = overlaps(frame).collect()
    names = ("namespace", "range_lower", "range_upper", "other_lower", "other_upper")
    assert len(rows) == len(expected)
    assert {tuple(row[name] for name in names) for row in rows} == expected
    assert overlaps(frame_of(spark, frame.schema)).count() == 0
