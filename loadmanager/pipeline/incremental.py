"""Incremental processing: the hours of a history that have changed since their windows were made.

The rule:

- Windows of an hour are made from the files of the hour and of the hour before, whose reports are valid into it. They
  are made again when one of these files is new or replaced, however late, and when something else has changed that they
  depend on: the end of a term, of the range, the threshold of overload.
- An hour of which files are gone, because retention deleted them, keeps its windows. Files that come later for it are
  not counted; the run names them. The hour after it keeps its first 15 minutes.
- A compacted file stands for the files that it was made of.
- Windows leave the tables `keep_days` after their day.

Rows of all other hours of a day stay as they are in the tables. `<out>/_hours.json` says what each hour was made from.
It says that an hour is unfinished before its tables are written, so a run that was killed is made good by the next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
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
RULES = 5
"""Version of how tables are made. Raise it when rows come out otherwise: all hours are made again."""

_UNFINISHED: list[int] = []


@dataclass(slots=True)
class MadeHour:
    """Inputs of a made hour: its `files`, digests of those of the hour before and of the rest, and its part in the
    range.
    """

    files: dict[str, str]
    before: str
    part: list[int]
    rest: str


class HistoryHours:
    """The hours of a history as they are now, next to those that tables were made from."""

    def __init__(
        self, out: Directory, history: Directory, range_ms: tuple[int | None, int | None], keep_days: int, *, anew: bool
    ) -> None:
        self._out, self._history, self._range_ms = out, history, range_ms
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
            self._replace_compacted(hour_ms)
        newest_ms = max([*self.files, *self.made], default=0)
        self._oldest_ms = newest_ms // DAY_MS * DAY_MS - (keep_days - 1) * DAY_MS

    def part(self, hour_ms: int) -> list[int]:
        """Return from when to when the hour is in the range."""
        from_ms, to_ms = self._range_ms
        return [max(hour_ms, from_ms or hour_ms), min(hour_ms + HOUR_MS, to_ms or hour_ms + HOUR_MS)]

    def is_wanted(self, hour_ms: int) -> bool:
        """Return whether the hour is in the range and young enough to be kept."""
        from_ms, to_ms = self.part(hour_ms)
        return from_ms < to_ms and hour_ms >= self._oldest_ms

    def take_unwanted(self) -> list[int]:
        """Forget hours that are not wanted. `PipelineError` where the range would erase what cannot be made again."""
        unwanted = [hour_ms for hour_ms in self.made if not self.is_wanted(hour_ms)]
        gone = [hour_ms for hour_ms in unwanted if hour_ms >= self._oldest_ms and self.is_gone(hour_ms)]
        if gone:
            raise PipelineError(
                f"{self._out}: has windows of {len(gone)} hours outside the range whose files are gone from the"
                " history, so that they cannot be made again: use another directory for this range"
            )
        for hour_ms in unwanted:
            del self.made[hour_ms]
        return unwanted

    def is_gone(self, hour_ms: int) -> bool:
        """Return whether files are gone that the hour was made from."""
        return hour_ms in self.made and not self.made[hour_ms].files.keys() <= self.files.get(hour_ms, {}).keys()

    def keeps_begin(self, hour_ms: int) -> bool:
        """Return whether the first 15 minutes of the hour were made and cannot be made again."""
        return hour_ms in self.made and self.made[hour_ms].rest != "" and self.is_gone(hour_ms - HOUR_MS)

    def late_files(self) -> list[HistoryFile]:
        """Return files that came after files of their hour were gone."""
        gone = [hour_ms for hour_ms in self.made if self.is_gone(hour_ms)]
        return [file for hour in gone for key, file in self.files[hour].items() if key not in self.made[hour].files]

    def to_clean(self) -> set[int]:
        """Return the hours whose files, or whose part in the range, are others than those that they were made from."""
        return {hour_ms for hour_ms in self.files if self._can_be_made(hour_ms) and self._is_new(hour_ms)}

    def to_make(self, hours: Iterable[int], rest: Callable[[int], object]) -> set[int]:
        """Return which of these hours have other inputs than before; `rest` is what one depends on besides files."""
        return {
            each
            for each in hours
            if self._can_be_made(each)
            if self._is_new(each)
            or (self.made[each].before, self.made[each].rest) != (self._before(each), _digest(rest(each)))
        }

    def _can_be_made(self, hour_ms: int) -> bool:
        return self.is_wanted(hour_ms) and not self.is_gone(hour_ms)

    def _is_new(self, hour_ms: int) -> bool:
        made = self.made.get(hour_ms)
        return made is None or (made.files, made.part) != (self._stamps(hour_ms), self.part(hour_ms))

    def epochs(self, hour_ms: int) -> set[int]:
        """Return the epochs of the reports that the hour is made from."""
        return {file.epoch for at in (hour_ms, hour_ms - HOUR_MS) for file in self.files.get(at, {}).values()}

    def begin(self, hours: Iterable[int]) -> None:
        """Note that the tables may have anything of these hours."""
        for hour_ms in hours:
            made = self.made.setdefault(hour_ms, MadeHour({}, "", _UNFINISHED, ""))
            made.files, made.part = self._stamps(hour_ms), _UNFINISHED
        self.save()

    def end(self, hours: Iterable[int], rest: Callable[[int], object]) -> None:
        """Note that the tables have these hours."""
        for hour_ms in hours:
            made = self.made[hour_ms]
            made.before, made.part, made.rest = self._before(hour_ms), self.part(hour_ms), _digest(rest(hour_ms))
        self.save()

    def save(self) -> None:
        state = {"history": str(self._history), "rules": RULES, "hours": self.made}
        self._out.write(STATE, pa.py_buffer(orjson.dumps(state, option=orjson.OPT_NON_STR_KEYS)))

    def _load(self, *, anew: bool) -> dict[int, MadeHour]:
        """Read the state. `PipelineError` for that of another history, which `anew` is to forget."""
        try:
            with self._out.open(f"{self._out.root}/{STATE}") as file:
                state = orjson.loads(file.read())
            made = {int(hour_ms): MadeHour(**each) for hour_ms, each in state["hours"].items()}
            history, rules = state["history"], state["rules"]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        if history != str(self._history):
            if anew:
                return {}
            raise PipelineError(
                f"{self._out}: has tables of the history {history}, not of {self._history}: use another directory, or"
                " add --anew if the history was moved"
            )
        for each in made.values() if anew or rules != RULES else ():
            each.part = _UNFINISHED
        return made

    def _before(self, hour_ms: int) -> str:
        """Return a digest of the files of the hour before; of one that is gone those that it was made from."""
        before_ms = hour_ms - HOUR_MS
        return _digest(self.made[before_ms].files if self.is_gone(before_ms) else self._stamps(before_ms))

    def _stamps(self, hour_ms: int) -> dict[str, str]:
        """Return what tells each file of an hour from another one in its place."""
        files = self.files.get(hour_ms, {})
        return {key: _stamp(file.size_bytes, file.mtime_ns) for key, file in files.items()}

    def _replace_compacted(self, hour_ms: int) -> None:
        """Have compacted files in place of those that they stand for, in what the hour and the next were made from."""
        made, followed = self.made[hour_ms].files, self.made.get(hour_ms + HOUR_MS)
        before = _digest(made)
        for key, file in self.files.get(hour_ms, {}).items():
            originals = self._originals(file) if file.is_compacted and key not in made else {}
            if originals and originals.items() <= made.items():
                made[key] = _stamp(file.size_bytes, file.mtime_ns)
            for each in originals:
                made.pop(each, None)
        if followed is not None and followed.before == before:
            followed.before = _digest(made)

    def _originals(self, file: HistoryFile) -> dict[str, str]:
        """Return the files that a compacted file stands for."""
        folder = file.path.rpartition("/")[0]
        with suppress(HistoryFileError, FileNotFoundError), History(self._history).open(file) as parquet:
            originals = originals_of(parquet.schema_arrow.metadata)
            return {_digest(f"{folder}/{each.name}"): _stamp(each.size_bytes, each.mtime_ns) for each in originals}
        return {}


def _stamp(size_bytes: int, mtime_ns: int) -> str:
    return f"{size_bytes} {mtime_ns // 1_000_000}"


def _digest(content: object) -> str:
    return blake2b(orjson.dumps(content, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()
