"""Timeline of the last hours in memory: figures by name and time, events, and heat maps drawn from the figures.

Time comes with each call.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import namespace_of
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState
from loadmanager.core.model.load import FloatArray

Bytes = npt.NDArray[np.uint8]

MOST = 254
"""Maximum figure."""
_FEWEST_ROWS = 64
_FEWEST_COLUMNS = 24
"""Minimum number of columns; names that do not fit beside these are left out."""


class Grid:
    """Ring buffer of `span_ms`, with steps of at least `step_ms` and at most `most_cells` figures.

    Cells hold a figure + 1, so that 0 is unknown and the maximum of two is the known one. Times may come in any order;
    those before the span are ignored.

    A name is a row, a time step a column in a ring buffer. When more names do not fit, the step is doubled, and the
    higher of two merged figures is kept. Unknown is not 0.
    """

    def __init__(self, span_ms: int, step_ms: int, most_cells: int) -> None:
        self.step_ms = step_ms
        self._most_cells = most_cells
        self._columns = -(-span_ms // step_ms)
        self._newest = -1  # the number of the last step, counted from 1970
        self._cells = np.zeros((self._columns, 0), dtype=np.uint8)
        self._row_of: dict[str, int] = {}
        self._free: list[int] = []
        self._used = 0
        self._order: tuple[tuple[str, ...], npt.NDArray[np.intp]] | None = None

    @property
    def cells(self) -> int:
        return self._cells.size

    def put(self, names: Sequence[str], figures: npt.ArrayLike, at_ms: int) -> None:
        """Store figures (k,), each from 0 to `MOST`; the highest in a step is kept. Names are distinct."""
        self._go_on_to(at_ms // self.step_ms)
        rows = self._rows_of(names)
        step = at_ms // self.step_ms  # steps may be longer now
        if step <= self._newest - self._columns:
            return
        known = rows >= 0
        rows, column = rows[known], self._cells[step % self._columns]
        column[rows] = np.maximum(column[rows], np.asarray(figures, dtype=np.uint8)[known] + np.uint8(1))

    def over(self, from_ms: int, until_ms: int, each: int) -> tuple[tuple[str, ...], Bytes, int]:
        """Return all names sorted, and the highest figures + 1 per `each` steps (columns, names), 0 unknown.

        The third value is the start of the first column, at or before `from_ms`.
        """
        names, rows = self._in_order()
        first = from_ms // self.step_ms // each * each
        columns = max(-(-until_ms // self.step_ms) - first, 0)
        columns = -(-columns // each)
        found = np.zeros((columns, len(names)), dtype=np.uint8)
        oldest = max(self._newest - self._columns + 1, 0)
        for column in range(columns):
            steps = range(max(first + column * each, oldest), min(first + (column + 1) * each, self._newest + 1))
            if steps:
                found[column] = self._cells[[step % self._columns for step in steps]].max(axis=0).take(rows)
        return names, found, first * self.step_ms

    def _go_on_to(self, step: int) -> None:
        first = max(self._newest + 1, step - self._columns + 1)
        for each in range(first, step + 1):
            self._cells[each % self._columns] = 0
        self._newest = max(self._newest, step)

    def _rows_of(self, names: Sequence[str]) -> npt.NDArray[np.intp]:
        """Return the rows of these names, adding new ones; -1 where there is no room."""
        new = [name for name in names if name not in self._row_of]
        if new:
            self._order = None
            if len(new) > self._room:
                self._forget_unknown(set(names))
            self._make_room_for(len(new))
            for name in new[: self._room]:
                row = self._free.pop() if self._free else self._used
                self._used = max(self._used, row + 1)
                self._row_of[name] = row
        return np.fromiter((self._row_of.get(name, -1) for name in names), dtype=np.intp, count=len(names))

    @property
    def _room(self) -> int:
        """Return the number of names that still fit."""
        return self._cells.shape[1] - len(self._row_of)

    def _make_room_for(self, names: int) -> None:
        if names > self._room:
            wanted = len(self._row_of) + names
            while wanted * self._columns > self._most_cells and self._columns >= 2 * _FEWEST_COLUMNS:
                self._double_step()
            rows = min(max(_FEWEST_ROWS, wanted + wanted // 8), self._most_cells // self._columns)
            self._widen(max(rows, self._cells.shape[1]))

    def _forget_unknown(self, wanted: set[str]) -> None:
        """Remove names without figures in the span, except wanted ones."""
        known = np.asarray(self._cells.any(axis=0))
        for name in [name for name, row in self._row_of.items() if not known[row] and name not in wanted]:
            self._free.append(self._row_of.pop(name))

    def _widen(self, rows: int) -> None:
        cells = np.zeros((self._columns, rows), dtype=np.uint8)
        cells[:, : self._cells.shape[1]] = self._cells
        self._cells = cells

    def _double_step(self) -> None:
        columns, newest = -(-self._columns // 2), self._newest // 2
        cells = np.zeros((columns, self._cells.shape[1]), dtype=np.uint8)
        for step in range(max(self._newest - self._columns + 1, 2 * (newest - columns + 1), 0), self._newest + 1):
            column = cells[step // 2 % columns]
            np.maximum(column, self._cells[step % self._columns], out=column)
        self._cells, self._columns, self._newest, self.step_ms = cells, columns, newest, 2 * self.step_ms

    def _in_order(self) -> tuple[tuple[str, ...], npt.NDArray[np.intp]]:
        if self._order is None:
            names = tuple(sorted(self._row_of))
            rows = np.fromiter((self._row_of[name] for name in names), dtype=np.intp, count=len(names))
            self._order = names, rows
        return self._order


UNKNOWN = 255
_STEPS_PER_OCTAVE = 6
_WHOLE = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """`cells` (rows, columns) are per cent, `UNKNOWN` where unknown, of `scale` bytes/s if that is not None.

    `sizes` (rows,) is the number of names per row. The first column begins at `from_ms`.

    Rows of bundles are in the order of namespaces and hashes. Half of them show one of the hottest bundles each; cold
    neighbours share the others. A row shows the maximum of its names, not their sum, so that many cold bundles do not
    look like a hot one.
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
    """Draw usage in at most this number of columns and rows."""
    names, found, begins_ms, step_ms = _over(grid, from_ms, until_ms, columns)
    share = np.linspace(0, len(names), min(rows, len(names)) + 1).astype(np.intp)[:-1]
    cells = _together(found, share)
    return HeatMap(begins_ms, step_ms, *_label_rows(names, share, _from_to), cells.T - np.uint8(1), None)


def draw_bundles(grid: Grid, from_ms: int, until_ms: int, columns: int, rows: int) -> HeatMap:
    """Draw load, relative to the hottest cell."""
    names, found, begins_ms, step_ms = _over(grid, from_ms, until_ms, columns)
    share = _hottest_alone(found, rows)
    cells = _together(found, share)
    scale = float(throughput_of(cells.max(initial=1) - 1))
    percent = np.full(256, UNKNOWN, dtype=np.uint8)
    percent[1:] = np.rint(np.minimum(_WHOLE * throughput_of(np.arange(255)) / max(scale, 1.0), _WHOLE))
    return HeatMap(begins_ms, step_ms, *_label_rows(names, share, _range_of), percent[cells.T], scale)


def _over(grid: Grid, from_ms: int, until_ms: int, columns: int) -> tuple[tuple[str, ...], Bytes, int, int]:
    """Return the names with figures in the range, their figures, and the begin and step of the columns."""
    each = max(-(-(until_ms - from_ms) // (columns * grid.step_ms)), 1)
    while -(-until_ms // (each * grid.step_ms)) - from_ms // (each * grid.step_ms) > columns:
        each += 1  # columns are aligned, so one more may be needed
    names, found, begins_ms = grid.over(from_ms, until_ms, each)
    known = np.flatnonzero(found.any(axis=0))
    return tuple(names[row] for row in known.tolist()), found.take(known, axis=1), begins_ms, each * grid.step_ms


def _hottest_alone(found: Bytes, rows: int) -> npt.NDArray[np.intp]:
    """Return the first name of each row. Half of the rows are for the names with the most load over time. The names
    between them share the other rows: the longest run is halved while rows are left.
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


def _label_rows(
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


class MoveMoment(NamedTuple):
    """A bundle left a broker, for another or for none."""

    at_ms: int
    bundle: str
    source: str
    destination: str | None
    reason: str


class SplitMoment(NamedTuple):
    at_ms: int
    bundle: str


class LeaderMoment(NamedTuple):
    at_ms: int
    node: str
    epoch: int


@dataclass(slots=True, eq=False)
class Moments:
    """Bounded history of events of each kind, in order of arrival."""

    kept: int
    moves: deque[MoveMoment] = field(init=False)
    splits: deque[SplitMoment] = field(init=False)
    leaders: deque[LeaderMoment] = field(init=False)

    def __post_init__(self) -> None:
        self.moves, self.splits, self.leaders = (deque(maxlen=self.kept) for _ in range(3))

    def changed(self, before: NamespaceState, after: NamespaceState, now_ms: int) -> None:
        """Add the events between two states of a record."""
        if before.bundles.boundaries == after.bundles.boundaries:
            self.moves.extend(_moves(before, after, now_ms))
        else:
            self.splits.extend(_splits(before, after, now_ms))

    def leads(self, node: str, epoch: int, at_ms: int) -> None:
        """Add a leader change, once per epoch."""
        if all(each.epoch != epoch for each in self.leaders):
            self.leaders.append(LeaderMoment(at_ms, node, epoch))

    def recall(
        self, moves: Iterable[MoveMoment], splits: Iterable[SplitMoment], leaders: Iterable[LeaderMoment]
    ) -> None:
        """Prepend recorded events that are older than the first one here, as many as fit."""
        self.moves = deque((*moves, *self.moves), self.kept)
        self.splits = deque((*splits, *self.splits), self.kept)
        known = {each.epoch for each in self.leaders}
        self.leaders = deque((*(each for each in leaders if each.epoch not in known), *self.leaders), self.kept)


def _moves(before: NamespaceState, after: NamespaceState, now_ms: int) -> Iterator[MoveMoment]:
    pairs = zip(before.ownerships, after.ownerships, strict=True)
    for index, (former, owned) in enumerate(pairs):
        if former is owned or former.owner is None or former.owner == owned.owner:
            continue
        destination = None if owned.owner is None else owned.owner.broker
        bundle, source = after.bundle_name(index), former.owner.broker
        yield MoveMoment(owned.since_ms or now_ms, bundle, source, destination, _reason(former, owned))


def _reason(former: Ownership, owned: Ownership) -> str:
    """Return the reason of the release, if it was observed."""
    return former.reason if former.state is OwnershipState.RELEASING else owned.reason


def _splits(before: NamespaceState, after: NamespaceState, now_ms: int) -> Iterator[SplitMoment]:
    """Yield each former bundle with new boundaries inside."""
    new = sorted(set(after.bundles.boundaries) - set(before.bundles.boundaries))
    for index in dict.fromkeys(map(before.bundles.index_of_hash, new)):
        part = after.ownerships[after.bundles.index_of_hash(before.bundles.boundaries[index])]
        yield SplitMoment(part.since_ms or now_ms, before.bundle_name(index))
