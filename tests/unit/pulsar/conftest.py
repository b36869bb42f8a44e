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
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Harness]:
    """Three brokers; the first one leads, and owns the four bundles of `lm/bench`.

    `ON_BOTH` has it run either load manager. Topics are read in each poll, and moves wait for no measurement of
    the host, so that a report is known at once.
    """
    monkeypatch.setattr(report_dates, "MEASUREMENTS", 0)
    monkeypatch.setattr(pulsar_intake, "TOPICS_S", 0.0)
    async with pulsar_harness(tmp_path, extensible=getattr(request, "param", "modular") == "extensible") as harness:
        yield harness
