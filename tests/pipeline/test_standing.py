"""How long reports stand: many drawn histories, one day after the other, in few jobs of Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from support.drawn_fleet import Drawn, Entries
from support.frames import START_MS, rows_of
from support.plain_windows import Bundle, Happened, PlainWindow, plain_windows

from loadmanager.history.schemas import LOAD_COLUMNS, RESOURCE_COLUMNS
from loadmanager.pipeline.averages import (
    carried,
    short_broker_windows,
    short_bundle_windows,
    short_namespace_windows,
)
from loadmanager.pipeline.standing import registered, standing

HISTORIES = 60
DAY_MS = 86_400_000
WINDOW_S = 300


def drawn_histories(seed: int = 0, count: int = HISTORIES) -> Entries:
    """One each day; the last one is what the range ends with."""
    entries: Entries = []
    for day in range(count):
        rng = np.random.default_rng([seed, day])
        begin_ms = START_MS + day * DAY_MS + int(rng.integers(0, 3600)) * 1000
        entries += Drawn(rng, begin_ms, epoch=1 + day * 1000).go_on(steps=80)
    return entries


def frames_of(spark: SparkSession, entries: Entries) -> tuple[DataFrame, DataFrame, DataFrame]:
    """`clean_bundle_reports`, `clean_broker_reports` and `events`, as far as windows need them."""
    bundles, brokers, events = [], [], []
    for each in entries:
        keys = {"at_ms": each.at_ms, "epoch": each.epoch, "sequence": each.sequence}
        if isinstance(each, Happened):
            events.append({**keys, "kind": each.kind, "subject": each.subject})
            continue
        resources = dict.fromkeys(RESOURCE_COLUMNS, 0.0) | {"cpu_usage": each.cpu, "cpu_limit": 1.0}
        total = dict(zip(LOAD_COLUMNS, each.total(), strict=True))
        brokers.append({**keys, "broker": each.broker, **resources, **total})
        for (namespace, lower, upper), load in each.bundles.items():
            where = {"namespace": namespace, "range_lower": lower, "range_upper": upper}
            bundles.append(
                {**keys, **where, **dict(zip(LOAD_COLUMNS, load, strict=True)), "topics": int(load[0]), "sessions": 2}
            )
    made = [spark.createDataFrame(pd.DataFrame(rows)).cache() for rows in (bundles, brokers, events)]
    return made[0], made[1], made[2]


@dataclass
class Found:
    bundles: list[dict[str, Any]]
    brokers: list[dict[str, Any]]
    namespaces: list[dict[str, Any]]


def windows_of(spark: SparkSession, entries: Entries, end_ms: int) -> Found:
    bundle_reports, broker_reports, events = frames_of(spark, [each for each in entries if each.at_ms < end_ms])
    reports = standing(broker_reports, events, end_ms).cache()
    pieces = carried(bundle_reports, reports).cache()
    return Found(
        rows_of(short_bundle_windows(pieces)),
        rows_of(short_broker_windows(broker_reports, reports, pieces)),
        rows_of(short_namespace_windows(pieces)),
    )


ENTRIES = drawn_histories()
END_MS = (ENTRIES[-1].at_ms + ENTRIES[-40].at_ms) // 2 + 1
"""In the midst of the last one."""


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Iterator[Found]:
    yield windows_of(spark, ENTRIES, END_MS)
    spark.catalog.clearCache()


def test_windows_of_drawn_histories_are_what_stood_moment_by_moment(found: Found) -> None:
    expected = plain_windows(ENTRIES, END_MS)
    bundles = {(name_of(bundle), start): window for (bundle, start), window in expected.bundles.items()}
    assert_as(found.bundles, "bundle", bundles)
    assert_as(found.brokers, "broker", expected.brokers)
    assert_as(found.namespaces, "namespace", expected.namespaces)
    for row in found.bundles:
        window = bundles[row["bundle"], row["start_ms"]]
        assert row["n"] == window.n
        assert [row[f"max_{name}"] for name in LOAD_COLUMNS] == window.highest
    for row in found.brokers:
        window = expected.brokers[row["broker"], row["start_ms"]]
        assert row["n"] == window.n
        assert row["mean_cpu"] == pytest.approx(window.cpu / window.covered_ms)
        assert row["bundles"] == pytest.approx(window.bundles_ms / window.covered_ms)
        assert [row[f"max_{name}"] for name in LOAD_COLUMNS] == window.highest
    for row in found.namespaces:
        assert row["bundles"] == len(expected.namespaces[row["namespace"], row["start_ms"]].names)


def assert_as(rows: list[dict[str, Any]], subject: str, expected: dict[tuple[str, int], PlainWindow]) -> None:
    by_key = {(row[subject], row["start_ms"]): row for row in rows}
    assert by_key.keys() == expected.keys()
    for key, window in expected.items():
        row = by_key[key]
        assert row["covered_s"] == window.covered_ms / 1000, key
        means = [load / window.covered_ms for load in window.load]
        assert [row[f"mean_{name}"] for name in LOAD_COLUMNS] == pytest.approx(means, rel=1e-12), key
        assert row["topics"] == pytest.approx(means[0], rel=1e-12)


def name_of(bundle: Bundle) -> str:
    return f"{bundle[0]}/0x{bundle[1]:08x}_0x{bundle[2]:08x}"


def test_nothing_is_covered_for_longer_than_its_window(found: Found) -> None:
    for row in [*found.bundles, *found.brokers, *found.namespaces]:
        assert 0 < row["covered_s"] <= WINDOW_S


def test_namespaces_add_up_to_what_brokers_add_up_to(found: Found) -> None:
    for figure in (*(f"mean_{name}" for name in LOAD_COLUMNS), "topics", "sessions"):
        sums: list[dict[int, float]] = []
        for rows in (found.bundles, found.namespaces, found.brokers):
            by_window: dict[int, float] = defaultdict(float)
            for row in rows:
                by_window[row["start_ms"]] += row[figure] * row["covered_s"]
            sums.append({start: total for start, total in by_window.items() if total})
        of_bundles, of_namespaces, of_brokers = sums
        assert of_namespaces == pytest.approx(of_bundles, rel=1e-12)
        assert of_brokers == pytest.approx(of_namespaces, rel=1e-12)


def test_nothing_stands_after_the_end_of_the_range(found: Found) -> None:
    last = max(row["start_ms"] for row in found.brokers)
    assert last == (END_MS - 1) // (WINDOW_S * 1000) * WINDOW_S * 1000
    for row in [*found.bundles, *found.brokers, *found.namespaces]:
        assert row["start_ms"] + row["covered_s"] * 1000 <= max(END_MS, row["start_ms"])


def test_there_is_who_has_reported_or_registered_lately_and_not_gone_since(spark: SparkSession) -> None:
    end_ms = START_MS + DAY_MS
    reports = {"a": [-1], "gone": [-500], "silent": [-2 * 900_000 - 1], "back": [-500, -100], "late": [0]}
    rows = [(end_ms + at, 1, at + 10**7, broker) for broker, times in reports.items() for at in times]
    happened = [("gone", "broker_gone", -499), ("back", "broker_gone", -400), ("new", "broker_registered", -1)]
    events = [(end_ms + at, 1, at + 10**7, kind, broker) for broker, kind, at in happened]
    keys = "at_ms long, epoch long, sequence long"

    found = registered(
        spark.createDataFrame(rows, f"{keys}, broker string"),
        spark.createDataFrame(events, f"{keys}, kind string, subject string"),
        end_ms,
    )

    assert {row["broker"] for row in found.collect()} == {"a", "back", "new"}
