from __future__ import annotations

import asyncio
from io import StringIO

from rich.console import Console

from loadmanager.dev.demo.demo_monitor import DemoState, show_lines


async def some_work() -> int:
    await asyncio.sleep(0.01)
    return 42


async def test_lines_print_every_event_once_and_give_the_result() -> None:
    text, state = StringIO(), DemoState()
    state.add_event("the leader node-1 was killed")
    result = await show_lines(state, Console(file=text), asyncio.create_task(some_work()))
    assert result == 42
    assert text.getvalue().count("the leader node-1 was killed") == 1
