"""Figures by name and time in bounded memory: one byte each, for a fixed span, at the best resolution that fits.

A name is a row, a time step a column in a ring buffer. When more names do not fit, the step is doubled, and the higher
of two merged figures is kept. Unknown is not 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

MOST = 254
"""Maximum figure."""
_FEWEST_ROWS = 64
_FEWEST_COLUMNS = 24
"""Minimum number of columns; names that do not fit then are left out."""


class Grid:
    """Ring buffer of `span_ms`, with steps of at least `step_ms` and at most `most_cells` figures.

    Cells hold a figure + 1, so that 0 is unknown and the maximum of two is the known one. Times may come in any order;
    those before the span are ignored.
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
        self._asked: Sequence[str] = ()
        self._rows: npt.NDArray[np.intp] = np.empty(0, np.intp)
        self._order: tuple[tuple[str, ...], npt.NDArray[np.intp]] | None = None

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._row_of)

    @property
    def cells(self) -> int:
        return self._cells.size

    def put(self, names: Sequence[str], figures: npt.ArrayLike, at_ms: int) -> None:
        """Store figures (k,), each from 0 to `MOST`; the highest in a step is kept. Names are distinct.

        Rows are looked up only once for the same sequence object.
        """
        self._go_on_to(at_ms // self.step_ms)
        if names is not self._asked:
            self._rows = self._rows_of(names)
            self._asked = names
        step = at_ms // self.step_ms
        if step <= self._newest - self._columns:
            return
        known = self._rows >= 0
        rows, column = self._rows[known], self._cells[step % self._columns]
        column[rows] = np.maximum(column[rows], np.asarray(figures, dtype=np.uint8)[known] + np.uint8(1))

    def over(self, from_ms: int, until_ms: int, each: int) -> tuple[tuple[str, ...], Bytes, int]:
        """Return all names sorted, and the highest figures + 1 per `each` steps (columns, names), 0 unknown.

        The third value is the begin of the first column, at or before `from_ms`.
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
        """Advance the ring to this step, if it is later."""
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
