from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.fake_pulsar import FakePulsar
from support.pulsar_harness import Harness, pulsar_harness
from support.stores import MemoryWorld

from loadmanager.pulsar import pulsar_intake, report_dates


@pytest.fixture
async def world() -> AsyncIterator[MemoryWorld]:
    world = MemoryWorld()
    yield world
    await world.close()


@pytest.fixture
async def pulsar(world: MemoryWorld) -> AsyncIterator[FakePulsar]:
    """Three brokers, and `lm/bench` with four bundles that nobody owns yet."""
    async with FakePulsar(world) as pulsar:
        await pulsar.add_namespace("lm/bench", bundles=4)
        yield pulsar


@pytest.fixture
def measured_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each report after a move count, as if the host had been measured twice since."""
    monkeypatch.setattr(report_dates, "MEASUREMENTS", 0)


@pytest.fixture
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured_hosts: None
) -> AsyncIterator[Harness]:
    """Three brokers; the first one leads, and owns the four bundles of `lm/bench`.

    `ON_BOTH` has it run either load manager. Topics are read in each poll, so that a report is known at once.
    """
    del measured_hosts
    monkeypatch.setattr(pulsar_intake, "TOPICS_S", 0.0)
    async with pulsar_harness(tmp_path, extensible=getattr(request, "param", "modular") == "extensible") as harness:
        yield harness
