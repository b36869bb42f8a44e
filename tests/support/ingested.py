"""Tables that one run of `ingest` makes of a history, and histories that grow."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from pyspark.sql import SparkSession
from support.builders import broker, bundle, report
from support.drawn_fleet import Entries
from support.frames import MINUTE_MS, Timed, history_of, reported
from support.plain_windows import Happened

from loadmanager.core.model.report_validation import recordable
from loadmanager.history.entry_rows import Entry, HistoryEvent, Placed, Report
from loadmanager.history.files import Directory
from loadmanager.history.row_packer import PackedFile, pack_entries
from loadmanager.pipeline.datasets import INGESTED
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.ingest import Ingest
from loadmanager.pipeline.job import Job

_KEYS = (
    "window_s",
    "start_ms",
    "epoch",
    "sequence",
    "bundle",
    "namespace",
    "broker",
    "what",
    "table",
    "reason",
    "file",
)


def ingested(spark: SparkSession, url: str, out: Path | str, **options: Any) -> Tables:  # noqa: ANN401 - of `Job`
    """Return the tables under `out` after a run."""
    tables = Tables(spark, str(out))
    Ingest(spark, tables, Job(url, str(out), **options)).run()
    return tables


def rows_in(tables: Tables, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table, in an order that only depends on them."""
    rows: list[dict[str, Any]] = tables.read_rows(name).to_pylist()
    return sorted(rows, key=itemgetter(*(key for key in _KEYS if key in tables.read_rows(name).column_names)))


def assert_same(tables: Tables, expected: Tables) -> None:
    """Compare all tables of `ingest`, but for the order in which loads were added up."""
    for name in INGESTED:
        found, wanted = rows_in(tables, name), rows_in(expected, name)
        assert len(found) == len(wanted), name
        for row, other in zip(found, wanted, strict=True):
            numbers = [key for key, value in other.items() if isinstance(value, float)]
            assert [row[key] for key in numbers] == pytest.approx([other[key] for key in numbers], rel=1e-9), name
            assert {**row, **{key: other[key] for key in numbers}} == other, name


def write_minutes(folder: Path, minutes: range, first: int) -> None:
    """One flush: a report of two brokers in each of these minutes."""
    entries: list[Timed] = []
    for minute in minutes:
        for name, number in (("a", 1), ("b", 2)):
            load = (float(minute), 1.0, 1000.0 * number, 1000.0)
            entries.append((minute * MINUTE_MS, reported(name, {bundle(number): load})))
    history_of(folder, entries, first=first)


def flushed(entries: Entries, rng: np.random.Generator) -> list[PackedFile]:
    """Return files as leaders flush them, of which some are there twice."""
    files: list[PackedFile] = []
    at = 0
    while at < len(entries):
        together = entries[at : at + int(rng.integers(3, 20))]
        at += len(together)
        for epoch, own in groupby(together, key=lambda each: each.epoch):
            placed = [Placed(each.at_ms, epoch, each.sequence, _entry_of(each)) for each in own]
            files += pack_entries(placed, "node", _refused)
    twice = [each for each in files if rng.random() < 0.1]
    return [*files, *(PackedFile(each.path.replace("-node", "-other"), each.data, each.rows) for each in twice)]


def write_files(url: str, files: Sequence[PackedFile]) -> None:
    for file in files:
        Directory.of(url).write(file.path, file.data)


def _entry_of(each: Any) -> Entry:  # noqa: ANN401 - an entry of a drawn fleet
    if isinstance(each, Happened):
        return HistoryEvent(each.kind, broker(each.subject).broker if each.subject else "")
    loads = {f"{space}/0x{lower:08x}_0x{upper:08x}": load for (space, lower, upper), load in each.bundles.items()}
    return Report(broker(each.broker), recordable(report(loads, cpu=(each.cpu, 1.0))))


def _refused(placed: Placed, error: Exception) -> NoReturn:
    raise AssertionError(placed) from error
