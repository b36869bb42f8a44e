"""Line plots for a terminal, in blocks of an eighth of a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from loadmanager.cli.text.numbers import format_duration, format_number

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ROWS = 4
_LABEL = 9


def plot(title: str, values: Sequence[float], duration_s: float, width: int) -> list[str]:
    """A curve that fills from below: the highest value of each column's time, from 0 to the highest of all.

    What is not a number is left out.
    """
    columns = max(1, min(width - _LABEL - 1, len(values)))
    highest = _highest_of_each(values, columns)
    top = max(highest, default=0.0)
    lines = [title]
    eighths = len(_BLOCKS) - 1
    for row in reversed(range(_ROWS)):
        label = format_number(top) if row == _ROWS - 1 else "0" if row == 0 else ""
        filled = "".join(_BLOCKS[_part(value, top, row, eighths)] for value in highest)
        lines.append(f"{label:>{_LABEL}} {filled}".rstrip())
    end = format_duration(duration_s)
    lines.append(f"{'0 s':>{_LABEL}} {end:>{max(columns, len(end))}}")
    return lines


def _highest_of_each(values: Sequence[float], columns: int) -> list[float]:
    found = []
    for column in range(columns):
        first, last = column * len(values) // columns, (column + 1) * len(values) // columns
        found.append(max((each for each in values[first:last] if not math.isnan(each)), default=0.0))
    return found


def _part(value: float, top: float, row: int, eighths: int) -> int:
    """Return how many eighths of this row the value fills; any value above 0 is visible."""
    if top <= 0:
        return 0
    filled = math.ceil(value / top * _ROWS * eighths) - row * eighths
    return min(max(filled, 0), eighths)
