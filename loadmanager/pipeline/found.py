"""Which files of a history there are to be cleaned, by units; what tells them from those of another time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from loadmanager.history.compaction import Original
from loadmanager.history.files import HistoryFile
from loadmanager.history.schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS
from loadmanager.pipeline.made import Clean, digest_of
from loadmanager.pipeline.reading import FileFault, HistoryTables, Usable
from loadmanager.pipeline.standing import STANDS_MS
from loadmanager.pipeline.units import Grain, Unit, unit_at

CLEANED_FROM = (BROKER_REPORTS, BUNDLE_REPORTS, EVENTS)
"""The tables of the history of which clean ones are made."""

FOLDERS = r"/date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/[^/]+$"
"""The day and the hour in a path of a file."""


def found_in(history: HistoryTables, grain: Grain) -> dict[Unit, Clean]:
    """What there is to be cleaned, by units."""
    usable: dict[Unit, list[Usable]] = defaultdict(list)
    faults: dict[Unit, list[FileFault]] = defaultdict(list)
    for each in (each for table in CLEANED_FROM for each in history.files(table)):
        usable[unit_at(each.file.hour_ms, grain)].append(each)
    for fault in faults_in(history):
        hour_ms = hour_of(fault.path)
        if hour_ms is not None:
            faults[unit_at(hour_ms, grain)].append(fault)
    return {unit: _clean_of(unit, usable[unit], faults[unit], history) for unit in {*usable, *faults}}


def _clean_of(unit: Unit, usable: Sequence[Usable], faults: Sequence[FileFault], history: HistoryTables) -> Clean:
    range_ms = max(unit.from_ms, history.from_ms or 0), min(unit.to_ms, history.to_ms or unit.to_ms)
    flushed = [each for one in usable for each in _as_flushed(one)]
    last = [file for file, last_ms in flushed if last_ms >= unit.to_ms - STANDS_MS]
    files = [file for file, _ in flushed]
    return Clean(
        digest_of(range_ms, _said(files), sorted((each.path, each.why) for each in faults)),
        digest_of(range_ms, _said(last)),
        *range_ms,
        sum(file.size_bytes for file in files),
        sorted({file.epoch for file in files}),
    )


def _as_flushed(usable: Usable) -> list[tuple[HistoryFile, int]]:
    """Return the files that leaders wrote, each with its last time (-1 without rows), also where they are compacted:
    whether they are makes no difference to what is made of them.
    """
    file, look = usable
    if not look.originals:
        return [(file, -1 if look.times is None else look.times[1])]
    return [(_flushed(file, original), original.last_ms) for original in look.originals]


def _flushed(file: HistoryFile, original: Original) -> HistoryFile:
    first, last = (int(part) for part in original.name.split("-")[1:3])
    path, size, mtime_ns = f"{file.path.rpartition('/')[0]}/{original.name}", original.size_bytes, original.mtime_ns
    return replace(file, path=path, first=first, last=last, size_bytes=size, mtime_ns=mtime_ns, is_compacted=False)


def _said(files: Iterable[HistoryFile]) -> list[tuple[str, int, int]]:
    """What tells these files from others; times to the millisecond, since Hadoop's filesystems have no more."""
    return sorted((file.path, file.size_bytes, file.mtime_ns // 1_000_000) for file in files)


def faults_in(history: HistoryTables) -> list[FileFault]:
    return [fault for fault in history.faults if fault.table in CLEANED_FROM]


def hour_of(path: str) -> int | None:
    """The moment at which the hour begins that the file's place says; None for a file that is out of place."""
    place = re.search(FOLDERS, path)
    if place is not None:
        with suppress(ValueError):
            return round(datetime.fromisoformat(f"{place[1]}T{place[2]}:00+00:00").timestamp()) * 1000
    return None
