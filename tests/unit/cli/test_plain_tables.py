from __future__ import annotations

import json
from datetime import UTC, datetime

from rich.console import Console

from loadmanager.cli.broker_monitor.broker_readings import Reading, Update
from loadmanager.cli.broker_monitor.live_tables import render_live
from loadmanager.cli.broker_monitor.plain_tables import render_broker, render_cluster, render_json
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
