"""Heat map of a grid, reduced to as many rows and columns as can be shown.

Rows of bundles are in the order of namespaces and hashes. Half of them are for the hottest, one each; cold neighbours
share the others. A row shows the maximum of its names, not their sum: a thousand cold bundles are not a hot one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmanager.core.diagnosis.timeline.grid import MOST, Bytes, Grid
from loadmanager.core.domain.names import namespace_of
from loadmanager.core.model.load import FloatArray

UNKNOWN = 255
_STEPS_PER_OCTAVE = 6
_WHOLE = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """`cells` (rows, columns) are per cent, `UNKNOWN` where unknown, of `scale` bytes/s if that is not None.

    `sizes` (rows,) is the number of names per row. The first column begins at `from_ms`.
    """

    from_ms: int
    step_ms: int
    rows: tuple[str, ...]
    sizes: tuple[int, ...]
    cells: Bytes
    scale: float | None


def usage_as_figures(percent: FloatArray) -> Bytes:
    """Convert usage (k,) in per cent to grid figures."""
    return np.asarray(np.clip(np.rint(np.nan_to_num(percent)), 0, MOST), dtype=np.uint8)


def throughput_as_figures(throughput: FloatArray) -> Bytes:
    """Convert bytes/s (k,) to logarithmic grid figures: six per doubling, so within 6 %."""
    steps = np.rint(np.log2(1 + np.maximum(throughput, 0)) * _STEPS_PER_OCTAVE)
    return np.asarray(np.clip(steps, 0, MOST), dtype=np.uint8)


def throughput_of(figures: npt.ArrayLike) -> FloatArray:
    """Convert grid figures to bytes/s."""
    return np.asarray(np.exp2(np.asarray(figures, dtype=np.float64) / _STEPS_PER_OCTAVE) - 1)


def draw_brokers(grid: Grid, from_ms: int, until_ms: int, columns: int, rows: int) -> HeatMap:
    """Draw usage in at most so many columns and rows."""
    names, found, begins_ms, step_ms = _over(grid, from_ms, until_ms, columns)
    share = np.linspace(0, len(names), min(rows, len(names)) + 1).astype(np.intp)[:-1]
    cells = _together(found, share)
    return HeatMap(begins_ms, step_ms, *_named(names, share, _from_to), cells.T - np.uint8(1), None)


def draw_bundles(grid: Grid, from_ms: int, until_ms: int, columns: int, rows: int) -> HeatMap:
    """Draw load, relative to the hottest cell."""
    names, found, begins_ms, step_ms = _over(grid, from_ms, until_ms, columns)
    share = _hottest_alone(found, rows)
    cells = _together(found, share)
    scale = float(throughput_of(cells.max(initial=1) - 1))
    percent = np.full(256, UNKNOWN, dtype=np.uint8)
    percent[1:] = np.rint(np.minimum(_WHOLE * throughput_of(np.arange(255)) / max(scale, 1.0), _WHOLE))
    return HeatMap(begins_ms, step_ms, *_named(names, share, _range_of), percent[cells.T], scale)


def _over(grid: Grid, from_ms: int, until_ms: int, columns: int) -> tuple[tuple[str, ...], Bytes, int, int]:
    """Return the names with figures in the range, their figures, and the begin and step of the columns."""
    each = max(-(-(until_ms - from_ms) // (columns * grid.step_ms)), 1)
    while -(-until_ms // (each * grid.step_ms)) - from_ms // (each * grid.step_ms) > columns:
        each += 1  # one more begins before the first, or ends after the last
    names, found, begins_ms = grid.over(from_ms, until_ms, each)
    known = np.flatnonzero(found.any(axis=0))
    return tuple(names[row] for row in known.tolist()), found.take(known, axis=1), begins_ms, each * grid.step_ms


def _hottest_alone(found: Bytes, rows: int) -> npt.NDArray[np.intp]:
    """Return the first name of each row: half of the rows are for the names with the most load over time, and the
    longest stretches between them are halved while rows are left.
    """
    names = found.shape[1]
    if names <= rows:
        return np.arange(names)
    load = throughput_of(np.maximum(np.arange(256) - 1, 0))
    total = np.zeros(names)
    for column in found:
        total += load[column]
    alone = np.sort(np.argsort(total)[names - rows // 2 :])
    begins = np.unique(np.concatenate([[0], alone, alone[alone < names - 1] + 1]))[:rows]
    stretches = [
        (begin - end, begin) for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), names], strict=True)
    ]
    heapq.heapify(stretches)  # the longest first
    while len(stretches) < rows:
        length, begin = heapq.heappop(stretches)
        half = -length // 2
        heapq.heappush(stretches, (-half, begin))
        heapq.heappush(stretches, (length + half, begin + half))
    return np.array(sorted(begin for _, begin in stretches))


def _together(found: Bytes, share: npt.NDArray[np.intp]) -> Bytes:
    """Return the maximum of the names that share a row."""
    if not len(share):
        return found[:, :0]
    return np.asarray(np.maximum.reduceat(found, share, axis=1), dtype=np.uint8)


def _named(
    names: Sequence[str], share: npt.NDArray[np.intp], name: Callable[[str, str], str]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Label each row by its first and last name, with the number of names."""
    begins, ends = share.tolist(), [*share[1:].tolist(), len(names)]
    called = tuple(name(names[begin], names[end - 1]) for begin, end in zip(begins, ends, strict=False))
    return called, tuple(end - begin for begin, end in zip(begins, ends, strict=False))


def _from_to(first: str, last: str) -> str:
    return first if first == last else f"{first} … {last}"


def _range_of(first: str, last: str) -> str:
    """Return the hash range from the first to the last bundle of one namespace."""
    if first == last or namespace_of(first) != namespace_of(last):
        return _from_to(first, last)
    return f"{first.partition('_0x')[0]}_{last.rpartition('_')[2]}"
