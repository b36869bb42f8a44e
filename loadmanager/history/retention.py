"""Retention of the history by age and size: whole hours, the oldest first; never the newest hour."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from loadmanager.history.files import HOUR_MS, Directory, HistoryFile
from loadmanager.history.table_schemas import TABLES

log = structlog.get_logger(__name__)

_ABANDONED_AFTER = timedelta(hours=1)
"""A file that was begun so long ago and never finished is left from a process that is gone."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Maximum age and size of the history; None: unlimited."""

    max_age_s: float | None = None
    max_bytes: int | None = None

    def apply(self, directory: Directory, now_ms: int) -> int:
        """Delete what exceeds the limits; return the number of files. Raises `OSError`.

        Only files that are the history's by place and name are touched, and those it never finished.
        """
        hours: dict[int, list[HistoryFile]] = defaultdict(list)
        for table in TABLES:
            for file in directory.list_files(table, with_originals=True)[0]:
                hours[file.hour_ms].append(file)
        deleted = _delete_abandoned(directory, now_ms)
        total = sum(file.size_bytes for files in hours.values() for file in files)
        for hour_ms in sorted(hours)[:-1]:
            is_old = self.max_age_s is not None and hour_ms + HOUR_MS < now_ms - self.max_age_s * 1000
            is_much = self.max_bytes is not None and total > self.max_bytes
            if not is_old and not is_much:
                break
            for file in hours[hour_ms]:
                directory.delete(file.path)
                total -= file.size_bytes
            deleted += len(hours[hour_ms])
            log.info("history_hour_deleted", hour=_hour(hour_ms), files=len(hours[hour_ms]), why_age=is_old)
        return deleted


def _delete_abandoned(directory: Directory, now_ms: int) -> int:
    before = datetime.fromtimestamp(now_ms / 1000, UTC) - _ABANDONED_AFTER
    abandoned = [
        info.path
        for table in TABLES
        for info in directory.temporary_files(table)
        if info.mtime is not None and info.mtime < before
    ]
    for path in abandoned:
        directory.delete(path)
    return len(abandoned)


def _hour(hour_ms: int) -> str:
    return f"{datetime.fromtimestamp(hour_ms // 1000, UTC):%Y-%m-%d %H}"
