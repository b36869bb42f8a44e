from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.waiting import eventually

from loadmanager.dev.demo import director
from loadmanager.dev.demo.demo_monitor import DemoState, ShownBroker
from loadmanager.dev.demo.demo_settings import DemoSettings
from loadmanager.dev.demo.director import Director
from loadmanager.dev.demo.evidence import RateSample, find_json, imbalance
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


async def test_measurement_without_traffic_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(director, "_NEXT_STRETCH_S", 0.01)
    monkeypatch.setattr(director, "_MEASURED_WITHIN_S", 0.1)
    state = DemoState()
    script = Director(DemoSettings(duration_s=0.1), None, state, None)  # type: ignore[arg-type]  # nobody is asked
    script._start_s = now_s()
    await script._measure("at_the_end", 0.0, 1.0)
    assert imbalance(state.samples, *script._windows["at_the_end"]) is None


def test_hot_spot_widens_from_turn_to_turn(tmp_path: Path) -> None:
    hot_spot, settings, state = tmp_path / "hot", DemoSettings(), DemoState()
    names = settings.workload.topic_names()
    for number in range(5):
        topics = frozenset(names[36 * number : 36 * (number + 1)])
        state.brokers.append(ShownBroker(f"broker-{number}", messages_per_s=number, topic_names=topics))
    script = Director(settings, SimpleNamespace(hot_spot_file=hot_spot), state, None)  # type: ignore[arg-type]  # no cluster
    found = []
    for _ in range(4):
        script._move_hot_spot()
        hot = find_json(hot_spot)
        found.append((len(hot), sorted({position // 36 for position in hot})))
    assert found == [(8, [0]), (12, [0, 1]), (16, [0, 1, 2]), (8, [0, 1, 2])]
