from __future__ import annotations

import inspect
import time
from collections.abc import Callable

import pytest

from loadmanager.agent.agent_service import Agent
from loadmanager.broker import Hosting
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.util import clock


def test_clock_counts_time_in_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", lambda name: 500.0 if name == time.CLOCK_BOOTTIME else 100.0)
    assert clock.now_s() == 500.0


def test_monotonic_clock_is_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> float:
        raise OSError("no such clock")

    monkeypatch.setattr(time, "clock_gettime", refuse)
    assert not clock._is_available()
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert not clock._is_available()
    monkeypatch.setattr(clock, "COUNTS_SUSPENSION", False)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert clock.now_s() == 100.0


@pytest.mark.parametrize("made", [Agent, Hosting, ZooKeeperStore])
def test_leases_and_sessions_use_this_clock(made: Callable[..., object]) -> None:
    assert inspect.signature(made).parameters["clock"].default is clock.now_s
