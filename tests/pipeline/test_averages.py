"""Windows and running means, against the same worked out without Spark."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from support.averaged import averaged, clean_bundles
from support.builders import Load, bundle, owned
from support.frames import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, Timed, histories_of, history_of, reported, rows_of
from support.plain_windows import Bundle, PlainWindow, PlainWindows, Reported, plain_windows

from loadmanager.core.cluster import ClusterModel
from loadmanager.core.load import LONG_WINDOW
from loadmanager.errors import PipelineError
from loadmanager.history.rows import Report
from loadmanager.pipeline.averages import _named, running_means
from loadmanager.pipeline.reading import HistoryTables
from loadmanager.pipeline.schemas import METRICS

WINDOWS_MS = {300: 300_000, 3600: HOUR_MS, 86400: DAY_MS}


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


STEADY: Load = (10.0, 10.0, 100.0, 100.0)
COMES_LATER: list[Timed] = [
    (minute * MINUTE_MS, reported("a", {bundle(1): STEADY} if minute < 7 else {bundle(1): STEADY, bundle(2): STEADY}))
    for minute in range(11)
]
"""A second bundle is there from minute 7 on."""

HISTORIES = [some_reports(range(90)), some_reports([0, 1, 7, 30, 31, 58, 100, 101]), COMES_LATER]
EACH_MINUTE_DAY, SPARSE_DAY, COMES_LATER_DAY = range(len(HISTORIES))

Found = dict[tuple[int, int, str], dict[str, Any]]
"""Windows by their length, start and subject."""


@dataclass(frozen=True)
class Windows:
    """Those of all of `HISTORIES`, each on a day of its own."""

    bundles: Found
    brokers: Found
    namespaces: Found


@pytest.fixture(scope="module")
def windows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Windows:
    """Until each history's last report."""
    ended = [(entries, max(at for at, _ in entries) + 1) for entries in HISTORIES]
    made = averaged(spark, histories_of(tmp_path_factory.mktemp("days"), ended), START_MS + len(HISTORIES) * DAY_MS)
    frames = made.bundle_windows(), made.broker_windows(), made.namespace_windows()
    return Windows(*map(by, frames, ("bundle", "broker", "namespace")))


def of(day: int, windows: Found) -> Found:
    """Those of a day, which begin as those of the first one."""
    at_ms = day * DAY_MS
    return {
        (length, start - at_ms, name): row
        for (length, start, name), row in windows.items()
        if START_MS <= start - at_ms < START_MS + DAY_MS
    }


def plain(day: int) -> PlainWindows:
    """The windows of 5 minutes worked out moment by moment, until the last report."""
    entries, reports = HISTORIES[day], []
    for sequence, (at, entry) in enumerate(entries):
        assert isinstance(entry, Report)
        content = entry.report
        loads = dict(zip(map(key_of, content.bundle_names), map(tuple, content.bundle_load.tolist()), strict=True))
        cpu = float(content.usage[0, 0]) / 100
        reports.append(Reported(START_MS + at, 1, sequence, entry.registration.broker, loads, cpu))
    return plain_windows(reports, max(each.at_ms for each in reports) + 1)


def key_of(name: str) -> Bundle:
    namespace, _, bounds = name.rpartition("/")
    lower, upper = (int(each, 16) for each in bounds.split("_"))
    return namespace, lower, upper


def nearest_rank(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def longer(windows: Mapping[tuple[Any, int], PlainWindow]) -> dict[tuple[int, int, Any], dict[str, float]]:
    """Of each length, by length, start and whose they are."""
    found = {}
    for length_s, length_ms in WINDOWS_MS.items():
        together: dict[tuple[Any, int], list[PlainWindow]] = defaultdict(list)
        for (name, start), short in windows.items():
            together[name, start // length_ms * length_ms].append(short)
        for (name, start), shorts in together.items():
            covered = sum(short.covered_ms for short in shorts)
            row: dict[str, float] = {"n": sum(short.n for short in shorts), "covered_s": covered / 1000}
            for at, metric in enumerate(METRICS):
                row[f"mean_{metric}"] = sum(short.load[at] for short in shorts) / covered
                row[f"max_{metric}"] = max(short.highest[at] for short in shorts)
                row[f"p95_{metric}"] = nearest_rank([short.load[at] / short.covered_ms for short in shorts])
            found[length_s, start, name] = row
    return found


def by(frame: DataFrame, subject: str) -> Found:
    return {(row["window_s"], row["start_ms"], row[subject]): row for row in rows_of(frame)}


@pytest.mark.parametrize("day", [EACH_MINUTE_DAY, SPARSE_DAY], ids=["each minute", "sparse"])
def test_windows_of_bundles_are_what_plain_python_makes_of_the_reports(windows: Windows, day: int) -> None:
    found, expected = of(day, windows.bundles), longer(plain(day).bundles)
    assert {(length, start, key_of(name)) for length, start, name in found} == expected.keys()
    for (length, start, name), row in found.items():
        wanted = expected[length, start, key_of(name)]
        assert {figure: row[figure] for figure in wanted} == pytest.approx(wanted), name
        assert row["namespace"] == name.rpartition("/")[0]
        assert row["topics"] == 1


def test_windows_of_brokers_are_what_plain_python_makes_of_the_reports(windows: Windows) -> None:
    found, short = of(EACH_MINUTE_DAY, windows.brokers), plain(EACH_MINUTE_DAY).brokers
    expected = longer(short)
    assert found.keys() == expected.keys()
    for key, wanted in expected.items():
        assert {figure: found[key][figure] for figure in wanted} == pytest.approx(wanted), key
        assert found[key]["mean_memory"] is None
    for (name, start), window in short.items():
        row = found[300, start, name]
        assert (row["mean_cpu"], row["mean_usage"]) == pytest.approx([window.cpu / window.covered_ms] * 2)
        assert row["bundles"] == pytest.approx(window.bundles_ms / window.covered_ms)
    hour = found[3600, START_MS, "a:8080"]
    shorts = [found[300, START_MS + at * 300_000, "a:8080"] for at in range(12)]
    covered = sum(row["covered_s"] for row in shorts)
    assert hour["mean_cpu"] == pytest.approx(sum(row["covered_s"] * row["mean_cpu"] for row in shorts) / covered)
    assert hour["max_usage"] == max(row["max_usage"] for row in shorts)


def test_a_namespace_carries_what_its_bundles_add_up_to_while_they_were_there(windows: Windows) -> None:
    found = of(COMES_LATER_DAY, windows.namespaces)
    first, second = (found[300, START_MS + start, "tenant/ns"] for start in (0, 300_000))
    assert (first["mean_msg_rate_in"], first["bundles"], first["covered_s"]) == (10.0, 1, 300.0)
    assert second["mean_msg_rate_in"] == pytest.approx(10 + 10 * 3 / 5)
    hour = found[3600, START_MS, "tenant/ns"]
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


def test_two_names_with_one_hash_are_refused(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, 5.0)], "hash long, load double")
    names = pa.table({"hash": [1, 1, 2], "namespace": ["t/a", "t/a", "t/b"]})
    assert rows_of(_named(rows, names, "namespace", "hash")) == [{"hash": 1, "load": 5.0, "namespace": "t/a"}]
    other = pa.table({"hash": [1, 2, 1], "namespace": ["t/a", "t/b", "t/c"]})
    with pytest.raises(PipelineError, match="namespaces that share a hash: t/a, t/c"):
        _named(rows, other, "namespace", "hash")


def test_the_leaders_running_means_come_out_to_the_last_bit(spark: SparkSession, tmp_path: Path) -> None:
    entries = fractions(LONG_WINDOW + 50)
    bundles = clean_bundles(HistoryTables(spark, history_of(tmp_path, entries)))
    assert_equal_to_the_leaders(running_means(bundles), entries)


def test_running_means_go_on_from_earlier_ones_and_count_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    entries = fractions(30)
    histories = {"early": entries[:14], "whole": entries}
    early, whole = (
        clean_bundles(HistoryTables(spark, history_of(tmp_path / name, part))) for name, part in histories.items()
    )
    before = running_means(early).localCheckpoint()
    assert_equal_to_the_leaders(running_means(whole, before), entries)
    assert rows_of(running_means(early, before), "bundle") == rows_of(before, "bundle")
