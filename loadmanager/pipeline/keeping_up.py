"""Clean tables and windows kept up with a history: what has changed since the last time is made anew, and no more.

    the files of a unit (a day, or an hour)  ──▶  its clean rows  ──▶  its windows
    the last minutes of the one before       ──────────────────────────────┘
    until when terms and the range go        ──────────────────────────────┘

What each was made of is in `made`; where it is of something else by now, all parts of the unit are replaced. So it does
not matter when a file comes, or how often a run is killed: the tables are those of one run over everything there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from loadmanager.core.resources import HOT
from loadmanager.errors import PipelineError
from loadmanager.pipeline.averaging import BY_UNIT, SUBJECTS
from loadmanager.pipeline.filesystems import directory_at
from loadmanager.pipeline.found import found_in
from loadmanager.pipeline.made import ANYTHING, digest_of, load_made
from loadmanager.pipeline.making import Maker, together
from loadmanager.pipeline.reading import HistoryTables, read_leaving_out
from loadmanager.pipeline.standing import Ends, ends_of
from loadmanager.pipeline.units import Grain, Unit, unit_of
from loadmanager.pipeline.writing import Tables

CLEAN_TABLES = (
    "clean_broker_reports",
    "rejected_broker_reports",
    "clean_bundle_reports",
    "rejected_bundle_reports",
    "fleet_events",
    "rejected_rows",
)
WINDOW_TABLES = (*BY_UNIT, *SUBJECTS)

TOGETHER_BYTES = 256 << 20
"""Units with files of so many bytes are made together: each by itself would cost a small fleet more than its rows."""


class KeepingUp:
    """Of the tables under `out` with one history. One at a time writes there."""

    def __init__(
        self, spark: SparkSession, tables: Tables, url: str, *, new_grain: Grain = "day", anew: bool = False
    ) -> None:
        """Tables keep the grain that they began in."""
        self._spark, self._tables = spark, tables
        self._directory = directory_at(spark, str(tables))
        self._made = load_made(self._directory, url, new_grain)
        if anew:
            self._forget(*WINDOW_TABLES, *CLEAN_TABLES)
        self._there: set[Unit] = set()

    @property
    def grain(self) -> Grain:
        return self._made.grain

    @property
    def newest_ms(self) -> int:
        """When the newest unit begins of which there are clean rows; 0 without any."""
        return max((unit.from_ms for unit in self._units(self._made.clean)), default=0)

    @property
    def batches(self) -> int:
        """How many batches of streams there were."""
        return self._made.batches

    def count_batch(self) -> None:
        self._made.batches += 1
        self._made.save(self._directory)

    def ingest(self, history: HistoryTables, from_ms: int = 0) -> list[Unit]:
        """Make the clean rows anew of all units whose files have changed; which these were. Units that begin before
        `from_ms` stay as they are.
        """
        self._forget(*(name for name in CLEAN_TABLES if not self._tables.has(name)))
        grain, made = self._made.grain, self._made.clean
        found = found_in(history, grain)
        changed = _changed(found, made, grain, from_ms)
        self._there = {*found, *self._units(made)}
        sizes = {unit: clean.size_bytes for unit, clean in found.items()}
        for units in together(changed, lambda unit: sizes.get(unit, 0), TOGETHER_BYTES):
            self._begin(made, units, ANYTHING)
            read_leaving_out(history, partial(self._clean, history, units))
            found = found_in(history, grain)  # without files that turned out damaged
            self._end(made, units, found)
        with suppress(OSError):
            history.keep_known()
        return changed

    def average(self, end_ms: int, overloaded: float = HOT) -> list[Unit]:
        """Make the windows anew of all units of which the clean rows have changed; which these were. The range ends
        before `end_ms`; a broker that is used above `overloaded` counts as overloaded.
        """
        self._forget(*(name for name in WINDOW_TABLES if not self._tables.has(name)))
        if not self._made.clean:
            raise PipelineError(f"{self._tables}: has no clean tables by the rules of now; run the step ingest")
        made, ends = self._made.windows, self._ends()
        wanted = self._wanted_windows(ends, end_ms, overloaded)
        changed = _changed(wanted, made, self._made.grain)
        self._there = {*wanted, *self._units(made)}
        sizes = {unit: self._made.clean[unit.key].size_bytes for unit in changed if unit.key in self._made.clean}
        for units in together(changed, lambda unit: sizes.get(unit, 0), TOGETHER_BYTES):
            self._begin(made, units, "")
            self._average(units, ends, end_ms, overloaded)
            self._end(made, units, wanted)
        return changed

    def _clean(self, history: HistoryTables, units: Sequence[Unit]) -> None:
        self._maker(units).clean(history)

    def _average(self, units: Sequence[Unit], ends: Ends, end_ms: int, overloaded: float) -> None:
        self._maker(units).average(ends, end_ms, overloaded)

    def _maker(self, units: Sequence[Unit]) -> Maker:
        return Maker(self._spark, self._tables, self._made.grain, units, self._there)

    def _ends(self) -> Ends:
        epochs = {epoch for clean in self._made.clean.values() for epoch in clean.epochs}
        return ends_of(self._tables.read_rows("fleet_events"), epochs)

    def _wanted_windows(self, ends: Ends, end_ms: int, overloaded: float) -> dict[Unit, str]:
        """What the windows of each unit are made of, as a digest. Reports stand into the unit after their own."""
        clean = self._made.clean
        units = self._units(clean)
        found = {}
        for unit in sorted({*units, *(unit.after for unit in units if unit.to_ms < end_ms)}):
            own, before = clean.get(unit.key), clean.get(unit.before.key)
            epochs = sorted({epoch for each in (own, before) if each is not None for epoch in each.epochs})
            of_terms = [(epoch, end) for epoch in epochs if (end := ends.terms.get(epoch, unit.to_ms)) < unit.to_ms]
            files = own and own.files, before and before.last_files
            found[unit] = digest_of(files, of_terms, min(end_ms, unit.to_ms), overloaded)
        return found

    def _begin(self, made: dict[str, Any], units: Iterable[Unit], anything: object) -> None:
        made.update({unit.key: anything for unit in units})
        self._made.save(self._directory)

    def _end(self, made: dict[str, Any], units: Iterable[Unit], found: Mapping[Unit, Any]) -> None:
        for unit in units:
            del made[unit.key]
            if unit in found:
                made[unit.key] = found[unit]
        self._made.save(self._directory)

    def _forget(self, *names: str) -> None:
        """What these tables were made of."""
        if set(names) & set(CLEAN_TABLES):
            self._made.clean.clear()
        if set(names) & set(WINDOW_TABLES):
            self._made.windows.clear()

    def _units(self, keys: Iterable[str]) -> list[Unit]:
        return [unit_of(key, self._made.grain) for key in keys]


def _changed(found: Mapping[Unit, object], made: Mapping[str, object], grain: Grain, from_ms: int = 0) -> list[Unit]:
    """Units that were made of something else, or of something that is not there any more."""
    units = {*found, *(unit_of(key, grain) for key in made)}
    return sorted(unit for unit in units if unit.from_ms >= from_ms and found.get(unit) != made.get(unit.key))
