"""Incremental processing: find the hours of a history that have changed since their windows were made.

The rules:

- The windows of an hour are made from the files of that hour and of the hour before, whose reports may still be valid.
  They are made again if one of these files is new or replaced, however late, and if the end of a term or of the history
  has changed.
- If retention has deleted a file of an hour, the hour keeps its windows, and the next hour keeps its first 15 minutes.
  Later files of such an hour are ignored, and the run names them.
- A compacted file replaces its originals: its hour is made again.
- Windows are removed `keep_days` after their day.

The rows of unchanged hours stay in the tables. `<out>/_hours.json` records the inputs of each hour. An hour is marked
unfinished before its tables are written, so the next run repairs a run that was killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

import orjson
import pyarrow as pa

from loadmanager.errors import HistoryFileError, PipelineError
from loadmanager.history.compaction import originals_of
from loadmanager.history.files import DAY_MS, HOUR_MS, Directory, HistoryFile
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS

SOURCES = (BROKER_REPORTS, BUNDLE_REPORTS, EVENTS)
"""The tables of the history that are read."""

STATE = "_hours.json"
RULES_VERSION = 7
"""Version of the rules by which tables are made. Raise it if they change: every hour is then made again."""

UNFINISHED = "unfinished"
"""Replaces the inputs of a finished hour while it is made again."""


@dataclass(slots=True)
class MadeHour:
    """Inputs of an hour: its files, and a digest of everything else; "" until it was finished once."""

    files: dict[str, str]
    inputs: str = ""


class HistoryHours:
    """Current hours of a history, compared with the hours from which the tables were made."""

    def __init__(self, out: Directory, history: Directory, keep_days: int, *, anew: bool) -> None:
        self._out, self._history = out, history
        self.made = self._load(anew=anew)
        self.files: dict[int, dict[str, HistoryFile]] = defaultdict(dict)
        """The files of each hour, by digests of their paths."""
        self.faults: list[HistoryFileError] = []
        for table in SOURCES:
            files, faults = history.list_files(table)
            self.faults += faults
            for file in files:
                self.files[file.hour_ms][_digest(file.path)] = file
        for hour_ms in self.made:
            self._forget_compacted(hour_ms)
        newest_ms = max([*self.files, *self.made], default=0)
        self._oldest_ms = newest_ms // DAY_MS * DAY_MS - (keep_days - 1) * DAY_MS

    def files_of(self, table: str, hours: Iterable[int]) -> list[HistoryFile]:
        """Return the files of a table in these hours, without hours older than `keep_days`."""
        young = [hour_ms for hour_ms in hours if hour_ms >= self._oldest_ms]
        return [file for hour_ms in young for file in self.files.get(hour_ms, {}).values() if file.table == table]

    def take_old(self) -> list[int]:
        """Remove and return the hours older than `keep_days`."""
        old = [hour_ms for hour_ms in self.made if hour_ms < self._oldest_ms]
        for hour_ms in old:
            del self.made[hour_ms]
        return old

    def is_gone(self, hour_ms: int) -> bool:
        """Return True if a file that the hour was made from no longer exists."""
        return hour_ms in self.made and not self.made[hour_ms].files.keys() <= self.files.get(hour_ms, {}).keys()

    def can_be_made(self, hour_ms: int) -> bool:
        return hour_ms >= self._oldest_ms and not self.is_gone(hour_ms)

    def keeps_begin(self, hour_ms: int) -> bool:
        """Return True if the first 15 minutes of the hour were made and cannot be made again."""
        return hour_ms in self.made and self.made[hour_ms].inputs != "" and self.is_gone(hour_ms - HOUR_MS)

    def late_files(self) -> list[HistoryFile]:
        """Return files that appeared after retention had deleted files of their hour."""
        gone = [hour_ms for hour_ms in self.made if self.is_gone(hour_ms)]
        return [file for hour in gone for key, file in self.files[hour].items() if key not in self.made[hour].files]

    def to_clean(self) -> set[int]:
        """Return the hours whose files have changed, and unfinished ones."""
        return {hour_ms for hour_ms in self.files if self.can_be_made(hour_ms) and self._is_new(hour_ms)}

    def to_make(self, hours: Iterable[int], ends: Mapping[int, int]) -> set[int]:
        """Return those of these hours whose inputs have changed; `ends` has when reports of each epoch end."""
        return {
            each
            for each in hours
            if self.can_be_made(each) and (self._is_new(each) or self.made[each].inputs != self._inputs(each, ends))
        }

    def begin(self, hours: Iterable[int]) -> None:
        """Mark these hours as unfinished: from now on their rows in the tables may be incomplete."""
        for hour_ms in hours:
            made = self.made.setdefault(hour_ms, MadeHour({}))
            made.files, made.inputs = self._stamps(hour_ms), made.inputs and UNFINISHED
        self.save()

    def end(self, hours: Iterable[int], ends: Mapping[int, int]) -> None:
        """Mark these hours as finished."""
        for hour_ms in hours:
            self.made[hour_ms].inputs = self._inputs(hour_ms, ends)
        self.save()

    def save(self) -> None:
        state = {"history": str(self._history), "rules": RULES_VERSION, "hours": self.made}
        self._out.write(STATE, pa.py_buffer(orjson.dumps(state, option=orjson.OPT_NON_STR_KEYS)))

    def _load(self, *, anew: bool) -> dict[int, MadeHour]:
        """Read the state. Raises `PipelineError` for the state of another history, unless `anew` discards it."""
        try:
            state = orjson.loads(self._out.read(STATE))
            history, is_old = state["history"], anew or state["rules"] != RULES_VERSION
            made = {
                int(hour_ms): MadeHour(each["files"], UNFINISHED if is_old else each["inputs"])
                for hour_ms, each in state["hours"].items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        if history == str(self._history):
            return made
        if anew:
            return {}
        raise PipelineError(
            f"{self._out}: has tables of the history {history}, not of {self._history}: use another directory, or add"
            " --anew if the history was moved"
        )

    def _is_new(self, hour_ms: int) -> bool:
        made = self.made.get(hour_ms)
        return made is None or made.inputs in {"", UNFINISHED} or made.files != self._stamps(hour_ms)

    def _inputs(self, hour_ms: int, ends: Mapping[int, int]) -> str:
        """Return a digest of the ends of epochs within the hour, and of the files of the hour before; of its former
        files if some were deleted.
        """
        before_ms, to_ms = hour_ms - HOUR_MS, hour_ms + HOUR_MS
        before = self.made[before_ms].files if self.is_gone(before_ms) else self._stamps(before_ms)
        epochs = {file.epoch for at in (before_ms, hour_ms) for file in self.files.get(at, {}).values()}
        return _digest([before, [min(ends[epoch], to_ms) for epoch in sorted(epochs)]])

    def _stamps(self, hour_ms: int) -> dict[str, str]:
        """Return a stamp (size and modification time) of each file of an hour, which reveals a replaced file."""
        files = self.files.get(hour_ms, {})
        return {key: f"{file.size_bytes} {file.mtime_ns}" for key, file in files.items()}

    def _forget_compacted(self, hour_ms: int) -> None:
        """Forget the originals of a new compacted file of the hour."""
        made = self.made[hour_ms].files
        for key, file in self.files.get(hour_ms, {}).items():
            if not file.is_compacted or key in made:
                continue
            with suppress(HistoryFileError, FileNotFoundError), History(self._history).open(file) as parquet:
                for each in originals_of(parquet.schema_arrow.metadata):
                    made.pop(_digest(f"{file.path.rpartition('/')[0]}/{each.name}"), None)


def _digest(content: object) -> str:
    return blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
