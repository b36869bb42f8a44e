"""Import of foreign load into a history, and its rows as lines of JSON.

Imported rows have epoch 0, each import behind the last one.

What is imported is written by whoever imports it, and a failure is an error: unlike in recording, nobody has anything
more important to do.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from loadmanager.core.domain.names import BundleName, InvalidNameError, parse_broker_id
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.report_validation import recordable
from loadmanager.errors import HistoryError, HistoryFileError, InvalidRecordError
from loadmanager.history.entry_rows import Entry, HistoryEvent, Placed, Report
from loadmanager.history.files import Directory
from loadmanager.history.gaps import IMPORTED, TERM_BEGAN, TERM_ENDED
from loadmanager.history.reader import History
from loadmanager.history.row_packer import pack_entries
from loadmanager.history.table_schemas import TABLES
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import LocalBrokerData
from loadmanager.wire.load_report import decode_broker_record

Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""

_NODE = "import"
_ROWS_PER_FILE = 250_000
_YEAR_2100_MS = 4_102_444_800_000


@dataclass(frozen=True, slots=True)
class Imported:
    """Progress of an import."""

    reports: int
    rows: int
    files: int


class Importer:
    """Appends entries behind earlier imports, until `finish`. Raises `HistoryError` when it cannot write."""

    def __init__(self, directory: Directory, source: str, at_ms: int) -> None:
        self._directory = directory
        self._sequence = _next_sequence(History(directory))
        self._entries: list[Placed] = []
        self._waiting = self._reports = self._rows = self._files = 0
        self.add(at_ms, HistoryEvent(TERM_BEGAN, str(IMPORTED), {"node": _NODE, "source": source}))

    @property
    def imported(self) -> Imported:
        return Imported(self._reports, self._rows, self._files)

    def add(self, at_ms: int, entry: Entry) -> None:
        self._entries.append(Placed(at_ms, IMPORTED, self._sequence, entry))
        self._sequence += 1
        self._reports += isinstance(entry, Report)
        self._waiting += entry.rows
        if self._waiting >= _ROWS_PER_FILE:
            self.flush()

    def flush(self) -> None:
        """Write everything added so far."""
        if not self._entries:
            return
        entries, self._entries, self._waiting = self._entries, [], 0
        try:
            for file in pack_entries(entries, _NODE, _refused):
                self._directory.write(file.path, file.data)
                self._files += 1
                self._rows += file.rows
        except (OSError, pa.ArrowException) as error:
            raise HistoryError(f"{self._directory}: cannot be written: {error}") from None

    def finish(self, at_ms: int) -> None:
        self.add(at_ms, HistoryEvent(TERM_ENDED, str(IMPORTED)))
        self.flush()


def import_reports(importer: Importer, folder: Path, progress: Progress) -> None:
    """Import every `*.json` in the folder as a load report, in the order of their times.

    All are read before the first is written: a file that cannot be used is an error, and nothing is imported then.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise HistoryError(f"{folder}: no *.json in it; expected load reports, each in a file of its own")
    total = 2 * len(paths)
    times = []
    for done, path in enumerate(paths, 1):
        times.append((_read_report(path)[0], path))
        progress(done, total)
    for done, (_, path) in enumerate(sorted(times), len(paths) + 1):
        at_ms, entry = _read_report(path)
        importer.add(at_ms, entry)
        progress(done, total)


def check_moment(at_ms: int, where: str) -> None:
    """Raise `HistoryFileError` for an implausible time, usually one in another unit."""
    if not 0 <= at_ms < _YEAR_2100_MS:
        raise HistoryFileError(f"{where}: not a time from 1970 to 2099 ({at_ms} ms since 1970)")


def _read_report(path: Path) -> tuple[int, Report]:
    """Read a report and its time: `lastUpdate`, or the file's modification time; the broker is `brokerId` or the file
    name.
    """
    try:
        data, written_ms = path.read_bytes().removeprefix(BOM_UTF8), path.stat().st_mtime_ns // 1_000_000
        record = decode_broker_record(data, str(path))
        entry = entry_of(record.get("brokerId") or path.stem, record, str(path), written_ms)
    except OSError as error:
        raise HistoryFileError(f"{path}: {error.strerror}") from None
    except InvalidRecordError as error:
        raise HistoryFileError(str(error)) from None
    check_moment(entry.report.last_update_ms, f"{path}: lastUpdate")
    return entry.report.last_update_ms, entry


def entry_of(broker: str, record: LocalBrokerData, where: str, read_at_ms: int) -> Report:
    """Convert a broker's record into an entry; the broker's start time stands for its registration. Bundles may be
    named in either of Pulsar's forms.

    Raises `HistoryFileError`, `InvalidRecordError`.
    """
    try:
        broker_id = parse_broker_id(broker)
    except InvalidNameError as error:
        raise HistoryFileError(f"{where}: {error}, as brokerId or as the name of the file") from None
    report: BrokerReport = recordable(report_of(record, where, (), read_at_ms, BundleName.parse_any))
    return Report(Registration(broker_id, report.start_timestamp_ms), report)


def _next_sequence(history: History) -> int:
    files: Iterator[int] = (
        file.last
        for table in TABLES
        for file in history.files(table, on_fault=lambda _: None)
        if file.epoch == IMPORTED
    )
    return max(files, default=-1) + 1


def _refused(placed: Placed, error: Exception) -> None:
    raise HistoryError(f"{type(placed.entry).__name__} {placed.sequence}: {error}")


_JSON_COLUMNS = frozenset({"body", "state", "rng_state", "detail", "why"})
"""Columns, also of a column's parts, that hold JSON as text."""


def json_line(row: Mapping[str, Any]) -> str:
    """Encode a row as a JSON object; JSON columns are embedded as they are."""
    return orjson.dumps(_as_json(row), default=_number).decode()


def _as_json(value: Any) -> Any:  # noqa: ANN401 - whatever a column can hold
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
