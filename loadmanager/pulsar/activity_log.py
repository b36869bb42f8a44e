"""Diary of a process beside a Pulsar: the events of each round and their explanation, for operators.

    event                                   in memory, diary.txt    diary.jsonl
    -----                                   --------------------    -----------
    a round with an entry for a paragraph   a paragraph             a line for each entry
    another round                           nothing                 a line for each entry
    an hour without a paragraph             one line                nothing
    the first verdict                       a paragraph             nothing
    a score of an hour, or a day            one line, or a table    nothing; scores have a file of their own

Both files rotate: a full one becomes `.1`, and so on. A file that cannot be written delays nothing; one warning is
logged until it can be written again.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import orjson
import structlog

from loadmanager.core.diagnosis.pulsar_comparison import ComparisonEntry
from loadmanager.core.diagnosis.pulsar_tally import UsageLevel
from loadmanager.core.domain.reasons import ComparisonReason
from loadmanager.pulsar.round_summary import (
    as_record,
    format_counts,
    format_entries,
    format_level,
    is_worth_a_paragraph,
)

log = structlog.get_logger(__name__)

HOUR_MS = 3_600_000
KEPT = 1_000
_MOST_BYTES = 10 * 1024 * 1024
_FILES = 5


class BoundedFile:
    """Rotating file: at most `files` older ones beside it, each of about `most_bytes` at most."""

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES, files: int = _FILES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._files = files
        self._is_failing = False

    def append(self, text: str) -> None:
        """Append text; log one warning while the file cannot be written."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size >= self._most_bytes:
                self._rotate()
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            if not self._is_failing:
                log.warning("diary_not_written", path=str(self._path), error=str(error))
            self._is_failing = True
        else:
            self._is_failing = False

    def _rotate(self) -> None:
        """Rename each file to the next number."""
        for number in range(self._files - 1, 0, -1):
            older = self._former(number)
            if older.exists():
                older.replace(self._former(number + 1))
        self._path.replace(self._former(1))

    def _former(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class ActivityLog:
    """Diary. Times are in `zone`; None: the time zone of this machine. Without a `folder` it is in memory only."""

    def __init__(self, folder: Path | None, *, kept: int = KEPT, zone: tzinfo | None = None) -> None:
        self._text_file = None if folder is None else BoundedFile(folder / "diary.txt")
        self._records_file = None if folder is None else BoundedFile(folder / "diary.jsonl")
        self._paragraphs: deque[str] = deque(maxlen=kept)
        self._records: deque[dict[str, Any]] = deque(maxlen=kept)
        self.zone = zone
        self.show: Callable[[str], object] = lambda _: None
        """Called with each paragraph."""
        self._counted: Counter[ComparisonReason] = Counter()
        self._quiet_since_ms: int | None = None
        self._rounds = 0

    def round(self, at_ms: int, entries: Sequence[ComparisonEntry], level: UsageLevel | None, standing: int) -> None:
        """Log a round: the entries since the last one, the imbalance, and `standing`, the number of moves of ours that
        Pulsar does not make.
        """
        self._keep(entries)
        self._rounds += 1
        if self._quiet_since_ms is None:
            self._quiet_since_ms = at_ms
        if is_worth_a_paragraph(entries):
            self.note(at_ms, format_level(level), *format_entries([*entries]))
            return
        self._counted.update(entry.reason for entry in entries)
        if at_ms - self._quiet_since_ms >= HOUR_MS:
            self.note(at_ms, self._summarize_quiet_time(at_ms - self._quiet_since_ms, level, standing))

    def note(self, at_ms: int, first: str, *lines: str) -> None:
        """Write a paragraph, which restarts the hour without one."""
        self.remark(at_ms, first, *lines)
        self._quiet_since_ms, self._rounds = at_ms, 0
        self._counted.clear()

    def remark(self, at_ms: int, first: str, *lines: str) -> None:
        """Write a paragraph that is not about an event."""
        when = datetime.fromtimestamp(at_ms / 1000, self.zone).astimezone(self.zone)
        text = "\n".join([f"{when:%Y-%m-%d %H:%M} {first}", *(f"    {line}" for line in lines)])
        self._paragraphs.append(text)
        if self._text_file is not None:
            self._text_file.append(f"{text}\n")
        with contextlib.suppress(OSError):  # the reader of standard output has exited
            self.show(text)

    def text(self, rounds: int) -> str:
        """Return the last `rounds` paragraphs, the newest last."""
        newest = list(self._paragraphs)[-rounds:]
        return "".join(f"{paragraph}\n" for paragraph in newest)

    def records(self, limit: int) -> list[dict[str, Any]]:
        """Return up to `limit` entries as JSON objects, the newest first."""
        return list(self._records)[::-1][:limit]

    def _keep(self, entries: Sequence[ComparisonEntry]) -> None:
        records = [as_record(entry) for entry in entries]
        self._records.extend(records)
        if records and self._records_file is not None:
            self._records_file.append("".join(f"{orjson.dumps(record).decode()}\n" for record in records))

    def _summarize_quiet_time(self, quiet_ms: int, level: UsageLevel | None, standing: int) -> str:
        counted = list(format_counts(self._counted))
        parts = [
            f"Nothing to tell for {round(quiet_ms / 60_000)} min and {self._rounds} rounds. {format_level(level)}",
            f"Bundles: {', '.join(counted)}." if counted else "",
            f"Moves that we would make and Pulsar does not: {standing}." if standing else "",
        ]
        return " ".join(part for part in parts if part)
