from __future__ import annotations

import asyncio
import time
from unittest.mock import patch

from support.virtual_loop import VirtualLoop
from support.waiting import patience

from loadmanager.config.node_settings import Settings
from loadmanager.leader.mirror.live_settings import LiveSettings

INTERVAL = "loadBalancerSheddingIntervalMinutes"
OVERLOADED = "loadBalancerBrokerOverloadedThresholdPercentage"


def interval_s(settings: Settings) -> float:
    return settings.load_balancer_shedding_interval_minutes * 60


def test_settings_follow_overrides_and_revert_without_them() -> None:
    live = LiveSettings(Settings())
    assert live.apply({OVERLOADED: "70"}) == []
    assert (live.planner.broker_overloaded_threshold_percentage, live.overrides) == (70, {OVERLOADED: "70"})
    assert live.apply({}) == []
    assert live.current.model_dump() == live.base.model_dump()
    assert live.planner.broker_overloaded_threshold_percentage == 85


def test_invalid_override_is_named_and_valid_ones_apply() -> None:
    live = LiveSettings(Settings())
    (fault,) = live.apply({OVERLOADED: "70", INTERVAL: "never"})
    assert INTERVAL in fault
    assert live.overrides == {OVERLOADED: "70"}
    assert live.apply({OVERLOADED: "70", INTERVAL: "never"}) == [fault], "reported each time"


def test_settings_are_built_once() -> None:
    live = LiveSettings(Settings())
    live.apply({OVERLOADED: "70"})
    planner = live.planner
    with patch("loadmanager.leader.mirror.live_settings.usable_overrides", side_effect=AssertionError):
        live.apply({OVERLOADED: "70"})
    assert live.planner is planner


async def test_shortened_interval_ends_a_pause_earlier() -> None:
    live = LiveSettings(Settings(load_balancer_shedding_interval_minutes=1_000))
    pausing = asyncio.create_task(live.pause(interval_s))
    await asyncio.sleep(0)
    live.apply({OVERLOADED: "70"})
    await asyncio.sleep(0)
    assert not pausing.done()
    live.apply({INTERVAL: "0.0001"})
    await asyncio.wait_for(pausing, patience())


def test_lengthened_interval_ends_a_pause_later() -> None:
    live = LiveSettings(Settings(load_balancer_shedding_interval_minutes=1))

    async def pause() -> float:
        started_s = time.monotonic()
        pausing = asyncio.create_task(live.pause(interval_s))
        await asyncio.sleep(10)
        live.apply({INTERVAL: "4"})
        await pausing
        return time.monotonic() - started_s

    loop = VirtualLoop()
    assert loop.run(pause()) == 240.0
    loop.end()
