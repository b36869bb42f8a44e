"""What is kept of reports by hours, against the same worked out report by report."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.averaged import clean_rows
from support.builders import bundle
from support.frames import HOUR_MS, MINUTE_MS, START_MS, Timed, history_of, reported

from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, LOAD_COLUMNS
from loadmanager.pipeline.by_hour import TOLERANCE, reported_by, totals_compared
from loadmanager.pipeline.carried import bundles_of
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.raw_rows import raw_schema

FIGURES = (*LOAD_COLUMNS, "topics", "bundles")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, pa.Table]:
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
    url = history_of(tmp_path_factory.mktemp("history"), entries)
    return clean_rows(url, BROKER_REPORTS), clean_rows(url, BUNDLE_REPORTS)


def test_who_reported_a_bundle_in_an_hour_and_when(reports: tuple[pa.Table, pa.Table]) -> None:
    expected: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in reports[1].to_pylist():
        name = f"{row['namespace']}/0x{row['range_lower']:08x}_0x{row['range_upper']:08x}"
        expected[row["at_ms"] // HOUR_MS * HOUR_MS, name, row["namespace"], row["broker"]].append(row["at_ms"])
    rows = reported_by(reports[1], bundles_of(reports[1])).to_pylist()
    keys = ("start_ms", "bundle", "namespace", "broker")
    found = {tuple(row[name] for name in keys): [row["first_ms"], row["last_ms"]] for row in rows}
    assert len(found) == len(rows)
    assert found == {key: [min(times), max(times)] for key, times in expected.items()}
    assert {start for start, *_ in found} == {START_MS + hour * HOUR_MS for hour in range(3)}


def plain_totals(brokers: pa.Table, bundles: pa.Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    of_report = defaultdict(list)
    for row in bundles.to_pylist():
        of_report[row["epoch"], row["sequence"]].append(row)
    compared = defaultdict(list)
    for row in brokers.to_pylist():
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


def test_totals_are_compared_with_what_bundles_add_up_to_and_the_worst_is_kept(
    reports: tuple[pa.Table, pa.Table],
) -> None:
    expected = plain_totals(*reports)
    assert any(0 < each["inconsistent"] < each["reports"] for each in expected.values())
    mixed = [table.take(np.random.default_rng(1).permutation(len(table))) for table in reports]
    for brokers, bundles in (reports, mixed):
        rows = totals_compared(brokers, bundles).to_pylist()
        found = {(row.pop("start_ms"), row.pop("broker"), row.pop("what")): row for row in rows}
        assert found.keys() == expected.keys()
        for key, row in found.items():
            assert row == pytest.approx(expected[key]), key


def test_bundles_add_up_beyond_what_64_bits_hold(reports: tuple[pa.Table, pa.Table]) -> None:
    brokers, bundles = reports
    place = bundles.schema.get_field_index("msg_throughput_in")
    huge = bundles.set_column(place, "msg_throughput_in", pa.array([2**62] * len(bundles)))
    rows = totals_compared(brokers, huge).to_pylist()
    summed = {row["summed"] / 2.0**62 for row in rows if row["what"] == "msg_throughput_in"}
    assert min(summed) >= 0
    assert max(summed) > 2


def test_of_nothing_there_is_nothing() -> None:
    brokers, bundles = (raw_schema(table).empty_table() for table in (BROKER_REPORTS, BUNDLE_REPORTS))
    made = {
        "reported_by": reported_by(bundles, bundles_of(bundles)),
        "totals_compared": totals_compared(brokers, bundles),
    }
    for name, found in made.items():
        assert (found.num_rows, found.column_names) == (0, schema_of(name).names)
