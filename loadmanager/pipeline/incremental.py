"""Incremental processing: find the hours of a history that have changed since their windows were made.

docs/pipeline.md, under "Every night, and continuously", has the rules. `<out>/_hours.json` records the inputs of each
hour: the files of that hour and of the hour before, and the ends of terms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

import orjson
import pyarrow as pa

from loadmanager.errors import HistoryFileError, PipelineError
from loadmanager.history.files import DAY_MS, HOUR_MS, Directory, HistoryFile
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, EVENTS

STATE = "_hours.json"
RULES_VERSION = 7
"""Version of the rules by which tables are made. If it is raised, every hour is made again."""

UNFINISHED = "unfinished"
"""Replaces the inputs of a finished hour while it is made again."""


@dataclass(slots=True)
class MadeHour:
    """Stamps of an hour's files, and a digest of all its inputs; "" until the hour was finished once."""

    files: dict[str, str]
    inputs: str = ""


_NEVER = MadeHour({})


class HistoryHours:
    """Current hours of a history, compared with the hours from which the tables were made."""

    def __init__(self, out: Directory, history: Directory, keep_days: int, *, anew: bool) -> None:
        self._out, self._history = out, history
        self.made = self._load(anew=anew)
        self.files: dict[int, dict[str, HistoryFile]] = defaultdict(dict)
        """The files of each hour, by table and name."""
        self.faults: list[HistoryFileError] = []
        for table in (BROKER_REPORTS, BUNDLE_REPORTS, EVENTS):
            files, faults = history.list_files(table)
            self.faults += faults
            for file in files:
                self.files[file.hour_ms][f"{table}/{file.name}"] = file
        newest_ms = max([*self.files, *self.made], default=0)
        self._oldest_ms = newest_ms // DAY_MS * DAY_MS - (keep_days - 1) * DAY_MS
        self.old = [hour_ms for hour_ms in self.made if hour_ms < self._oldest_ms]
        """Hours older than `keep_days`, to be removed from the tables."""
        for hour_ms in self.old:
            del self.made[hour_ms]

    def files_of(self, table: str, hours: Iterable[int]) -> list[HistoryFile]:
        """Return the files of a table in these hours, without hours older than `keep_days`."""
        young = [hour_ms for hour_ms in hours if hour_ms >= self._oldest_ms]
        return [file for hour_ms in young for file in self.files.get(hour_ms, {}).values() if file.table == table]

    def is_gone(self, hour_ms: int) -> bool:
        """Return True if a file that the hour was made from no longer exists, and no compacted file has its rows."""
        there = self.files.get(hour_ms, {})
        deleted = self.made.get(hour_ms, _NEVER).files.keys() - there.keys()
        return any(not any(_has_rows_of(file, each) for file in there.values()) for each in deleted)

    def can_be_made(self, hour_ms: int) -> bool:
        return hour_ms >= self._oldest_ms and not self.is_gone(hour_ms)

    def keeps_begin(self, hour_ms: int) -> bool:
        """Return True if the first 15 minutes of the hour were made and cannot be made again."""
        return self.made.get(hour_ms, _NEVER).inputs != "" and self.is_gone(hour_ms - HOUR_MS)

    def late_files(self) -> list[HistoryFile]:
        """Return files that appeared after retention had deleted files of their hour."""
        gone = [hour_ms for hour_ms in self.made if self.is_gone(hour_ms)]
        return [file for hour in gone for key, file in self.files[hour].items() if key not in self.made[hour].files]

    def to_clean(self) -> set[int]:
        """Return the hours whose files have changed, and unfinished ones."""
        made = {hour_ms: each.files for hour_ms, each in self.made.items() if each.inputs not in {"", UNFINISHED}}
        return {each for each in self.files if self.can_be_made(each) and made.get(each) != self._stamps(each)}

    def to_make(self, hours: Iterable[int], ends: Mapping[int, int]) -> set[int]:
        """Return those of these hours whose inputs have changed; `ends` has when reports of each epoch end."""
        possible = filter(self.can_be_made, hours)
        return {each for each in possible if self.made.get(each, _NEVER).inputs != self._inputs(each, ends)}

    def begin(self, hours: Iterable[int]) -> None:
        """Mark these hours as unfinished: from now on their rows in the tables may be incomplete."""
        for hour_ms in hours:
            self.made[hour_ms] = MadeHour(self._stamps(hour_ms), self.made.get(hour_ms, _NEVER).inputs and UNFINISHED)
        self.save()

    def end(self, hours: Iterable[int], ends: Mapping[int, int]) -> None:
        """Mark these hours as finished."""
        for hour_ms in hours:
            self.made[hour_ms].inputs = self._inputs(hour_ms, ends)
        self.save()

    def save(self) -> None:
        state = {"history": str(self._history), "rules": RULES_VERSION, "made": self.made}
        self._out.write(STATE, pa.py_buffer(orjson.dumps(state, option=orjson.OPT_NON_STR_KEYS)))

    def _load(self, *, anew: bool) -> dict[int, MadeHour]:
        """Read the state. Raises `PipelineError` for the state of another history, unless `anew` discards it."""
        try:
            state = orjson.loads(self._out.read(STATE))
            is_other, is_old = state["history"] != str(self._history), anew or state["rules"] != RULES_VERSION
            made = {
                int(hour_ms): MadeHour(each["files"], UNFINISHED if is_old else each["inputs"])
                for hour_ms, each in state["made"].items()
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        if is_other and not anew:
            raise PipelineError(
                f"{self._out}: has tables of the history {state['history']}, not of {self._history}: use another"
                " directory, or add --anew if the history was moved"
            )
        return {} if is_other else made

    def _inputs(self, hour_ms: int, ends: Mapping[int, int]) -> str:
        """Return a digest of the files of the hour and the last known ones of the hour before, and of epochs' ends."""
        before_ms, to_ms = hour_ms - HOUR_MS, hour_ms + HOUR_MS
        before = self.made[before_ms].files if self.is_gone(before_ms) else self._stamps(before_ms)
        epochs = {file.epoch for at in (before_ms, hour_ms) for file in self.files.get(at, {}).values()}
        inputs = [self._stamps(hour_ms), before, [min(ends[epoch], to_ms) for epoch in sorted(epochs)]]
        return blake2b(orjson.dumps(inputs, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()

    def _stamps(self, hour_ms: int) -> dict[str, str]:
        """Return a stamp (size and modification time) of each file of an hour, which reveals a replaced file."""
        return {key: f"{each.size_bytes} {each.mtime_ns}" for key, each in self.files.get(hour_ms, {}).items()}


def _has_rows_of(file: HistoryFile, other: str) -> bool:
    """Return True if this is a compacted file that replaces the other one, given by table and name."""
    table, name = other.split("/")
    return file.table == table and file.covers(*map(int, name.split("-")[:3]))
