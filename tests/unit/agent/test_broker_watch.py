"""Watch of a broker: when its silence, or its closed port, means that its process is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.clock import ManualClock
from support.fake_broker import FakeBroker

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.broker_watch import NO_LEASE_S, BrokerWatch, StuckDetector
from loadmanager.agent.grants import Grants
from loadmanager.core.domain.names import BrokerId
from loadmanager.net.broker_client import BrokerClient
from loadmanager.net.http_client import HttpClient

SILENCE_S = 10.0


class Watched:
    """A broker, its watch, the time of its last lease, and the number of changes told."""

    def __init__(self, broker: FakeBroker, http: HttpClient) -> None:
        self.broker, self.clock = broker, ManualClock()
        self.last_lease_s: float | None = None
        self.changes = 0
        self.stuck, grants = StuckDetector(1.0), Grants(BrokerId("b:1"))
        self.watch = BrokerWatch(
            BrokerClient(http, broker.url),
            grants,
            AgentMetrics(grants.broker),
            self.stuck,
            self.clock,
            stats_interval_s=1.0,
            probe_interval_s=1.0,
            silence_s=SILENCE_S,
            last_lease_at_s=lambda: self.last_lease_s,
            on_change=self._count,
        )

    async def look_after(self, seconds: float) -> bool:
        """Return whether the watch still has a process then."""
        self.clock.advance(seconds)
        await self.watch.look()
        return self.watch.process is not None

    def _count(self) -> None:
        self.changes += 1


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    async with FakeBroker() as broker, HttpClient() as http:
        yield Watched(broker, http)


@pytest.mark.parametrize("lease_s", [0.0, 5.0])
async def test_broker_that_fails_is_lost_after_the_longest_silence(watched: Watched, lease_s: float) -> None:
    assert await watched.look_after(0.0)
    watched.last_lease_s = watched.clock() + lease_s
    watched.broker.stats_status = 500
    assert await watched.look_after(SILENCE_S + lease_s)
    assert not watched.watch.is_answering
    assert not await watched.look_after(0.1)
    assert watched.changes == 2
    watched.broker.stats_status = 200
    assert await watched.look_after(0.0)
    assert watched.watch.is_answering


async def test_broker_whose_port_is_closed_is_lost_at_once(watched: Watched) -> None:
    assert await watched.look_after(0.0)
    await watched.broker.stop()
    assert not await watched.look_after(1.0)
    assert not await watched.look_after(1.0)
    assert watched.changes == 2, "it is told once that the broker came, and once that it went"


async def test_broker_without_lease_requests_is_lost_at_the_third_check(watched: Watched) -> None:
    assert await watched.look_after(0.0)
    watched.stuck.note_lease_request(watched.clock())
    assert [await watched.look_after(seconds) for seconds in (NO_LEASE_S + 1, 1.0, 1.0)] == [True, True, False]
    watched.stuck.note_lease_request(watched.clock())
    assert await watched.look_after(1.0)
