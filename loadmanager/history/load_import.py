"""Import of foreign load into a history, and its rows as lines of JSON.

Imported rows have epoch 0; each import continues the sequence of the previous one.

The importing process writes by itself, and a failure is an error. Recording differs: it must not disturb its leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa

from loadmanager.errors import HistoryError, HistoryFileError
from loadmanager.history.entry_rows import Entry, HistoryEvent, Placed, Report
from loadmanager.history.files import Directory
from loadmanager.history.gaps import IMPORTED, TERM_BEGAN, TERM_ENDED
from loadmanager.history.reader import History
from loadmanager.history.row_packer import pack_entries
from loadmanager.history.table_schemas import TABLES

Progress = Callable[[int, int], None]
"""Called with the completed amount and the total."""

_NODE = "import"
_ROWS_PER_FILE = 250_000
_YEAR_2100_MS = 4_102_444_800_000


class Importer:
    """Appends entries after earlier imports, until `finish`, and counts what it has written. Raises `HistoryError` if
    it cannot write.
    """

    def __init__(self, directory: Directory, source: str, at_ms: int) -> None:
        self._directory = directory
        self._sequence = _next_sequence(History(directory))
        self._entries: list[Placed] = []
        self._waiting = 0
        self.reports = self.rows = self.files = 0
        self.add(at_ms, HistoryEvent(TERM_BEGAN, str(IMPORTED), {"node": _NODE, "source": source}))

    def add(self, at_ms: int, entry: Entry) -> None:
        self._entries.append(Placed(at_ms, IMPORTED, self._sequence, entry))
        self._sequence += 1
        self.reports += isinstance(entry, Report)
        self._waiting += entry.rows
        if self._waiting >= _ROWS_PER_FILE:
            self.flush()

    def flush(self) -> None:
        """Write everything added so far."""
        if not self._entries:
            return
        entries, self._entries, self._waiting = self._entries, [], 0
        try:
            for file in pack_entries(entries, _NODE, _refuse):
                self._directory.write(file.path, file.data)
                self.files += 1
                self.rows += file.rows
        except (OSError, pa.ArrowException) as error:
            raise HistoryError(f"{self._directory}: cannot be written: {error}") from None

    def finish(self, at_ms: int) -> None:
        self.add(at_ms, HistoryEvent(TERM_ENDED, str(IMPORTED)))
        self.flush()


def check_moment(at_ms: int, where: str) -> None:
    """Raise `HistoryFileError` for an implausible time, usually one in another unit."""
    if not 0 <= at_ms < _YEAR_2100_MS:
        raise HistoryFileError(f"{where}: not a time from 1970 to 2099 ({at_ms} ms since 1970)")


def _next_sequence(history: History) -> int:
    files: Iterator[int] = (
        file.last
        for table in TABLES
        for file in history.files(table, on_fault=lambda _: None)
        if file.epoch == IMPORTED
    )
    return max(files, default=-1) + 1


def _refuse(placed: Placed, error: Exception) -> None:
    raise HistoryError(f"{type(placed.entry).__name__} {placed.sequence}: {error}")


_JSON_COLUMNS = frozenset({"body", "state", "rng_state", "detail", "why"})
"""Columns, and parts of columns, that hold JSON as text."""


def json_line(row: Mapping[str, Any]) -> str:
    """Encode a row as a JSON object; JSON columns are embedded unchanged."""
    return orjson.dumps(_as_json(row), default=_number).decode()


def _as_json(value: Any) -> Any:  # noqa: ANN401 - any column's value
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, Mapping):
        return {
            key: orjson.Fragment(each) if key in _JSON_COLUMNS and each is not None else _as_json(each)
            for key, each in value.items()
        }
    return value


def _number(value: object) -> float:
    assert isinstance(value, Decimal), "no other type of a column is unknown to JSON"
    return float(value)
