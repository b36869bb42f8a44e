from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from support.builders import bundle
from support.frames import HOUR_MS, MINUTE_MS, START_MS, Timed, history_of, reported
from support.ingested import ingested, rows_in

from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, LOAD_COLUMNS
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.windows import TOLERANCE, totals_compared

FIGURES = (*LOAD_COLUMNS, "topics", "bundles")


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Made:
    """The rows of a history, and the tables that were made of it."""

    brokers: Rows
    bundles: Rows
    tables: Tables


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Three hours of three brokers, of which bundles change hands, and which say other totals now and then."""
    rng = np.random.default_rng(7)
    names = [*(bundle(number) for number in range(6)), bundle(6, "t/other")]
    entries: list[Timed] = []
    for minute in range(0, 180, 7):
        owners = rng.integers(0, 3, len(names))
        for at, broker in enumerate("abc"):
            own = [name for name, owner in zip(names, owners, strict=True) if owner == at]
            loads = {name: tuple(rng.lognormal(3, 1, 4).round()) for name in own}
            sums = np.sum([[0.0] * 4, *loads.values()], axis=0)
            said = sums * (rng.choice([1.0, 1.5], size=4) if rng.random() < 0.3 else 1)
            entries.append((minute * MINUTE_MS + at, reported(broker, loads, load=tuple(said))))
    folder = tmp_path_factory.mktemp("reports")
    url = history_of(folder / "history", entries)
    brokers, bundles = (list(History(url).rows(table)) for table in (BROKER_REPORTS, BUNDLE_REPORTS))
    return Made(brokers, [floats(row) for row in bundles], ingested(spark, url, folder / "out"))


def floats(row: dict[str, Any]) -> dict[str, Any]:
    return {name: float(value) if name.startswith("msg_rate") else value for name, value in row.items()}


def test_reporters_of_a_bundle_are_listed_per_hour(made: Made) -> None:
    expected: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in made.bundles:
        name = f"{row['namespace']}/0x{row['range_lower']:08x}_0x{row['range_upper']:08x}"
        expected[row["at_ms"] // HOUR_MS * HOUR_MS, name, row["namespace"], row["broker"]].append(row["at_ms"])
    rows = rows_in(made.tables, "reported_by")
    keys = ("start_ms", "bundle", "namespace", "broker")
    found = {tuple(row[name] for name in keys): [row["first_ms"], row["last_ms"]] for row in rows}
    assert len(found) == len(rows)
    assert found == {key: [min(times), max(times)] for key, times in expected.items()}
    assert {start for start, *_ in found} == {START_MS + hour * HOUR_MS for hour in range(3)}


def plain_totals(brokers: Rows, bundles: Rows) -> dict[tuple[Any, ...], dict[str, Any]]:
    of_report = defaultdict(list)
    for row in bundles:
        of_report[row["epoch"], row["sequence"]].append(row)
    compared = defaultdict(list)
    for row in brokers:
        own = of_report[row["epoch"], row["sequence"]]
        for what in FIGURES:
            summed = float(len(own) if what == "bundles" else sum(each[what] for each in own))
            difference = abs(row[what] - summed) / max(abs(row[what]), summed, 1.0)
            worst = (difference, row["epoch"], row["sequence"], row["at_ms"], float(row[what]), summed)
            compared[row["at_ms"] // HOUR_MS * HOUR_MS, row["broker"], what].append(worst)
    names = ("worst_difference", "epoch", "sequence", "at_ms", "reported", "summed")
    return {
        key: {
            "reports": len(each),
            "inconsistent": sum(difference > TOLERANCE for difference, *_ in each),
            **dict(zip(names, max(each), strict=True)),
        }
        for key, each in compared.items()
    }


def test_totals_compared_keep_the_worst_difference(made: Made) -> None:
    expected = plain_totals(made.brokers, made.bundles)
    assert any(0 < each["inconsistent"] < each["reports"] for each in expected.values())
    rows = rows_in(made.tables, "totals_compared")
    found = {(row.pop("start_ms"), row.pop("broker"), row.pop("what")): row for row in rows}
    assert found.keys() == expected.keys()
    for key, row in found.items():
        assert row == pytest.approx(expected[key]), key


def test_bundle_sums_exceed_64_bits_without_overflow(spark: SparkSession, made: Made) -> None:
    brokers = made.tables.read("clean_broker_reports")
    rows = spark.createDataFrame(pa.Table.from_pylist(made.bundles))
    huge = rows.withColumn("msg_throughput_in", f.lit(2**62))
    worst = totals_compared(brokers, huge).where("what = 'msg_throughput_in'").agg(f.min("summed"), f.max("summed"))
    least, most = worst.collect()[0]
    assert least >= 0
    assert most > 2.0**63
