"""Sets of message numbers as sorted, disjoint ranges: numbers arrive nearly in order, so a few ranges hold millions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class NumberRanges:
    """A set of numbers; each range is `[start, end)`."""

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def add(self, start: int, end: int) -> int:
        """Add the numbers `start .. end - 1`; how many of them were not there before."""
        if end <= start:
            return 0
        left = bisect_left(self._ends, start)
        right = bisect_right(self._starts, end)
        touched = sum(self._ends[i] - self._starts[i] for i in range(left, right))
        if left < right:
            start = min(start, self._starts[left])
            end = max(end, self._ends[right - 1])
        self._starts[left:right] = [start]
        self._ends[left:right] = [end]
        return end - start - touched

    def union(self, other: NumberRanges) -> NumberRanges:
        return NumberRanges([*self, *other])

    def difference(self, other: NumberRanges) -> NumberRanges:
        """The numbers that are not in `other`."""
        rest = NumberRanges()
        for start, end in self:
            begin = start
            for other_start, other_end in other.overlapping(start, end):
                rest.add(begin, other_start)
                begin = max(begin, other_end)
            rest.add(begin, end)
        return rest

    def intersection(self, other: NumberRanges) -> NumberRanges:
        return self.difference(self.difference(other))

    def overlapping(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges that share a number with `[start, end)`, in order."""
        for i in range(bisect_right(self._ends, start), bisect_left(self._starts, end)):
            yield self._starts[i], self._ends[i]

    def as_lists(self) -> list[list[int]]:
        return [[start, end] for start, end in self]

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._starts, self._ends, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberRanges) and list(self) == list(other)

    def __repr__(self) -> str:
        return f"NumberRanges({list(self)})"

    __hash__ = None  # type: ignore[assignment]  # it changes, so it must not be a key
