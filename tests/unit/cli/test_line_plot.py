from __future__ import annotations

from loadmanager.cli.text.text_tables import plot


def test_a_curve_is_filled_from_below_up_to_the_highest_value() -> None:
    lines = plot("moves", [0.0, 1.0, 2.0, 4.0], 3_600, 80)
    assert lines == [
        "moves",
        "        4    █",
        "             █",
        "            ██",
        "        0  ███",
        "      0 s 60 min",
    ]


def test_more_values_than_columns_show_the_highest_of_each_time() -> None:
    lines = plot("x", [1.0, 8.0] + [0.0] * 18, 200, 20)
    assert lines[1] == "        8 █"
    assert lines[-1] == "      0 s      3 min"


def test_what_is_not_a_number_leaves_a_gap_and_nothing_at_all_an_empty_plot() -> None:
    assert plot("x", [2.0, float("nan"), 2.0], 30, 80)[1] == "        2 █ █"
    assert plot("x", [0.0, 0.0], 30, 80)[1:5] == ["        0", "", "", "        0"]


def test_something_is_seen_of_whatever_is_above_0() -> None:
    assert plot("x", [1000.0, 1.0], 30, 80)[4] == "        0 █▁"
