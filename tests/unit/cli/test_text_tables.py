from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.cli.text import numbers
from loadmanager.cli.text.text_tables import format_pairs, format_table, wrap_text

WORDS = st.lists(st.text("abcé漢:/_-.0", min_size=1, max_size=40), max_size=6).map(" ".join)
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@given(st.integers(1, 4), st.data(), st.one_of(st.none(), st.integers(1, 120)))
def test_words_are_never_cut_or_broken(number: int, data: st.DataObject, width: int | None) -> None:
    headings = [f"column{at}" for at in range(number)]
    rows = data.draw(st.lists(st.lists(WORDS, min_size=number, max_size=number), max_size=4))
    lines = format_table(headings, rows, width)
    printed = " ".join(lines).split()
    for row in rows:
        for cell in row:
            assert all(word in printed for word in cell.split())
    assert all(line == line.rstrip() for line in lines)


def test_wide_table_is_printed_record_by_record() -> None:
    headings, rows = ["name", "owner"], [["t/ns/0x00000000_0xffffffff", "b1:8080"], ["t/ns", ""]]
    assert format_table(headings, rows, 35) == [
        "name                        owner",
        "───────────────────────────────────",
        "t/ns/0x00000000_0xffffffff  b1:8080",
        "t/ns",
    ]
    assert format_table(headings, rows, 34) == [
        "name   t/ns/0x00000000_0xffffffff",
        "owner  b1:8080",
        "",
        "name   t/ns",
    ]


def test_long_value_continues_below_itself() -> None:
    assert format_pairs([("why", "one two three"), ("n", "")], 12) == ["why  one two", "     three", "n"]
    assert wrap_text("a b", None, "  ") == ["  a b"]


@pytest.mark.parametrize(
    ("figure", "shown"),
    [(0.0, "0"), (1.23456, "1.23"), (41.0, "41"), (1234.56, "1235"), (0.000012345, "0.0000123"), (float("inf"), "inf")],
)
def test_figures_have_three_significant_digits(figure: float, shown: str) -> None:
    assert numbers.format_number(figure) == shown


def test_counts_and_sizes_have_units() -> None:
    assert [numbers.format_count(n) for n in (0, 999, 1234, 56_789, 2e7)] == ["0", "999", "1.23k", "56.8k", "20M"]
    assert [numbers.format_size(n) for n in (0, 512, 2048, 3.5 * 2**20, 2**40)] == [
        *("0 B", "512 B", "2 KiB", "3.5 MiB", "1 TiB"),
    ]


@pytest.mark.parametrize(
    ("ago_ms", "shown"),
    [
        (0, "now"),
        (12_000, "12 s ago"),
        (3 * MINUTE_MS, "3 min ago"),
        (2 * HOUR_MS, "2 h ago"),
        (2 * HOUR_MS + 5 * MINUTE_MS, "2 h 5 min ago"),
        (30 * HOUR_MS + MINUTE_MS, "30 h ago"),
        (3 * DAY_MS, "3 d ago"),
        (-3 * MINUTE_MS, "in 3 min"),
    ],
)
def test_times_are_relative_to_now(ago_ms: int, shown: str) -> None:
    assert numbers.format_relative(1_700_000_000_000 - ago_ms, 1_700_000_000_000) == shown


def test_old_times_have_a_date() -> None:
    assert numbers.format_relative(61_000, 1_700_000_000_000) == "1970-01-01 00:01Z"
    assert numbers.format_clock(61_000) == "00:01:01Z"
