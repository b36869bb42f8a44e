from __future__ import annotations

import asyncio
from io import StringIO

from rich.console import Console

from loadmanager.dev.demo.demo_monitor import DemoState, ShownBroker, show_lines, status_line


async def some_work() -> int:
    await asyncio.sleep(0.01)
    return 42


async def test_lines_show_every_event_once_and_return_the_result() -> None:
    text, state = StringIO(), DemoState()
    state.add_event("the leader node-1 was killed")
    result = await show_lines(state, Console(file=text), asyncio.create_task(some_work()))
    assert result == 42
    assert text.getvalue().count("the leader node-1 was killed") == 1


def test_broker_that_does_not_answer_has_an_unknown_rate() -> None:
    state = DemoState(brokers=[ShownBroker("broker-1", 0.0), ShownBroker("broker-2")])
    assert status_line(state).endswith("broker-1 0/s  broker-2 ?")
