"""Windows of all lengths, against the same worked out moment by moment."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from support.builders import Load, bundle
from support.frames import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, Timed, histories_of, reported
from support.ingested import ingested, rows_in
from support.plain_windows import Bundle, PlainWindow, PlainWindows, Reported, plain_windows

from loadmanager.history.entry_rows import Report
from loadmanager.history.table_schemas import LOAD_COLUMNS

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

HISTORIES = [some_reports(range(130)), some_reports([0, 1, 7, 30, 31, 58, 100, 101]), COMES_LATER]
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
    folder = tmp_path_factory.mktemp("days")
    url = histories_of(folder / "history", ended)
    tables = ingested(spark, url, folder / "out")
    return Windows(
        *(by(rows_in(tables, f"{subject}_windows"), subject) for subject in ("bundle", "broker", "namespace"))
    )


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
    """Return windows of each length, by length, start and subject."""
    found = {}
    for length_s, length_ms in WINDOWS_MS.items():
        together: dict[tuple[Any, int], list[PlainWindow]] = defaultdict(list)
        for (name, start), short in windows.items():
            together[name, start // length_ms * length_ms].append(short)
        for (name, start), shorts in together.items():
            covered = sum(short.covered_ms for short in shorts)
            row: dict[str, float] = {"n": sum(short.n for short in shorts), "covered_s": covered / 1000}
            for at, metric in enumerate(LOAD_COLUMNS):
                row[f"mean_{metric}"] = sum(short.load[at] for short in shorts) / covered
                row[f"max_{metric}"] = max(short.highest[at] for short in shorts)
                row[f"p95_{metric}"] = nearest_rank([short.load[at] / short.covered_ms for short in shorts])
            found[length_s, start, name] = row
    return found


def by(rows: Sequence[dict[str, Any]], subject: str) -> Found:
    return {(row["window_s"], row["start_ms"], row[subject]): row for row in rows}


@pytest.mark.parametrize("day", [EACH_MINUTE_DAY, SPARSE_DAY], ids=["each minute", "sparse"])
def test_bundle_windows_equal_the_plain_computation(windows: Windows, day: int) -> None:
    found, expected = of(day, windows.bundles), longer(plain(day).bundles)
    assert {(length, start, key_of(name)) for length, start, name in found} == expected.keys()
    for (length, start, name), row in found.items():
        wanted = expected[length, start, key_of(name)]
        assert {figure: row[figure] for figure in wanted} == pytest.approx(wanted), name
        assert row["namespace"] == name.rpartition("/")[0]
        assert row["topics"] == 1


def test_broker_windows_equal_the_plain_computation(windows: Windows) -> None:
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


def test_namespace_windows_sum_the_bundles_by_time_present(windows: Windows) -> None:
    found = of(COMES_LATER_DAY, windows.namespaces)
    first, second = (found[300, START_MS + start, "tenant/ns"] for start in (0, 300_000))
    assert (first["mean_msg_rate_in"], first["bundles"], first["covered_s"]) == (10.0, 1, 300.0)
    assert second["mean_msg_rate_in"] == pytest.approx(10 + 10 * 3 / 5)
    hour = found[3600, START_MS, "tenant/ns"]
    assert (hour["bundles"], hour["max_msg_rate_in"]) == (2, 20.0)
    assert hour["topics"] == pytest.approx(hour["mean_msg_rate_in"] / 10)


def test_percentile_of_many_windows_is_below_the_highest(windows: Windows) -> None:
    day = of(EACH_MINUTE_DAY, windows.bundles)
    highest = max(
        row["mean_msg_rate_in"] for (length, _, name), row in day.items() if (length, name) == (300, bundle(1))
    )
    assert day[86400, START_MS, bundle(1)]["p95_msg_rate_in"] < highest
