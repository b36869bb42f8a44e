"""Audit log of operator commands: the newest entries in memory, all of them in a file or the ordinary log, and the
leader's in the recorded history.

Refused commands are rate-limited, so that a stranger can neither fill a disk nor push the commands of operators out of
memory. The next entry states how many were dropped.
"""

from __future__ import annotations

import logging
import queue
import sys
import time
from collections import deque
from itertools import islice
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from typing import Any

import orjson
import structlog

from loadmanager.config.shared_settings import AuditSettings, require_writable
from loadmanager.history.entry_rows import OperationRow
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import OPERATIONS
from loadmanager.leader.audit.history_recorder import HistoryQueries, HistoryRecorder
from loadmanager.util import clock
from loadmanager.wire.lineage_bodies import AuditEntry

log = structlog.get_logger(__name__)

_FILES = 5
_MOST_BYTES = 100 * 1024 * 1024
"""Enough for about 300,000 operations."""
_WAITING_LINES = 10_000


class AuditFile:
    """Rotating file at `path`, with backups `path.1` to `path.4`; at most `most_bytes` in all, plus one line.

    A thread writes it: a disk that hangs must not cost a node its session. Lines beyond the bounded queue are dropped,
    and counted in the ordinary log.
    """

    def __init__(self, path: str, most_bytes: int = _MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._waiting: queue.Queue[Any] = queue.Queue(_WAITING_LINES)
        self._put = _Putting(self._waiting)
        self._listener: QueueListener | None = None

    def start(self) -> None:
        """Start the writer thread; raises `ConfigurationError` as `require_writable`."""
        require_writable(self._path)
        file = _Writing(self._path, maxBytes=self._most_bytes // _FILES, backupCount=_FILES - 1, encoding="utf-8")
        self._listener = QueueListener(self._waiting, file)
        self._listener.start()

    def write(self, line: str) -> None:
        self._put.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Flush all waiting lines, then close the file."""
        if self._listener is not None:
            self._listener.stop()
            for handler in self._listener.handlers:
                handler.close()
            self._listener = None


class _Putting(QueueHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's
        log.error("audit_not_written", why="too many lines wait for the disk", waiting=_WAITING_LINES)


class _Writing(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's
        log.error("audit_not_written", path=self.baseFilename, why=str(sys.exception()))


_KEPT = 2_000
_REFUSALS_PER_MINUTE = 120
_REFUSED = range(400, 500)


class AuditTrail:
    """Audit log of a node. `start` raises `ConfigurationError` when the file cannot be written."""

    def __init__(self, node_id: str, settings: AuditSettings, recorder: HistoryRecorder, history_url: str) -> None:
        self.node_id = node_id
        path = settings.audit_log_file
        self._file = AuditFile(path) if path else None
        self._recorder = recorder
        self._history_url = history_url
        self._entries: deque[AuditEntry] = deque(maxlen=_KEPT)
        self._complete_since_ms = clock.now_ms()
        self._refusals = _Refusals()
        self._readings = HistoryQueries()
        self.noted = 0
        """Number of entries so far, including those that have left memory."""
        self.noted_before_term = 0

    def start(self) -> None:
        if self._file is not None:
            self._file.start()

    def close(self) -> None:
        """Write the remaining entries; blocks."""
        if self._file is not None:
            self._file.close()

    def note(self, entry: AuditEntry) -> None:
        if entry.status in _REFUSED:
            unwritten = self._refusals.let_in(time.monotonic())
            if unwritten is None:
                return
            if unwritten:
                entry = entry.model_copy(update={"after": {"refusalsNotWritten": unwritten}})
        self._entries.appendleft(entry)
        self.noted += 1
        content = entry.model_dump(by_alias=True)
        if self._file is None:
            log.info("operation", **_for_log(content))
        else:
            self._file.write(orjson.dumps(content).decode())
        self._recorder.put(_to_row(entry), entry.at)

    def newest(self, count: int) -> list[AuditEntry]:
        """Return the entries in memory, newest first."""
        return list(islice(self._entries, count))

    def begin_term(self) -> None:
        """Mark the start of a term: from now on memory holds every operation of the leader."""
        self._complete_since_ms = clock.now_ms()
        self.noted_before_term = self.noted

    def later_than(self, noted: int, most: int) -> list[AuditEntry]:
        """Return the entries after the first `noted`, oldest first; at most the last `most` of them."""
        return self.newest(max(min(self.noted - noted, most), 0))[::-1]

    async def recent(self, since_ms: int, until_ms: int, limit: int) -> list[AuditEntry]:
        """Return the newest entries with `since_ms` <= `at` < `until_ms`, newest first; those of former leaders come
        from the recorded history.

        Raises `HistoryError` when that cannot be read.
        """
        found = [each for each in self._entries if since_ms <= each.at < until_ms]
        complete_ms = max(self._complete_since_ms, self._entries[-1].at if len(self._entries) == _KEPT else 0)
        before_ms = min(until_ms, complete_ms)
        if len(found) < limit and self._recorder.is_on and since_ms < before_ms:
            earlier = await self._readings.run(self._read, since_ms, before_ms, limit)
            known = {_key(each) for each in found}
            found += [each for each in earlier if _key(each) not in known]
        return sorted(found, key=lambda each: each.at, reverse=True)[:limit]

    def _read(self, since_ms: int, until_ms: int, limit: int) -> list[AuditEntry]:
        history = History(Directory.of(self._history_url))
        rows = deque(history.rows(OPERATIONS, since_ms, until_ms, on_fault=_ignore), maxlen=limit)
        return [_from_row(row) for row in rows]


def _key(entry: AuditEntry) -> tuple[int, str, str]:
    return entry.at, entry.node, entry.request_id


class _Refusals:
    """Token bucket that limits the refused operations logged per minute."""

    def __init__(self) -> None:
        self._left = float(_REFUSALS_PER_MINUTE)
        self._at_s = 0.0
        self._unwritten = 0

    def let_in(self, now_s: float) -> int | None:
        """Take a token. Return the number of entries dropped since the last success, None if this one is dropped."""
        gained = (now_s - self._at_s) * _REFUSALS_PER_MINUTE / 60
        self._left, self._at_s = min(float(_REFUSALS_PER_MINUTE), self._left + gained), now_s
        if self._left < 1:
            self._unwritten += 1
            return None
        self._left -= 1
        unwritten, self._unwritten = self._unwritten, 0
        return unwritten


def _for_log(content: dict[str, Any]) -> dict[str, Any]:
    """Rename the keys that a log line already uses, and drop its time."""
    names = {"requestId": "request_id", "from": "address"}
    return {names.get(name, name): value for name, value in content.items() if name != "at" and value is not None}


def _to_row(entry: AuditEntry) -> OperationRow:
    return OperationRow(
        node=entry.node,
        who=entry.who,
        address=entry.from_,
        operation=entry.operation,
        request_id=entry.request_id,
        path=entry.path,
        status=entry.status,
        before=_encode(entry.before),
        after=_encode(entry.after),
    )


def _encode(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _from_row(row: dict[str, Any]) -> AuditEntry:
    return AuditEntry(
        at=row["at_ms"],
        node=row["node"],
        request_id=row["request_id"],
        who=row["who"],
        from_=row["address"],
        operation=row["operation"],
        path=row["path"],
        status=row["status"],
        before=orjson.loads(row["before"]) if row["before"] else None,
        after=orjson.loads(row["after"]) if row["after"] else None,
    )


def _ignore(_: Exception) -> None:
    """Skip an unreadable file; `loadmanager history` reports what is wrong with it."""
