"""Windows and running means, against the same worked out without Spark."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from support.builders import Load, bundle, owned
from support.frames import HOUR_MS, MINUTE_MS, START_MS, Timed, history_of, reported, rows_of

from loadmanager.core.cluster import ClusterModel
from loadmanager.core.load import LONG_WINDOW
from loadmanager.history.rows import Report
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS
from loadmanager.pipeline.averages import STANDS_MS, broker_windows, bundle_windows, namespace_windows, running_means
from loadmanager.pipeline.ingest import clean_broker_reports, clean_bundle_reports
from loadmanager.pipeline.reading import HistoryTables
from loadmanager.pipeline.schemas import METRICS

WINDOWS_MS = {300: 300_000, 3600: HOUR_MS, 86400: 24 * HOUR_MS}


def clean_tables(spark: SparkSession, folder: Path, entries: Sequence[Timed]) -> tuple[DataFrame, DataFrame]:
    history = HistoryTables(spark, history_of(folder, entries))
    bundles = clean_bundle_reports(history.frame(BUNDLE_REPORTS, with_file=True)).clean
    return bundles, clean_broker_reports(history.frame(BROKER_REPORTS, with_file=True)).clean


def some_reports(minutes: Sequence[int], seed: int = 0) -> list[Timed]:
    """Two brokers and five bundles in two namespaces, one of which moves after half of the time."""
    rng = np.random.default_rng(seed)
    names = [bundle(1), bundle(2), bundle(3, "t/other"), bundle(4, "t/other"), bundle(5, "t/other")]
    entries: list[Timed] = []
    for minute in minutes:
        on_a = 2 if minute < minutes[len(minutes) // 2] else 3
        for name, bundles in (("a", names[:on_a]), ("b", names[on_a:])):
            loads: dict[str, Load] = {each: tuple(np.round(rng.lognormal(3, 1, 4))) for each in bundles}
            late_ms = int(rng.integers(0, MINUTE_MS))
            entries.append((minute * MINUTE_MS + late_ms, reported(name, loads, cpu=float(rng.integers(100)))))
    return entries


Standing = dict[tuple[str, int], list[tuple[float, Mapping[str, Load], Report, bool]]]


def standing_of(entries: Sequence[Timed]) -> Standing:
    """By broker and window of 5 minutes: for how long each report stood in it, and whether it came in it."""
    found: Standing = defaultdict(list)
    for number, (at, entry) in enumerate(entries):
        assert isinstance(entry, Report)
        later = [t for t, e in entries[number + 1 :] if isinstance(e, Report) and e.registration == entry.registration]
        until = max(min([*later[:1], at + STANDS_MS]), at + 1)
        loads = dict(zip(entry.report.bundle_names, map(tuple, entry.report.bundle_load.tolist()), strict=True))
        for window in range(at // 300_000, (until - 1) // 300_000 + 1):
            start = window * 300_000
            stood = min(until, start + 300_000) - max(at, start)
            found[entry.registration.broker, window].append((stood / 1000, loads, entry, at >= start))
    return found


def mean(weighted: Sequence[tuple[float, float]]) -> float:
    return sum(weight * value for weight, value in weighted) / sum(weight for weight, _ in weighted)


def nearest_rank(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def plain_bundle_windows(entries: Sequence[Timed]) -> dict[tuple[int, int, str], dict[str, float]]:
    """By length, start and bundle."""
    rows: dict[tuple[str, int], list[tuple[float, Load, bool]]] = defaultdict(list)
    for (_, window), reports in standing_of(entries).items():
        for stood, loads, _, own in reports:
            for name, load in loads.items():
                rows[name, window].append((stood, load, own))
    found = {}
    for length_s, length_ms in WINDOWS_MS.items():
        together: dict[tuple[str, int], list[list[tuple[float, Load, bool]]]] = defaultdict(list)
        for (name, window), short in rows.items():
            together[name, window * 300_000 // length_ms * length_ms].append(short)
        for (name, start), shorts in together.items():
            flat = [each for short in shorts for each in short]
            row: dict[str, float] = {"n": sum(own for *_, own in flat), "covered_s": sum(stood for stood, *_ in flat)}
            for at, metric in enumerate(METRICS):
                row[f"mean_{metric}"] = mean([(stood, load[at]) for stood, load, _ in flat])
                row[f"max_{metric}"] = max(load[at] for _, load, _ in flat)
                means = [mean([(stood, load[at]) for stood, load, _ in short]) for short in shorts]
                row[f"p95_{metric}"] = nearest_rank(means)
            found[length_s, START_MS + start, name] = row
    return found


def by(frame: DataFrame, subject: str) -> dict[tuple[int, int, str], dict[str, Any]]:
    return {(row["window_s"], row["start_ms"], row[subject]): row for row in rows_of(frame)}


@pytest.mark.parametrize("minutes", [range(90), [0, 1, 7, 30, 31, 58, 100, 101]], ids=["each minute", "sparse"])
def test_windows_of_bundles_are_what_plain_python_makes_of_the_reports(
    spark: SparkSession, tmp_path: Path, minutes: Sequence[int]
) -> None:
    entries = some_reports(minutes)
    found = by(bundle_windows(*clean_tables(spark, tmp_path, entries)), "bundle")
    expected = plain_bundle_windows(entries)
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert {name: found[key][name] for name in row} == pytest.approx(row), key
        assert found[key]["namespace"] == key[2].rpartition("/")[0]
        assert found[key]["topics"] == 1


def test_windows_of_brokers_are_what_plain_python_makes_of_the_reports(spark: SparkSession, tmp_path: Path) -> None:
    entries = some_reports(range(70))
    found = by(broker_windows(clean_tables(spark, tmp_path, entries)[1]), "broker")
    expected = standing_of(entries)
    assert {key[1:] for key in found if key[0] == 300} == {(START_MS + w * 300_000, name) for name, w in expected}
    for (name, window), reports in expected.items():
        row = found[300, START_MS + window * 300_000, name]
        used = [(stood, float(entry.report.usage[0, 0]) / 100) for stood, _, entry, _ in reports]
        assert row["mean_cpu"] == pytest.approx(mean(used))
        assert (row["mean_usage"], row["max_usage"]) == pytest.approx((mean(used), max(use for _, use in used)))
        load = [(stood, float(entry.report.load[2])) for stood, _, entry, _ in reports]
        assert row["mean_msg_throughput_in"] == pytest.approx(mean(load))
        assert row["bundles"] == pytest.approx(mean([(stood, len(loads)) for stood, loads, *_ in reports]))
        assert row["mean_memory"] is None
    hour = found[3600, START_MS, "a:8080"]
    shorts = [found[300, START_MS + window * 300_000, "a:8080"] for window in range(12)]
    assert hour["mean_cpu"] == pytest.approx(mean([(row["covered_s"], row["mean_cpu"]) for row in shorts]))
    assert hour["p95_msg_rate_in"] == pytest.approx(nearest_rank([row["mean_msg_rate_in"] for row in shorts]))
    assert hour["n"] == sum(row["n"] for row in shorts)


def test_a_namespace_carries_what_its_bundles_add_up_to_while_they_were_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    steady: Load = (10.0, 10.0, 100.0, 100.0)
    both = {bundle(1): steady, bundle(2): steady}
    entries: list[Timed] = [(minute * MINUTE_MS, reported("a", both)) for minute in range(5)]
    entries += [(minute * MINUTE_MS, reported("a", {bundle(1): steady})) for minute in (5, 6)]
    entries += [(minute * MINUTE_MS, reported("a", both)) for minute in (7, 8, 9, 10)]
    windows = by(namespace_windows(bundle_windows(*clean_tables(spark, tmp_path, entries))), "namespace")
    first, second = (windows[300, START_MS + start, "tenant/ns"] for start in (0, 300_000))
    assert (first["mean_msg_rate_in"], first["bundles"], first["covered_s"]) == (20.0, 2, 300.0)
    assert second["mean_msg_rate_in"] == pytest.approx(10 + 10 * 3 / 5)
    hour = windows[3600, START_MS, "tenant/ns"]
    assert (hour["bundles"], hour["max_msg_rate_in"]) == (2, 20.0)
    assert hour["topics"] == pytest.approx(hour["mean_msg_rate_in"] / 10)


def model_after(entries: Sequence[Timed]) -> ClusterModel:
    model = ClusterModel()
    names: dict[str, dict[str, Report]] = defaultdict(dict)
    for _, entry in entries:
        assert isinstance(entry, Report)
        for name in entry.report.bundle_names:
            names[name.rpartition("/")[0]][name] = entry
    for namespace, bundles in names.items():
        model.set_namespace(namespace, sorted(bundles), [owned(bundles[name].registration) for name in sorted(bundles)])
    for _, entry in entries:
        assert isinstance(entry, Report)
        model.apply_report(entry.registration, entry.report)
    return model


def assert_equal_to_the_leaders(found: DataFrame, entries: Sequence[Timed]) -> None:
    model = model_after(entries)
    rows = rows_of(found)
    assert len({row["bundle"] for row in rows}) == len(rows)
    leaders = {name: each for space in ("tenant/ns", "t/other") for name, each in model.bundle_averages(space).items()}
    assert {row["bundle"] for row in rows} == leaders.keys()
    for row in rows:
        averages = leaders[row["bundle"]]
        assert [row[f"short_{name}"] for name in METRICS] == averages.short.tolist()
        assert [row[f"long_{name}"] for name in METRICS] == averages.long.tolist()
        assert (row["short_samples"], row["long_samples"]) == (averages.short_samples, averages.long_samples)
        assert row["topics"] == averages.topics


def fractions(count: int, seed: int = 1) -> list[Timed]:
    """Reports with loads that cannot be averaged without rounding, and a bundle that comes and goes."""
    rng = np.random.default_rng(seed)
    names = [bundle(1), bundle(2), bundle(3, "t/other")]
    return [
        (
            number * 1000,
            reported("a", {name: tuple(rng.lognormal(3, 2, 4)) for name in names[: 3 - (number % 7 == 0)]}),
        )
        for number in range(count)
    ]


def test_the_leaders_running_means_come_out_to_the_last_bit(spark: SparkSession, tmp_path: Path) -> None:
    entries = fractions(LONG_WINDOW + 50)
    bundles, _ = clean_tables(spark, tmp_path, entries)
    assert_equal_to_the_leaders(running_means(bundles, buckets=2), entries)


def test_running_means_go_on_from_earlier_ones_and_count_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    entries = fractions(30)
    early, _ = clean_tables(spark, tmp_path / "early", entries[:14])
    whole, _ = clean_tables(spark, tmp_path / "whole", entries)
    before = running_means(early).localCheckpoint()
    assert_equal_to_the_leaders(running_means(whole, before), entries)
    assert rows_of(running_means(early, before), "bundle") == rows_of(before, "bundle")
