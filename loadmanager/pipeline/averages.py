"""Load by windows of time.

How long a report stands is said in `standing`. Means are over the reports that stood in a window, each weighted by how
long it did. `max` is the highest of them. `p95` is the 95th percentile, by nearest rank, of the 5-minute means in a
window: what bandwidth is billed by.

The rows of bundles are gone through once, for `carried`: who carried what in each 5 minutes. Windows of 5 minutes are
made of that, longer ones of those of 5 minutes. All are functions of Arrow's tables, for a range of time that fits into
memory: what they give of it depends on nothing but its reports and those of `STANDS_MS` before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.core.load import BoolArray, FloatArray, IntArray
from loadmanager.history.schemas import KEYS, LOAD_COLUMNS, RESOURCE_COLUMNS
from loadmanager.pipeline.arrays import (
    Codes,
    codes_of,
    differs,
    each_of,
    is_ascending,
    known_where,
    named,
    over,
    places_of,
    ranks,
    table_of,
)

SHORTEST_S = 300
SHORTEST_MS = SHORTEST_S * 1000
WINDOWS_S = (SHORTEST_S, 3600, 86_400)

FIGURES = (*LOAD_COLUMNS, "topics", "sessions")
"""What is known of a bundle."""

_RESOURCES = tuple(name.removesuffix("_usage") for name in RESOURCE_COLUMNS if name.endswith("_usage"))
_RATED = ("cpu", "direct_memory", "bandwidth_in", "bandwidth_out")
_SUBJECTS = {
    "bundle_windows": ("bundle", "namespace"),
    "broker_windows": ("broker",),
    "namespace_windows": ("namespace",),
}
_P95 = 0.95
NOT_FOR_LONGER = ("window_s", *(f"p95_{each}" for each in LOAD_COLUMNS))
"""The columns of windows of 5 minutes of which nothing is made in longer ones."""


def name_of_mean(figure: str) -> str:
    return f"mean_{figure}" if figure in LOAD_COLUMNS else figure


MEANS = tuple(name_of_mean(figure) for figure in FIGURES)

_Columns = dict[str, Any]
"""Arrays, of Arrow or NumPy, by their names."""


def by_window(
    at_ms: IntArray, until_ms: IntArray, between: tuple[int, int], counts: BoolArray | None = None
) -> tuple[IntArray, IntArray]:
    """Rows that stand from `at_ms` until `until_ms` by the windows in which they do, or came: which row, and when the
    window starts. Of windows those that start `between` two times, of rows those that count.
    """
    first = np.maximum(at_ms, between[0]) // SHORTEST_MS
    last = np.minimum(np.maximum(at_ms, until_ms - 1), between[1] - 1) // SHORTEST_MS
    windows = np.maximum(last - first + 1, 0)
    if counts is not None:
        windows *= counts
    row, window = each_of(first, windows)
    return row, window * SHORTEST_MS


def short_bundle_windows(pieces: pa.Table) -> pa.Table:
    """Windows of 5 minutes, from `carried`; a bundle is in each window in which a report stood that has it."""
    pieces, starts = _in_groups(pieces, "bundle", SHORTEST_MS)
    covered_ms = _numbers(pieces, "covered_ms")
    columns: _Columns = {name: column.take(starts) for name, column in _texts(pieces, "bundle", "namespace").items()}
    columns["start_ms"] = _numbers(pieces, "start_ms")[starts]
    columns["n"] = np.add.reduceat(_numbers(pieces, "n"), starts)
    columns |= {name: np.add.reduceat(_over_time(pieces, name), starts) for name in MEANS}
    for name in LOAD_COLUMNS:
        columns[f"max_{name}"] = np.fmax.reduceat(_numbers(pieces, f"max_{name}"), starts)
    return _short("bundle_windows", columns, np.add.reduceat(covered_ms, starts))


def short_namespace_windows(pieces: pa.Table) -> pa.Table:
    """Windows of 5 minutes, from `carried`: at each moment a namespace carries what its bundles add up to."""
    stood = pc.greater(pieces.column("covered_ms"), 0)
    pieces, starts = _in_groups(pieces if pc.all(stood).as_py() else pieces.filter(stood), "bundle", SHORTEST_MS)
    start_ms, from_ms, covered_ms = (_numbers(pieces, name) for name in ("start_ms", "from_ms", "covered_ms"))
    codes, namespaces = codes_of(pieces.column("namespace"))
    window, one = _windows_of(codes, start_ms)
    columns: _Columns = {"namespace": named(codes[one], namespaces), "start_ms": start_ms[one]}
    columns["bundles"] = np.bincount(window[starts], minlength=len(one))
    columns |= {name: np.bincount(window, _over_time(pieces, name), len(one)) for name in MEANS}
    return _short("namespace_windows", columns, _union_ms(window, from_ms - start_ms, covered_ms, len(one)))


def short_broker_windows(
    broker_reports: pa.Table, reports: pa.Table, pieces: pa.Table, from_ms: int, to_ms: int
) -> pa.Table:
    """Windows of 5 minutes that begin from `from_ms` on and before `to_ms`: resources as the broker reported them (in
    the clean table, and `standing.standing`), its load that of the bundles that it carried (`carried`). Highest are
    both as it reported them.
    """
    at_ms, until_ms = (_numbers(reports, name) for name in ("at_ms", "until_ms"))
    places = places_of(*([_numbers(table, name) for name in KEYS] for table in (reports, broker_reports)))
    row, start_ms = by_window(at_ms, until_ms, (from_ms, to_ms), places >= 0)
    by, brokers = codes_of(*(table.column("broker") for table in (reports, pieces)))
    codes, starts = np.append(by[row], by[len(reports) :]), np.append(start_ms, _numbers(pieces, "start_ms"))
    window, one = _windows_of(codes, starts)
    own, carrying = window[: len(row)], window[len(row) :]
    stood_ms = np.minimum(until_ms[row], start_ms + SHORTEST_MS) - np.maximum(at_ms[row], start_ms)
    covered_ms = np.bincount(own, stood_ms, len(one))
    columns: _Columns = {"start_ms": starts[one], "broker": named(codes[one], brokers)}
    columns["n"] = np.bincount(own, at_ms[row] >= start_ms, len(one)).astype(np.int64)
    columns |= _of_brokers(broker_reports, places[row], own, stood_ms, len(one))
    carried_ms = np.bincount(carrying, _numbers(pieces, "covered_ms"), len(one))
    columns["bundles"] = over(carried_ms, covered_ms)
    columns |= {name: np.bincount(carrying, _over_time(pieces, name), len(one)) for name in MEANS}
    return _short("broker_windows", columns, covered_ms)


def rolled_up(name: str, short: pa.Table, window_s: int) -> pa.Table:
    """Longer windows of this table, made of those of 5 minutes, of which `NOT_FOR_LONGER` need not be there."""
    subjects = _SUBJECTS[name]
    rows, starts = _in_groups(short, subjects[0], window_s * 1000)
    covered_s = _numbers(rows, "covered_s")
    columns: _Columns = {each: column.take(starts) for each, column in _texts(rows, *subjects).items()}
    columns["start_ms"] = _numbers(rows, "start_ms")[starts] // (window_s * 1000) * (window_s * 1000)
    columns["window_s"] = np.full(len(starts), window_s)
    columns["covered_s"] = np.add.reduceat(covered_s, starts)
    columns |= {f"p95_{each}": _percentiles(_numbers(rows, f"mean_{each}"), starts) for each in LOAD_COLUMNS}
    for each in [name for name in rows.column_names if name not in columns]:
        values = _numbers(rows, each)
        if each == "n":
            columns[each] = np.add.reduceat(values, starts)
        elif each.startswith("max_") or (each == "bundles" and name == "namespace_windows"):
            columns[each] = np.fmax.reduceat(values, starts)
        else:
            columns[each] = _mean_over_time(values, covered_s, starts)
    return table_of(name, columns)


def _in_groups(rows: pa.Table, subject: str, window_ms: int) -> tuple[pa.Table, IntArray]:
    """The rows, those of a subject in the same window one after the other, and where each of these groups begins."""
    rows = rows.unify_dictionaries()
    codes, _ = codes_of(rows.column(subject))
    windows = _numbers(rows, "start_ms") // window_ms
    keys = _keys(codes, windows)
    if not is_ascending(keys):
        order = np.argsort(keys, kind="stable")
        rows, keys = rows.take(order), keys[order]
    return rows, np.flatnonzero(differs(keys))


def _windows_of(codes: Codes, start_ms: IntArray) -> tuple[IntArray, IntArray]:
    """Which window of a subject each row is of, and of each window one of its rows."""
    keys, window = ranks(_keys(codes, start_ms // SHORTEST_MS))
    one = np.empty(len(keys), dtype=np.int64)
    one[window] = np.arange(len(window))
    return window, one


def _keys(codes: Codes, windows: IntArray) -> IntArray:
    """Codes and windows as one number, in the order of both."""
    if not len(windows):
        return windows
    lowest, highest = int(windows.min()), int(windows.max())
    return codes.astype(np.int64) * (highest - lowest + 1) + (windows - lowest)


def _numbers(rows: pa.Table, name: str) -> Any:  # noqa: ANN401 - an array of the numbers that the column has
    """NaN for null."""
    return rows.column(name).to_numpy()


def _texts(rows: pa.Table, *names: str) -> dict[str, pa.DictionaryArray]:
    return {name: named(*codes_of(rows.column(name))) for name in names}


def _over_time(pieces: pa.Table, name: str) -> FloatArray:
    """What pieces of `carried` add up to over time."""
    covered_ms = _numbers(pieces, "covered_ms")
    values = _numbers(pieces, name) * covered_ms
    return values if covered_ms.all() else np.where(covered_ms > 0, values, 0.0)


def _short(name: str, columns: _Columns, covered_ms: IntArray | FloatArray) -> pa.Table:
    """Windows of 5 minutes in which something stood, from what was added up over time. Highest are the means where
    nothing else is said.
    """
    stood = np.flatnonzero(covered_ms)
    if len(stood) < len(covered_ms):
        columns = {
            each: values.take(pa.array(stood)) if isinstance(values, pa.Array) else values[stood]
            for each, values in columns.items()
        }
        covered_ms = covered_ms[stood]
    means = {each: columns[each] / covered_ms for each in MEANS}
    highest = {f"max_{each}": means[f"mean_{each}"] for each in LOAD_COLUMNS}
    p95 = {f"p95_{each}": means[f"mean_{each}"] for each in LOAD_COLUMNS}
    length = {"window_s": np.full(len(stood), SHORTEST_S), "covered_s": covered_ms / 1000}
    return table_of(name, {**highest, **columns, **means, **p95, **length})


def _union_ms(window: IntArray, begin_ms: IntArray, covered_ms: IntArray, count: int) -> IntArray:
    """For how long anything was there in each of so many windows; it began so long after these did."""
    is_whole = np.zeros(count, dtype=np.bool_)
    is_whole[window[covered_ms == SHORTEST_MS]] = True
    rest = np.flatnonzero(~is_whole[window])
    rest = rest[np.lexsort((begin_ms[rest], window[rest]))]
    beyond = window[rest] * (2 * SHORTEST_MS)  # windows one behind the other
    begin = beyond + begin_ms[rest]
    end = begin + covered_ms[rest]
    reached = np.append(beyond[:1], np.maximum.accumulate(end)[:-1])
    more_ms = np.maximum(end - np.maximum(begin, reached), 0)
    return np.where(is_whole, SHORTEST_MS, np.bincount(window[rest], more_ms, count))


def _of_brokers(
    broker_reports: pa.Table, places: IntArray, window: IntArray, stood_ms: IntArray, count: int
) -> _Columns:
    """What reports at these places say of the brokers themselves, by windows. A resource without a limit is not known,
    and has a weight of its own.
    """
    own = {each: over(*(_numbers(broker_reports, f"{each}_{of}") for of in ("usage", "limit"))) for each in _RESOURCES}
    own["usage"] = np.max([np.nan_to_num(own[each]) for each in _RATED], axis=0)
    columns = {}
    for name, values in (own | {each: _numbers(broker_reports, each) for each in LOAD_COLUMNS}).items():
        of_rows = values[places].astype(np.float64)
        highest = np.full(count, np.nan)
        np.fmax.at(highest, window, known_where(of_rows, stood_ms > 0))
        columns[f"max_{name}"] = highest
        if name in own:
            known_ms = np.where(np.isnan(of_rows), 0, stood_ms)
            total = np.bincount(window, np.nan_to_num(of_rows) * known_ms, count)
            columns[f"mean_{name}"] = over(total, np.bincount(window, known_ms, count))
    return columns


def _mean_over_time(values: FloatArray, covered_s: FloatArray, starts: IntArray) -> FloatArray:
    known_s = np.where(np.isnan(values), 0, covered_s)
    total = np.add.reduceat(np.nan_to_num(values) * known_s, starts)
    return over(total, np.add.reduceat(known_s, starts))


def _percentiles(values: FloatArray, starts: IntArray) -> FloatArray:
    """By nearest rank: of few values it is the highest."""
    sizes = np.diff(starts, append=len(values))
    places = np.ceil(sizes * _P95).astype(np.int64) - 1
    found = np.maximum.reduceat(values, starts)
    for size in np.unique(sizes[places < sizes - 1]):
        groups = np.flatnonzero(sizes == size)
        rows, place = values[starts[groups][:, np.newaxis] + np.arange(size)], places[groups[0]]
        found[groups] = np.partition(rows, place, axis=1)[:, place]
    return found
