"""Files of a history made into clean rows by Spark's workers, which have the bytes of the files and nothing else.

    a task's files ──▶ rows, each judged ──▶ packed by tables and parts
            │                 └──▶ how many were rejected, with an example
            └──▶ which could not be read

Files that may share reports are in one task, so that no rows have to be brought together.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.errors import HistoryFileError
from loadmanager.history.files import HOUR_MS
from loadmanager.history.schemas import EVENTS
from loadmanager.pipeline.contents import place_of
from loadmanager.pipeline.ingest import Judged, judged, judged_together
from loadmanager.pipeline.packing import Packed, Packer, times_between
from loadmanager.pipeline.raw_rows import raw_rows

FLEET_EVENTS_TABLE = "fleet_events"


@dataclass(frozen=True, slots=True)
class FileToClean:
    """Its rows go into this `part` of clean tables, those from `end_ms` on into another one."""

    table: str
    path: str
    hour_ms: int
    part: str
    end_part: str
    end_ms: int


Together = tuple[FileToClean, ...]
"""Files of a table and an hour that may share reports, by their names; or one that shares none with another."""


@dataclass(frozen=True, slots=True)
class Rejections:
    """How many rows of a file were rejected for a reason, and one of them as JSON."""

    table: str
    reason: str
    file: str
    part: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file of which the rows cannot be read; none of them counts."""

    table: str
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Work of a task on groups of files: rows of `from_ms` <= time < `to_ms`, and events of these `kinds` with these
    `columns`.
    """

    from_ms: int | None
    to_ms: int | None
    kinds: Sequence[str]
    columns: Sequence[str]

    def __call__(
        self, number: int, groups: Sequence[Together], contents: Mapping[str, bytes]
    ) -> Iterator[Packed | Rejections | Damaged]:
        del number
        packer = Packer()
        for together in groups:
            files, damaged = self._read(together, contents)
            yield from damaged
            if together[0].table == EVENTS:
                self._pack_events(files, packer)
            elif files:
                yield from _pack(files, packer)
        yield from packer.packed()

    def _read(self, together: Together, contents: Mapping[str, bytes]) -> tuple[Files, list[Damaged]]:
        """The rows of the range; of files that are still there."""
        files, damaged = [], []
        for file in together:
            try:
                content = contents.get(place_of(file.path))
                if content is None:
                    continue  # retention was faster
                read = raw_rows(content, file.table, file.path)
                rows = pa.concat_tables(times_between(each, self.from_ms, self.to_ms) for each in read)
            except (HistoryFileError, OSError, pa.ArrowException) as error:
                damaged.append(Damaged(file.table, file.path, _said(error, file.path)))
            else:
                files.append((file, rows))
        return files, damaged

    def _pack_events(self, files: Files, packer: Packer) -> None:
        for file, rows in files:
            at_ms = pc.field("at_ms")
            is_one = pc.field("kind").cast(pa.string()).isin(list(self.kinds))
            kept = rows.filter(is_one & (at_ms >= file.hour_ms) & (at_ms < file.hour_ms + HOUR_MS))
            packer.add(FLEET_EVENTS_TABLE, file.part, kept.select(self.columns))


Files = list[tuple[FileToClean, pa.Table]]


def _pack(files: Files, packer: Packer) -> Iterator[Rejections]:
    for file, (clean, rejected) in _judged(files):
        is_end = pc.greater_equal(clean.column("at_ms"), file.end_ms)
        for part, is_wanted in ((file.end_part, is_end), (file.part, pc.invert(is_end))):
            packer.add(f"clean_{file.table}", part, clean if pc.all(is_wanted).as_py() else clean.filter(is_wanted))
        if rejected.num_rows:
            paths = pa.array([file.path] * rejected.num_rows)
            at = rejected.schema.get_field_index("reason")
            packer.add(f"rejected_{file.table}", file.part, rejected.add_column(at, "file", paths))
            yield from _counted(rejected, file)


def _judged(files: Files) -> Iterable[tuple[FileToClean, Judged]]:
    if len(files) == 1:
        ((file, rows),) = files
        return [(file, judged(rows, file.table, file.hour_ms))]
    names = [file for file, _ in files]
    return zip(names, judged_together([rows for _, rows in files], names[0].table, names[0].hour_ms), strict=True)


def _counted(rejected: pa.Table, file: FileToClean) -> Iterator[Rejections]:
    reasons = rejected.column("reason").to_pylist()
    for reason, count in Counter(reasons).items():
        (row,) = rejected.slice(reasons.index(reason), 1).drop_columns("reason").to_pylist()
        yield Rejections(file.table, reason, file.path, file.part, count, _as_json(row))


def _as_json(row: Mapping[str, Any]) -> str:
    """Without what is empty; what JSON has no number for is text."""
    return json.dumps({name: _jsonable(value) for name, value in row.items() if value is not None})


def _jsonable(value: Any) -> Any:  # noqa: ANN401 - a value of a row
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _said(error: Exception, path: str) -> str:
    return " ".join(str(error).removeprefix(f"{path}: ").split())
