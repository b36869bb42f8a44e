from __future__ import annotations

import asyncio

import pytest
from support.waiting import eventually

from loadmanager.dev.demo import director
from loadmanager.dev.demo.demo_monitor import DemoState
from loadmanager.dev.demo.demo_settings import DemoSettings
from loadmanager.dev.demo.demo_summary import RateSample, imbalance
from loadmanager.dev.demo.director import Director
from loadmanager.util.clock import now_s

NO_ANSWER: dict[str, float] = {}


@pytest.mark.parametrize("until_then", [[], [NO_ANSWER]], ids=["no look", "no answer"])
async def test_measurement_when_starved(until_then: list[dict[str, float]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(director, "_NEXT_STRETCH_S", 0.01)
    state = DemoState()
    script = Director(DemoSettings(duration_s=0.1), None, state, None)  # type: ignore[arg-type]  # nobody is asked
    script._start_s = now_s()
    measuring = asyncio.create_task(script._measure("at_the_end", 0.0, 1.0))
    await asyncio.sleep(0)
    state.samples += [RateSample(now_s(), rates) for rates in until_then]
    await eventually(lambda: now_s() > script._start_s + 0.2)
    assert not measuring.done()

    async def measured() -> bool:
        state.samples.append(RateSample(now_s(), {"broker-1": 30.0, "broker-2": 10.0}))
        return measuring.done()

    await eventually(measured)
    assert imbalance(state.samples, *script._windows["at_the_end"]) == 1.5


async def test_a_measurement_without_any_traffic_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(director, "_NEXT_STRETCH_S", 0.01)
    monkeypatch.setattr(director, "_MEASURED_WITHIN_S", 0.1)
    state = DemoState()
    script = Director(DemoSettings(duration_s=0.1), None, state, None)  # type: ignore[arg-type]  # nobody is asked
    script._start_s = now_s()
    await script._measure("at_the_end", 0.0, 1.0)
    assert imbalance(state.samples, *script._windows["at_the_end"]) is None
