"""Writer of the history: the event loop queues references, and a thread writes them as files.

The queue is limited by rows and bytes. Entries that do not fit are dropped and counted, and a `gap` records this once
there is space again. If the disk fails, queued entries are kept and written later. After an unknown error they are
tried a few times, then dropped and counted as well. Producers never wait, and nothing is raised.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import pyarrow as pa
import structlog

from loadmanager.errors import HistoryError
from loadmanager.history.compaction import Compaction, Retention
from loadmanager.history.entry_rows import Entry, HistoryEvent, Placed
from loadmanager.history.files import Directory
from loadmanager.history.gaps import GAP, TERM_BEGAN, TERM_ENDED, End, find_end, missing_before
from loadmanager.history.reader import History
from loadmanager.history.row_packer import PackedFile, pack_entries
from loadmanager.util import clock

log = structlog.get_logger(__name__)

NOT_RECORDED = -1
"""Sequence of an entry that was put outside a term."""

_SWEEP_INTERVAL_S = 600.0
_LONGEST_RETRY_S = 30.0
_FAILURES = (OSError, pa.ArrowException, HistoryError)
_MOST_ATTEMPTS = 3
"""Attempts to write after an unknown error, before the entries are dropped: it might fail for ever."""
_FULL = "the queue was full: written too slowly, or not at all"


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Limits of the queue in memory, and the rows or seconds after which a file is written.

    A crash loses up to `flush_interval_s`. After a failure the next attempt is made `retry_s` later; this delay doubles
    each time, up to `_LONGEST_RETRY_S`.
    """

    queue_rows: int = 500_000
    queue_bytes: int = 256 * 1024 * 1024
    rows_per_file: int = 250_000
    flush_interval_s: float = 60.0
    retry_s: float = 1.0


@dataclass(slots=True)
class WriterFigures:
    """Counters since the start, and the current queue; `last_error` is empty while writing works.

    `is_failing`: entries are not being written now, or the writer thread has ended.
    """

    rows_written: int = 0
    rows_lost: int = 0
    write_failures: int = 0
    queue_rows: int = 0
    queue_bytes: int = 0
    last_error: str = ""
    is_failing: bool = False


@dataclass(slots=True)
class _Lost:
    """Rows dropped since the last marked gap."""

    from_ms: int
    to_ms: int
    first: int
    last: int
    rows: int
    why: str

    def event(self) -> HistoryEvent:
        body = {"from_ms": self.from_ms, "to_ms": self.to_ms, "rows": self.rows, "why": self.why}
        return HistoryEvent(GAP, "", body | {"first_sequence": self.first, "last_sequence": self.last})


@dataclass(slots=True)
class _Batch:
    """Batch in progress: entries by term, and the files of the first term. Its rows leave the queue last.

    `attempts` counts the attempts to write the first term that ended in an unknown error.
    """

    terms: deque[list[Placed]]
    rows: int
    size_bytes: int
    files: deque[PackedFile] = field(default_factory=deque)
    attempts: int = 0


@dataclass(slots=True)
class _Queue:
    """State shared by the event loop and the thread; guarded by the condition."""

    entries: list[Placed] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    waits_since_s: float | None = None
    flush: bool = False
    stop: bool = False


class HistoryWriter:
    """Appends to a history. All methods but `flush` and `close` return at once, and belong to one thread."""

    def __init__(
        self,
        directory: Directory,
        node: str,
        limits: WriterLimits | None = None,
        retention: Retention | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        self.directory = directory
        self._node = node
        self._limits = limits or WriterLimits()
        self._retention = retention
        self._compaction = compaction
        self._condition = threading.Condition()
        self._queue = _Queue()
        self._figures = WriterFigures()
        self._lost: _Lost | None = None
        self._epoch: int | None = None
        self._sequence = 0
        self._thread: threading.Thread | None = None
        self._swept_at_s = -_SWEEP_INTERVAL_S
        self._surprises: set[type[Exception]] = set()

    @property
    def figures(self) -> WriterFigures:
        """Return a copy of the current figures."""
        with self._condition:
            has_died = self._thread is not None and not self._thread.is_alive() and not self._queue.stop
            return replace(self._figures, is_failing=has_died or bool(self._figures.last_error))

    def start(self) -> None:
        """Start the writer thread."""
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def begin_term(self, epoch: int, at_ms: int) -> None:
        """Start recording under this epoch."""
        self.end_term(at_ms)
        self._epoch, self._sequence = epoch, 0
        with self._condition:
            self._append(at_ms, HistoryEvent(TERM_BEGAN, str(epoch)))

    def end_term(self, at_ms: int) -> None:
        """Stop recording until the next term."""
        if self._epoch is None:
            return
        with self._condition:
            self._mark_gap(at_ms)
            self._append(at_ms, HistoryEvent(TERM_ENDED, str(self._epoch)))
            self._queue.flush = True
            self._condition.notify_all()
        self._epoch = None

    def put(self, at_ms: int, entry: Entry) -> int:
        """Queue an entry if a term has begun; return its sequence number."""
        if self._epoch is None:
            return NOT_RECORDED
        limits, figures = self._limits, self._figures
        with self._condition:
            if (
                figures.queue_rows + entry.rows > limits.queue_rows
                or figures.queue_bytes + entry.size_bytes > limits.queue_bytes
            ):
                return self._drop(at_ms, entry.rows)
            self._mark_gap(at_ms)
            sequence = self._append(at_ms, entry)
            if self._queue.rows >= limits.rows_per_file:
                self._condition.notify_all()
        return sequence

    def flush(self, timeout_s: float) -> bool:
        """Write everything queued so far; return False if that took longer than the timeout."""
        with self._condition:
            self._queue.flush = True
            self._condition.notify_all()
            return self._condition.wait_for(lambda: not self._figures.queue_rows, timeout_s)

    def close(self, at_ms: int | None = None, timeout_s: float = 10.0) -> bool:
        """End the term and the thread; return False if not everything was written in time."""
        self.end_term(clock.now_ms() if at_ms is None else at_ms)
        is_written = self.flush(timeout_s)
        with self._condition:
            self._queue.stop = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if not is_written:
            log.warning("recording_not_finished", rows=self._figures.queue_rows, error=self._figures.last_error)
        return is_written

    def _append(self, at_ms: int, entry: Entry) -> int:
        assert self._epoch is not None, "there is a term"
        sequence = self._sequence
        self._sequence += 1
        queue, figures = self._queue, self._figures
        queue.entries.append(Placed(at_ms, self._epoch, sequence, entry))
        rows, size_bytes = entry.rows, entry.size_bytes
        queue.rows += rows
        queue.size_bytes += size_bytes
        figures.queue_rows += rows
        figures.queue_bytes += size_bytes
        if queue.waits_since_s is None:
            queue.waits_since_s = time.monotonic()
            self._condition.notify_all()  # the thread may wait without a timeout
        return sequence

    def _drop(self, at_ms: int, rows: int) -> int:
        sequence = self._sequence
        self._sequence += 1
        self._lose(_Lost(at_ms, at_ms, sequence, sequence, rows, _FULL))
        return sequence

    def _lose(self, lost: _Lost) -> None:
        self._figures.rows_lost += lost.rows
        known = self._lost
        if known is None:
            self._lost = lost
            log.warning("recording_rows_lost", why=lost.why, error=self._figures.last_error)
            return
        known.from_ms, known.to_ms = min(known.from_ms, lost.from_ms), max(known.to_ms, lost.to_ms)
        known.first, known.last = min(known.first, lost.first), max(known.last, lost.last)
        known.rows += lost.rows
        if lost.why not in known.why:
            known.why += f"; {lost.why}"

    def _mark_gap(self, at_ms: int) -> None:
        if self._lost is not None:
            lost, self._lost = self._lost, None
            self._append(at_ms, lost.event())

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            if batch is None:
                return
            pause_s = self._limits.retry_s
            while not self._try_to_write(batch):
                with self._condition:
                    self._condition.wait_for(lambda: self._queue.stop, pause_s)
                    if self._queue.stop:
                        return
                pause_s = min(2 * pause_s, _LONGEST_RETRY_S)
            self._on_written(batch)
            self._sweep()

    def _next_batch(self) -> _Batch | None:
        """Wait for enough rows, or the interval, and return the next batch; None at the end."""
        queue = self._queue
        with self._condition:
            while not queue.stop:
                wait_s = self._wait_s()
                if wait_s is not None and wait_s <= 0:
                    entries, rows, size_bytes = queue.entries, queue.rows, queue.size_bytes
                    queue.entries, queue.rows, queue.size_bytes = [], 0, 0
                    queue.waits_since_s, queue.flush = None, False
                    break
                self._condition.wait(wait_s)
            else:
                return None
        return _Batch(_terms(entries), rows, size_bytes)

    def _wait_s(self) -> float | None:
        """Return the seconds until the queue must be written; None while it is empty."""
        queue = self._queue
        if queue.waits_since_s is None:
            return None
        if queue.flush or queue.rows >= self._limits.rows_per_file:
            return 0.0
        return queue.waits_since_s + self._limits.flush_interval_s - time.monotonic()

    def _try_to_write(self, batch: _Batch) -> bool:
        """Write the rest of the batch; return False if a write failed."""
        try:
            while batch.terms:
                if not batch.files:
                    batch.files = deque(
                        pack_entries(self._with_term_begin(batch.terms[0]), self._node, self._on_refused)
                    )
                while batch.files:
                    self.directory.write(batch.files[0].path, batch.files[0].data)
                    self._count(batch.files.popleft())
                batch.terms.popleft()
                batch.attempts = 0
        except Exception as error:  # noqa: BLE001 - the thread must survive any error
            self._on_error(error)
            batch.attempts += not isinstance(error, _FAILURES)
            if batch.attempts >= _MOST_ATTEMPTS:
                self._give_up(batch, error)
            return False
        return True

    def _give_up(self, batch: _Batch, error: Exception) -> None:
        """Drop the rest of the first term."""
        entries, files = batch.terms.popleft(), batch.files
        batch.files, batch.attempts = deque(), 0
        rows = sum(file.rows for file in files) or sum(placed.entry.rows for placed in entries)
        first, last = entries[0], entries[-1]
        why = f"could not be written: {error!r}"
        with self._condition:
            self._lose(_Lost(first.at_ms, last.at_ms, first.sequence, last.sequence, rows, why))

    def _with_term_begin(self, entries: list[Placed]) -> list[Placed]:
        """Return the entries; the first one of a term gets the end of the existing history, and the gap after it."""
        began = entries[0]
        if began.sequence or not isinstance(began.entry, HistoryEvent):
            return entries
        end = self._find_end(began)
        body = {
            "node": self._node,
            "previous": None if end is None else {"epoch": end.epoch, "sequence": end.sequence, "ended": end.ended},
            "gap": missing_before(began.epoch, began.at_ms, end),
        }
        return [replace(began, entry=replace(began.entry, body=body)), *entries[1:]]

    def _find_end(self, began: Placed) -> End | None:
        try:
            return find_end(History(self.directory), began.epoch, began.at_ms)
        except _FAILURES:
            raise
        except Exception as error:  # noqa: BLE001 - a fault in old files must not stop recording
            self._on_error(error)
            return None

    def _on_refused(self, placed: Placed, error: Exception) -> None:
        """Count an entry that does not fit its table: a bug of its producer."""
        why = f"not fit to be recorded: {error}"
        log.error(
            "recording_entry_refused", kind=type(placed.entry).__name__, sequence=placed.sequence, error=repr(error)
        )
        lost = _Lost(placed.at_ms, placed.at_ms, placed.sequence, placed.sequence, placed.entry.rows, why)
        with self._condition:
            self._lose(lost)

    def _count(self, file: PackedFile) -> None:
        with self._condition:
            self._figures.rows_written += file.rows
            self._figures.last_error = ""

    def _on_error(self, error: Exception) -> None:
        """Count an error. A failure is logged once until writing works again, any other error, a bug, once per type."""
        is_bug, directory = not isinstance(error, _FAILURES), str(self.directory)
        with self._condition:
            self._figures.write_failures += 1
            was_failing = bool(self._figures.last_error)
            self._figures.last_error = f"{directory}: {error!r}" if is_bug else f"{directory}: {error}"
        if is_bug and type(error) not in self._surprises:
            self._surprises.add(type(error))
            log.error("recording_failed", directory=directory, exc_info=error)
        elif not is_bug and not was_failing:
            log.warning("recording_failed", directory=directory, error=str(error))

    def _on_written(self, batch: _Batch) -> None:
        with self._condition:
            self._figures.queue_rows -= batch.rows
            self._figures.queue_bytes -= batch.size_bytes
            self._condition.notify_all()

    def _sweep(self) -> None:
        now_s = time.monotonic()
        if now_s - self._swept_at_s < _SWEEP_INTERVAL_S:
            return
        self._swept_at_s = now_s
        now_ms = clock.now_ms()
        try:
            if self._retention:
                self._retention.apply(self.directory, now_ms)
            if self._compaction:
                self._compaction.apply(self.directory, now_ms)
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread goes on
            self._on_error(error)


def _terms(entries: Sequence[Placed]) -> deque[list[Placed]]:
    """Group the entries by epoch."""
    return deque(list(term) for _, term in groupby(entries, key=lambda each: each.epoch))
