from __future__ import annotations

import asyncio
from io import StringIO

from rich.console import Console

from loadmanager.dev.demo.demo_monitor import DemoState, ShownBroker
from loadmanager.dev.demo.demo_screen import picture, show_lines, show_live


def a_state() -> DemoState:
    state = DemoState(phase="shedding", leader_name="node-2", epoch=3)
    state.brokers = [
        ShownBroker("broker-1", "127.0.0.1:1", 900.0, 70.0, 9, frozenset({"a", "b"})),
        ShownBroker("broker-2", "127.0.0.1:2", 0.0),
    ]
    state.broker_names = {"127.0.0.1:1": "broker-1", "127.0.0.1:2": "broker-2"}
    state.clients = {"client-1": {"attached": 2, "topics": 3, "published": 1234, "received": 1230}}
    state.decisions = [
        {
            "kind": "unload",
            "subject": "demo/orders/0x00000000_0x80000000",
            "acted": True,
            "source": "127.0.0.1:1",
            "destination": "127.0.0.1:2",
            "sentence": "",
            "reason": "broker_above_average",
        }
    ]
    state.add_event("the leader node-1 was killed")
    return state


async def some_work() -> int:
    await asyncio.sleep(0.01)
    return 42


def test_the_picture_shows_brokers_the_leader_decisions_and_the_timeline() -> None:
    text = StringIO()
    Console(file=text, width=140).print(picture(a_state()))
    drawn = text.getvalue()
    for part in ("broker-1", "900", "70 %", "node-2", "2/3", "1,234", "broker_above_average", "the leader node-1"):
        assert part in drawn
    assert "broker-1 → broker-2" in drawn


def test_a_picture_of_nothing_yet_can_be_drawn() -> None:
    text = StringIO()
    Console(file=text, width=100).print(picture(DemoState()))
    assert "leader none" in text.getvalue()


async def test_lines_print_every_event_once_and_give_the_result() -> None:
    text = StringIO()
    result = await show_lines(a_state(), Console(file=text), asyncio.create_task(some_work()))
    assert result == 42
    assert text.getvalue().count("the leader node-1 was killed") == 1


async def test_the_live_view_gives_the_result() -> None:
    text = StringIO()
    assert await show_live(a_state(), Console(file=text, width=140), asyncio.create_task(some_work())) == 42
    assert "shedding" in text.getvalue()
