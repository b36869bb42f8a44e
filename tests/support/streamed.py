"""A history that grows minute by minute, and the tables that one batch over all of it makes."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.averaged import recorded
from support.builders import bundle
from support.frames import MINUTE_MS, Timed, history_of, reported

from loadmanager.pipeline.by_hour import reported_by, totals_compared
from loadmanager.pipeline.carried import bundles_of
from loadmanager.pipeline.evenness import imbalance
from loadmanager.pipeline.writing import Tables

_ORDERS = {
    "clean_broker_reports": ("sequence",),
    "clean_bundle_reports": ("sequence", "namespace", "range_lower"),
    "broker_windows": ("window_s", "start_ms", "broker"),
    "bundle_windows": ("window_s", "start_ms", "bundle"),
    "namespace_windows": ("window_s", "start_ms", "namespace"),
    "imbalance": ("start_ms",),
    "carried": ("bundle", "start_ms", "from_ms"),
    "reported_by": ("start_ms", "bundle", "broker"),
    "totals_compared": ("start_ms", "broker", "what"),
}


def write_minutes(folder: Path, minutes: range, first: int) -> None:
    """One flush: a report of two brokers in each of these minutes."""
    entries: list[Timed] = []
    for minute in minutes:
        for name, number in (("a", 1), ("b", 2)):
            load = (float(minute), 1.0, 1000.0 * number, 1000.0)
            entries.append((minute * MINUTE_MS, reported(name, {bundle(number): load})))
    history_of(folder, entries, first=first)


def assert_as_in_one_batch(tables: Tables, url: str, end_ms: int | None = None) -> None:
    """Every table that there is has the rows that one batch over the whole history makes, up to `end_ms`."""
    for name, rows in _in_one_batch(url, end_ms).items():
        if tables.has(name):
            found, expected = (_in_order(each, name) for each in (tables.read_rows(name), rows))
            assert len(found) == len(expected), name
            for row, wanted in zip(found, expected, strict=True):
                assert row == pytest.approx(wanted), name


def _in_order(rows: pa.Table, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.to_pylist()
    return sorted(found, key=itemgetter(*_ORDERS[name]))


def _in_one_batch(url: str, end_ms: int | None) -> Mapping[str, pa.Table]:
    made = recorded(url, end_ms)
    of_brokers = made.broker_windows()
    return {
        "clean_broker_reports": made.broker_reports,
        "clean_bundle_reports": made.bundle_reports,
        "broker_windows": of_brokers,
        "bundle_windows": made.bundle_windows(),
        "namespace_windows": made.namespace_windows(),
        "imbalance": imbalance(of_brokers),
        "carried": made.pieces,
        "reported_by": reported_by(made.bundle_reports, bundles_of(made.bundle_reports)),
        "totals_compared": totals_compared(made.broker_reports, made.bundle_reports),
    }
