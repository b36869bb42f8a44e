"""Synthetic fleet of bundles from a few recorded series: each bundle gets one, shifted in time and scaled by a
heavy-tailed factor. The seed makes it reproducible.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

import numpy as np

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.load import METRICS, RESOURCES, BrokerReport, FloatArray, IntArray
from loadmanager.core.model.report_validation import recordable
from loadmanager.errors import HistoryFileError
from loadmanager.history.entry_rows import Report
from loadmanager.history.load_import import Importer, Progress, check_moment

_HEADERS = (["timestamp", "value"], ["timestamp", "series", "value"])
_TAIL = 1.5
"""Exponent of the Pareto distribution of the factors: mean 1, infinite variance."""

_TOPICS = 10
_BUNDLES_PER_NAMESPACE = 1000
_UNUSABLE_IN_NAMES = re.compile(r"[^-=:.\w]", re.ASCII)
_MEAN_OF_SIZES = 0.5

_MS_PER_UNIT = ((1e11, 1e3), (1e14, 1.0), (1e17, 1e-3), (1e20, 1e-6))
"""Upper bound of a time since 1970 in s, ms, us and ns, and the milliseconds per unit."""

_LARGEST_CLOCK_CHANGE = timedelta(hours=3)


@dataclass(frozen=True, slots=True)
class Series:
    """Values at equal steps, starting at `start_ms`."""

    name: str
    where: str
    start_ms: int
    step_ms: int
    values: FloatArray


@dataclass(frozen=True, slots=True)
class SyntheticFleet:
    """Size of the synthetic fleet: numbers of bundles and brokers, and the mean load per bundle.

    `duration_s` None: the length of the shortest series.
    """

    bundles: int
    brokers: int
    seed: int
    messages_per_s: float = 100.0
    message_bytes: float = 1000.0
    duration_s: float | None = None


@dataclass(slots=True)
class _SeriesRows:
    """Rows of one series in input order, each with its line number."""

    where: str
    times_ms: list[int] = field(default_factory=list)
    without_offset: list[bool] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


def read_series(paths: Sequence[Path], max_missing: int = 0) -> list[Series]:
    """Read the series in these CSV files; up to `max_missing` missing values in a row repeat the last one.

    A file has the columns `timestamp,value` and is one series, or `timestamp,series,value`. `HistoryFileError` names
    file, row and column of an invalid value.
    """
    found: dict[str, Series] = {}
    for path in paths:
        for name, rows in _read(path).items():
            if name in found:
                raise HistoryFileError(f"{path}: series {name!r} is in {found[name].where} already")
            found[name] = _even(name, rows, max_missing)
    series = list(found.values())
    for each in series:
        if each.step_ms != series[0].step_ms:
            raise HistoryFileError(
                f"{each.where}: a value every {each.step_ms / 1000:g} s, but {series[0].where} has one every"
                f" {series[0].step_ms / 1000:g} s; import them one after the other"
            )
    return series


def import_series(importer: Importer, series: Sequence[Series], fleet: SyntheticFleet, progress: Progress) -> None:
    """Import one report of every broker at every step."""
    rng = np.random.Generator(np.random.PCG64(fleet.seed))
    made = _DrawnBundles(series, fleet, rng)
    step_ms, start_ms = series[0].step_ms, series[0].start_ms
    steps = min(len(each.values) for each in series)
    if fleet.duration_s is not None:
        steps = max(1, round(fleet.duration_s * 1000 / step_ms))
    for step in range(steps):
        at_ms = start_ms + step * step_ms
        for entry in made.reports(step, at_ms, start_ms):
            importer.add(at_ms, entry)
        progress(step + 1, steps)


class _DrawnBundles:
    """Bundles by broker, with their drawn series, shift and factor."""

    def __init__(self, series: Sequence[Series], fleet: SyntheticFleet, rng: np.random.Generator) -> None:
        self._series = [_around_one(each.values) for each in series]
        self._of: IntArray = np.sort(rng.integers(len(series), size=fleet.bundles))
        self._shift: IntArray = rng.integers(1 << 31, size=fleet.bundles)
        factor = (rng.pareto(_TAIL, fleet.bundles) + 1) * (_TAIL - 1) / _TAIL
        self._rate: FloatArray = factor * fleet.messages_per_s
        self._message_bytes: FloatArray = fleet.message_bytes * rng.lognormal(
            -_MEAN_OF_SIZES, 2 * _MEAN_OF_SIZES, fleet.bundles
        )
        self._topics: IntArray = np.maximum(1, np.rint(_TOPICS * factor)).astype(np.int64)
        self._names = _names([each.name for each in series], self._of)
        self._brokers = [np.arange(first, fleet.bundles, fleet.brokers) for first in range(fleet.brokers)]

    def reports(self, step: int, at_ms: int, start_ms: int) -> Iterator[Report]:
        load = self._load(step)
        for number, own in enumerate(self._brokers, 1):
            report = BrokerReport(
                usage=np.zeros((RESOURCES, 2)),
                load=load[own].sum(axis=0),
                num_topics=int(self._topics[own].sum()),
                num_bundles=len(own),
                num_consumers=int(self._topics[own].sum()),
                num_producers=int(self._topics[own].sum()),
                bundle_names=tuple([self._names[row] for row in own.tolist()]),
                bundle_load=load[own],
                bundle_topics=self._topics[own],
                bundle_sessions=2 * self._topics[own],
                bundle_cache_bytes=np.zeros(len(own), dtype=np.int64),
                last_update_ms=at_ms,
                start_timestamp_ms=start_ms,
                version="",
                load_manager_class="",
                persistent_enabled=True,
                non_persistent_enabled=True,
            )
            yield Report(Registration(BrokerId(f"broker-{number:04d}:8080"), start_ms), recordable(report))

    def _load(self, step: int) -> FloatArray:
        """Return the load (N, 4) of every bundle; outgoing equals incoming."""
        values = np.empty(len(self._of))
        for number, series in enumerate(self._series):
            own = self._of == number
            values[own] = series[(self._shift[own] + step) % len(series)]
        load = np.empty((len(values), METRICS))
        load[:, 0] = load[:, 1] = values * self._rate
        load[:, 2] = load[:, 3] = load[:, 0] * self._message_bytes
        return load


def _around_one(values: FloatArray) -> FloatArray:
    """Scale the series to a mean of 1; a series of zeros is unchanged."""
    mean = float(values.mean())
    return values / mean if mean else values


def _names(series: Sequence[str], of: IntArray) -> list[str]:
    """Return a bundle name for each entry of `of`: each series has its own namespaces, divided into equal ranges."""
    names = []
    for number, name in enumerate(series):
        left, part = int((of == number).sum()), 1
        while left:
            bundles = min(left, _BUNDLES_PER_NAMESPACE)
            namespace = f"series/{_UNUSABLE_IN_NAMES.sub('_', name)}-{part}"
            names += [f"{namespace}/{each}" for each in NamespaceBundles(equal_boundaries(bundles)).ranges()]
            left, part = left - bundles, part + 1
    return names


def _read(path: Path) -> Mapping[str, _SeriesRows]:
    found: dict[str, _SeriesRows] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            if header not in _HEADERS:
                raise HistoryFileError(
                    f"{path}, row 1: {','.join(header)[:80]!r}: expected timestamp,value or timestamp,series,value"
                )
            for number, row in enumerate(lines, 2):
                if len(row) != len(header):
                    raise HistoryFileError(f"{path}, row {number}: {len(row)} columns: expected {len(header)}")
                name = row[1] if len(row) == len(_HEADERS[1]) else path.stem
                rows = found.setdefault(name, _SeriesRows(str(path)))
                time_ms, has_offset = _time_ms(row[0], f"{path}, row {number}, column timestamp")
                rows.times_ms.append(time_ms)
                rows.without_offset.append(not has_offset)
                rows.values.append(_value(row[-1], f"{path}, row {number}, column value"))
                rows.lines.append(number)
    except OSError as error:
        raise HistoryFileError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise HistoryFileError(f"{path}: not a CSV file in UTF-8: {error}") from None
    if not found:
        raise HistoryFileError(f"{path}: no rows below the header")
    return found


def _time_ms(text: str, where: str) -> tuple[int, bool]:
    """Return the time of a cell (a number, or ISO 8601), and whether its offset from UTC is known."""
    try:
        if text.replace(".", "", 1).isdigit():
            number = float(text)
            time_ms = round(number * next(ms for limit, ms in _MS_PER_UNIT if number < limit))
            has_offset = True
        else:
            moment = datetime.fromisoformat(text)
            has_offset = moment.tzinfo is not None
            time_ms = round((moment if has_offset else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError, StopIteration):
        raise HistoryFileError(
            f"{where}: {text[:40]!r}: expected a time such as 2026-01-31 12:00:00, or s, ms, us or ns since 1970"
        ) from None
    check_moment(time_ms, f"{where}: {text[:40]!r}")
    return time_ms, has_offset


def _value(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise HistoryFileError(f"{where}: {text[:40]!r}: expected a number of 0 or more")
    return value


def _even(name: str, rows: _SeriesRows, max_missing: int) -> Series:
    """Resample the rows to equal steps, at the most frequent step between them."""
    if len(rows.times_ms) < 2:  # noqa: PLR2004 - a step needs two rows
        raise HistoryFileError(f"{rows.where}: series {name!r} has one row only: expected two or more")
    differences = np.diff(rows.times_ms).tolist()
    step_ms = Counter(differences).most_common(1)[0][0]
    values = [rows.values[0]]
    for at, difference in enumerate(differences, 1):
        where = f"{rows.where}, row {rows.lines[at]}, column timestamp"
        if difference != step_ms and rows.without_offset[at]:
            _refuse_clock_change(rows.times_ms[at - 1], rows.times_ms[at], step_ms, where)
        if difference == 0:
            raise HistoryFileError(f"{where}: the same time as the row before of series {name!r}")
        if difference < 0:
            raise HistoryFileError(f"{where}: earlier than the row before of series {name!r}: sort the file by time")
        missing, rest = divmod(difference - step_ms, step_ms) if step_ms > 0 else (0, 0)
        if rest or missing < 0:
            raise HistoryFileError(
                f"{where}: {difference / 1000:g} s after the row before of series {name!r}, whose step is"
                f" {step_ms / 1000:g} s: expected a value at every step"
            )
        if missing > max_missing:
            raise HistoryFileError(
                f"{where}: {missing} missing before it in series {name!r}: a gap; fill it,"
                f" or repeat the last value with --fill-gaps {missing}"
            )
        values += [rows.values[at - 1]] * missing + [rows.values[at]]
    return Series(name, rows.where, rows.times_ms[0], step_ms, np.array(values))


def _refuse_clock_change(before_ms: int, after_ms: int, step_ms: int, where: str) -> None:
    """Raise `HistoryFileError` if two rows look like local times at a clock change: equal, or one local step apart.
    Times without an offset count as UTC.
    """
    step = timedelta(milliseconds=step_ms)
    before, after = (datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None) for ms in (before_ms, after_ms))
    if abs(after - before - step) > _LARGEST_CLOCK_CHANGE:
        return
    for zone in _zones():
        first, second = before.replace(tzinfo=zone), after.replace(tzinfo=zone, fold=1)
        changes = first.utcoffset() != second.utcoffset()
        if changes and (before == after or second.astimezone(UTC) - first.astimezone(UTC) == step):
            raise HistoryFileError(
                f"{where}: clocks change here in some time zones: write local times with their offset, such as"
                " 2026-03-29T03:00:00+02:00, and times in UTC with Z"
            )


@cache
def _zones() -> tuple[ZoneInfo, ...]:
    return tuple(ZoneInfo(name) for name in sorted(available_timezones()))
