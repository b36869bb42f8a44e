from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.dev.demo.demo_summary import NumberRanges

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def numbers(ranges: NumberRanges) -> set[int]:
    return {number for start, end in ranges for number in range(start, end)}


def plain(pairs: list[tuple[int, int]]) -> set[int]:
    return {number for start, end in pairs for number in range(start, end)}


@given(RANGES)
def test_adding_counts_what_is_new_and_keeps_the_ranges_disjoint(pairs: list[tuple[int, int]]) -> None:
    ranges, expected = NumberRanges(), set[int]()
    for start, end in pairs:
        added = set(range(start, end))
        assert ranges.add(start, end) == len(added - expected)
        expected |= added
    assert numbers(ranges) == expected
    assert len(ranges) == len(expected)
    flat = [edge for pair in ranges for edge in pair]
    assert flat == sorted(set(flat)), "disjoint, ascending and not even touching"


@given(RANGES, RANGES)
def test_operations_equal_those_of_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    a, b = NumberRanges(left), NumberRanges(right)
    assert numbers(a.union(b)) == plain(left) | plain(right)
    assert numbers(a.difference(b)) == plain(left) - plain(right)
    assert numbers(a.intersection(b)) == plain(left) & plain(right)
    assert numbers(a) == plain(left), "the operands stay as they were"


def test_numbers_in_order_stay_one_range() -> None:
    ranges = NumberRanges()
    for first in range(0, 10_000, 10):
        ranges.add(first, first + 10)
    assert ranges.as_lists() == [[0, 10_000]]


def test_ranges_survive_json_lists() -> None:
    ranges = NumberRanges([(0, 3), (7, 9)])
    assert NumberRanges(ranges.as_lists()) == ranges
    assert ranges != NumberRanges([(0, 3)])
    assert repr(ranges) == "NumberRanges([(0, 3), (7, 9)])"
