from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadmanager.cli.broker_monitor import Reading, Update
from loadmanager.cli.monitor_command import render_broker, render_cluster, render_json, render_live
from loadmanager.cli.text import numbers
from loadmanager.cli.text.text_tables import format_pairs, format_table, wrap_text
from loadmanager.wire.average_records import TimeAverageBrokerData
from loadmanager.wire.broker_data import LocalBrokerData

IDLE = LocalBrokerData(
    cpu={"usage": 0.0, "limit": 100.0},
    memory={"usage": 48.33, "limit": 100.0},
    directMemory={"usage": 0.01, "limit": 100.0},
    numTopics=4,
    numBundles=4,
    numConsumers=2,
    lastBundleGains=["a", "b", "c", "d"],
)


def drawn(update: Update, width: int = 120) -> str:
    console = Console(width=width, height=100, force_terminal=False, color_system=None, record=True, quiet=False)
    with console.capture() as capture:
        console.print(render_live(update, datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)))
    return capture.get()


def test_a_broker_is_shown_as_pulsars_monitor_shows_it() -> None:
    reading = Reading("b:8080", IDLE, TimeAverageBrokerData())
    assert render_broker(reading).splitlines() == [
        "Broker b:8080",
        "=" * 108,
        "||SYSTEM        |CPU %         |MEMORY %      |DIRECT %      |BW IN %       |BW OUT %      |MAX %         ||",
        "||              |0.00          |48.33         |0.01          |0.00          |0.00          |0.01          ||",
        "||COUNT         |TOPIC         |BUNDLE        |PRODUCER      |CONSUMER      |BUNDLE +      |BUNDLE -      ||",
        "||              |4             |4             |0             |2             |4             |0             ||",
        "||LATEST        |MSG/S IN      |MSG/S OUT     |TOTAL         |KB/S IN       |KB/S OUT      |TOTAL         ||",
        "||              |0.00          |0.00          |0.00          |0.00          |0.00          |0.00          ||",
        "||SHORT         |MSG/S IN      |MSG/S OUT     |TOTAL         |KB/S IN       |KB/S OUT      |TOTAL         ||",
        "||              |0.00          |0.00          |0.00          |0.00          |0.00          |0.00          ||",
        "||LONG          |MSG/S IN      |MSG/S OUT     |TOTAL         |KB/S IN       |KB/S OUT      |TOTAL         ||",
        "||              |0.00          |0.00          |0.00          |0.00          |0.00          |0.00          ||",
        "=" * 108,
    ]


def test_what_is_not_known_is_a_dash_and_the_fault_stands_below_the_table() -> None:
    lines = render_broker(Reading("b:8080", None, None, ("/loadbalance/brokers/b:8080: empty",))).splitlines()
    assert lines[3].split("|")[3:9] == ["-             "] * 6
    assert lines[-1] == "! /loadbalance/brokers/b:8080: empty"


def test_the_column_of_brokers_is_as_wide_as_the_longest_id() -> None:
    long_id = "broker-in-a-far-away-place.example.com:8080"
    lines = render_cluster([Reading("b:1", IDLE), Reading(long_id, IDLE)]).splitlines()
    assert f"||{long_id} |4             |" in lines[4]
    assert len({len(line) for line in lines[1:]}) == 1


def test_json_has_null_for_what_is_not_known_and_a_total() -> None:
    update = Update({"b:1": Reading("b:1", IDLE, None, ("a fault",))}, frozenset())
    shown = json.loads(render_json(update, 7))
    assert shown["at"] == 7
    assert shown["problem"] is None
    [broker] = shown["brokers"]
    assert broker["brokerId"] == "b:1"
    assert broker["count"]["bundles"] == 4
    assert set(broker["long"].values()) == {None}
    assert broker["faults"] == ["a fault"]
    assert shown["total"]["bundles"] == 4
    assert shown["total"]["longTermMsgRate"] is None


def test_the_live_screen_shows_all_brokers_first_then_each() -> None:
    screen = drawn(Update({"b:1": Reading("b:1", IDLE)}, frozenset()))
    assert "03:04:05  1 brokers" in screen
    assert screen.index("LONG/S") < screen.index("TOTAL") < screen.index("SYSTEM") < screen.index("48.33")


def test_the_live_screen_says_why_it_is_not_current() -> None:
    assert "not current: no connection" in drawn(Update({}, frozenset(), "no connection"))


def test_names_and_faults_are_shown_as_they_are_written_even_when_they_look_like_markup() -> None:
    screen = drawn(Update({"[red]b:1": Reading("[red]b:1", None, None, ("x: [bold]oops",))}, frozenset()))
    assert "[red]b:1" in screen
    assert "! x: [bold]oops" in screen


WORDS = st.lists(st.text("abcé漢:/_-.0", min_size=1, max_size=40), max_size=6).map(" ".join)
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@given(st.integers(1, 4), st.data(), st.one_of(st.none(), st.integers(1, 120)))
def test_no_word_is_cut_or_broken_however_narrow_it_is(number: int, data: st.DataObject, width: int | None) -> None:
    headings = [f"column{at}" for at in range(number)]
    rows = data.draw(st.lists(st.lists(WORDS, min_size=number, max_size=number), max_size=4))
    lines = format_table(headings, rows, width)
    printed = " ".join(lines).split()
    for row in rows:
        for cell in row:
            assert all(word in printed for word in cell.split())
    assert all(line == line.rstrip() for line in lines)


def test_what_fits_is_a_table_and_what_does_not_stands_record_by_record() -> None:
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


def test_a_long_value_goes_on_below_itself() -> None:
    assert format_pairs([("why", "one two three"), ("n", "")], 12) == ["why  one two", "     three", "n"]
    assert wrap_text("a b", None, "  ") == ["  a b"]


@pytest.mark.parametrize(
    ("figure", "shown"),
    [(0.0, "0"), (1.23456, "1.23"), (41.0, "41"), (1234.56, "1235"), (0.000012345, "0.0000123"), (float("inf"), "inf")],
)
def test_figures_have_three_digits_that_count(figure: float, shown: str) -> None:
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
def test_times_are_said_by_how_long_ago_they_are(ago_ms: int, shown: str) -> None:
    assert numbers.format_relative(1_700_000_000_000 - ago_ms, 1_700_000_000_000) == shown


def test_what_is_long_ago_has_its_date() -> None:
    assert numbers.format_relative(61_000, 1_700_000_000_000) == "1970-01-01 00:01Z"
    assert numbers.format_clock(61_000) == "00:01:01Z"
