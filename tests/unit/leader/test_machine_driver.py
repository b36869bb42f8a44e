from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine

import pytest
from support.waiting import eventually

from loadmanager.core.protocol.state_machine import Signal
from loadmanager.leader.election.machine_driver import MachineDriver


class Echo:
    """Machine that returns its input as actions, and records their results."""

    wake_s = None

    def __init__(self) -> None:
        self.told: list[str | Signal] = []

    def step(self, event: str | Signal, now_s: float) -> list[str]:
        del now_s
        self.told.append(event)
        return [event] if isinstance(event, str) and not event.startswith("done") else []


async def test_result_of_an_action_is_the_next_event() -> None:
    echo = Echo()

    def do(action: str) -> Coroutine[None, None, str] | None:
        async def work() -> str:
            return f"done: {action}"

        return work() if action != "at once" else None

    driver = MachineDriver(echo, do)
    term = asyncio.create_task(driver.run())
    await eventually(lambda: echo.told == [Signal.TIME], what="a wake-up when the term begins")
    driver.step("at once")
    driver.step("later")
    await eventually(lambda: "done: later" in echo.told)
    assert [each for each in echo.told if isinstance(each, str)] == ["at once", "later", "done: later"]
    term.cancel()
    await asyncio.gather(term, return_exceptions=True)


@pytest.mark.filterwarnings("error")
async def test_action_cancelled_by_the_end_of_the_term_leaves_no_warning() -> None:
    echo = Echo()

    async def never() -> str:
        raise AssertionError("it began")

    driver = MachineDriver(echo, lambda _: never())
    term = asyncio.create_task(driver.run())
    await eventually(lambda: echo.told)
    term.cancel()
    driver.step("begin")
    await asyncio.gather(term, return_exceptions=True)
    gc.collect()
    assert "begin" in echo.told
