"""Small histories for the pipeline, written by the history's own code, and the rows of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql import DataFrame
from support.builders import Load, broker, bundle, report

from loadmanager.core.model.report_validation import recordable
from loadmanager.history.entry_rows import Entry, HistoryEvent, Placed, Report
from loadmanager.history.files import Directory
from loadmanager.history.row_packer import pack_entries

START_MS = 1_790_000_000_000 // 86_400_000 * 86_400_000
"""A midnight, UTC."""

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

Timed = tuple[int, Entry]
"""An entry and its time, in ms after `START_MS`."""


def reported(
    name: str,
    bundles: Mapping[str, Load],
    *,
    load: Load | None = None,
    cpu: float | tuple[float, float] = 0,
    incarnation: int = 1,
) -> Report:
    """A load report; the totals are what the bundles add up to unless `load` says otherwise."""
    content = report(bundles, load=load, cpu=cpu, topics=len(bundles))
    return Report(broker(name, incarnation), recordable(content))


def history_of(folder: Path, entries: Sequence[Timed], *, epoch: int = 1, first: int = 0, node: str = "node") -> str:
    """Write the entries as one flush of a leader; the URL of the history."""
    directory = Directory.of(str(folder))
    placed = [Placed(START_MS + at, epoch, first + number, entry) for number, (at, entry) in enumerate(entries)]
    for file in pack_entries(placed, node, _refused):
        directory.write(file.path, file.data)
    return str(folder)


def histories_of(folder: Path, histories: Sequence[tuple[Sequence[Timed], int]]) -> str:
    """Each of these on a day of its own, so that what takes long to make of a history is made of all of them at once;
    with how many ms after its begin the leader's term ends, and nothing stands any more.
    """
    for day, (entries, until) in enumerate(histories):
        ended: Timed = (until, HistoryEvent("term_ended"))
        history_of(folder, [(day * DAY_MS + at, entry) for at, entry in [*entries, ended]], epoch=day + 1)
    return str(folder)


def files_of(folder: Path, table: str) -> list[Path]:
    return sorted((folder / table).rglob("*.parquet"))


def write_three_hours(folder: Path) -> Path:
    """Three hours with a report each, in a file each."""
    load = (1.001, 2.0, 3.0, 4.0)
    for hour in range(3):
        history_of(folder, [(hour * HOUR_MS, reported("a", {bundle(1): load, bundle(2): load}))], first=hour)
    return folder


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def damage_pages(file: Path) -> None:
    """Everything but the beginning and the footer, which is all that is looked at beforehand."""
    data = bytearray(file.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little") + 8
    data[4:-footer] = bytes(255 for _ in data[4:-footer])
    file.write_bytes(data)


def rows_of(frame: DataFrame, *order: str) -> list[dict[str, Any]]:
    """The rows, in the order of these columns."""
    return [row.asDict(recursive=True) for row in (frame.orderBy(*order) if order else frame).collect()]


def _refused(placed: Placed, error: Exception) -> NoReturn:
    raise AssertionError(placed) from error
