"""Health check of the broker, and its statistics, by polling.

    last seen                                       the broker is
    ---------                                       -------------
    statistics, and nothing against it since        SERVING
    no answer, or garbage, for a while              SERVING (slow is not gone; the last statistics stay)
    neither statistics nor a lease asked for        GONE after `silence_s`: it has not had a lease for long
    its port refuses connections                    GONE at once: the process has ended
    the kernel says that it has ended (`deaths`)    GONE at once
    statistics, and asks for no lease any more      GONE until it asks again (`stuck`): it serves nothing
    (nothing yet)                                   GONE

A broker with another pid or start time than before is another broker: it has none of the old one's topics open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.bundle_stats import OpenTopicLoad, topic_loads
from loadmanager.agent.grants import Grants
from loadmanager.agent.presence import BrokerProcess
from loadmanager.agent.stuck_detector import StuckDetector
from loadmanager.core.domain.names import TopicName
from loadmanager.errors import InvalidRecordError
from loadmanager.net.broker_client import BrokerClient
from loadmanager.net.http_client import PeerUnavailableError
from loadmanager.wire.http_bodies import BrokerStats

log = structlog.get_logger(__name__)

_LOOKS = 3
"""So often it has to be seen that the broker asks for no lease: an agent that was stopped first reads what waited."""


class BrokerWatch:
    """Follows one broker. `on_change()` is called when it appears, goes, or is another process than before."""

    def __init__(
        self,
        client: BrokerClient,
        grants: Grants,
        metrics: AgentMetrics,
        stuck: StuckDetector,
        clock: Callable[[], float],
        *,
        stats_interval_s: float,
        probe_interval_s: float,
        silence_s: float,
        last_lease_at_s: Callable[[], float | None],
        on_change: Callable[[], None],
    ) -> None:
        self._client = client
        self._grants = grants
        self._metrics = metrics
        self._stuck = stuck
        self._clock = clock
        self._stats_interval_s = stats_interval_s
        self._probe_interval_s = probe_interval_s
        self._silence_s = silence_s
        self._last_lease_at_s = last_lease_at_s
        self._on_change = on_change
        self._stats: BrokerStats | None = None
        self._stats_at_s = clock()
        self._stats_failed = False
        self._loads: Mapping[str, OpenTopicLoad] = {}
        self._granted_at_s: dict[str, float] = {}
        self._dead: BrokerProcess | None = None
        self._looks_without_question = 0

    @property
    def process(self) -> BrokerProcess | None:
        """The broker's process, None while there is none to register."""
        return _process_of(self._stats) if self._stats else None

    @property
    def sole_process(self) -> BrokerProcess | None:
        """The broker's process, where it says that nobody else serves under its leases."""
        return self.process if self._stats is not None and self._stats.sole_process else None

    @property
    def stats(self) -> BrokerStats | None:
        """The last usable statistics of the process there is now."""
        return self._stats

    @property
    def measured_at_s(self) -> float:
        """Time of the last usable statistics, on the injected clock."""
        return self._stats_at_s

    @property
    def loads(self) -> Mapping[str, OpenTopicLoad]:
        """The load of every open topic, by its name."""
        return self._loads

    @property
    def is_answering(self) -> bool:
        """Tell if the last statistics request was answered."""
        return self._stats is not None and not self._stats_failed

    def granted(self, topic: TopicName) -> None:
        """Note that the broker opens this topic now: its load is measured from here on."""
        self._granted_at_s[str(topic)] = self._clock()

    def died(self, process: BrokerProcess) -> None:
        """This process has ended for certain, whatever of its answers may still be on the way."""
        self._dead = process
        if self.process == process:
            self._lose("died")

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(min(self._probe_interval_s, self._stats_interval_s))

    async def look(self) -> None:
        """Ask for statistics when they are due, else only whether the process is there."""
        self._looks_without_question += 1
        if not self._stuck.asks_for_no_lease(self._clock()):
            self._looks_without_question = 0
        elif self._stats is not None and self._looks_without_question >= _LOOKS:
            self._lose("asks_for_no_lease")
        if not self.is_answering or self._clock() - self._stats_at_s >= self._stats_interval_s:
            await self._take_stats()
        elif await self._client.is_gone():
            self._lose("refused")

    async def _take_stats(self) -> None:
        try:
            stats = await self._client.stats()
        except PeerUnavailableError as error:
            await self._without_answer(str(error))
        except InvalidRecordError as error:
            self._metrics.garbage.labels("broker").inc()
            await self._without_answer(str(error))
        else:
            self._stuck.read_statistics(stats, self._grants.granted, self._clock())
            if _process_of(stats) == self._dead:
                return
            if self._stats is None and self._stuck.asks_for_no_lease(self._clock()):
                return
            self._accept(stats)
            if stats.opening is not None:
                self._grants.saw({entry.topic for entry in stats.topics}.union(stats.opening))

    def _accept(self, stats: BrokerStats) -> None:
        before = self.process
        now_s = self._clock()
        loads = topic_loads(self._stats, stats, {topic: now_s - at_s for topic, at_s in self._granted_at_s.items()})
        self._stats_failed = False
        self._stats_at_s = now_s
        if loads is not None:
            self._stats, self._loads = stats, loads
            self._granted_at_s.clear()
        if self.process != before:
            log.info("broker_appeared", pid=stats.pid, start_timestamp=stats.start_timestamp, version=stats.version)
            self._on_change()

    async def _without_answer(self, error: str) -> None:
        if not self._stats_failed:
            log.warning("broker_does_not_answer", error=error)
        self._stats_failed = True
        if self._stats is None:
            return
        if await self._client.is_gone():
            self._lose("refused")
        elif self._clock() - max(self._stats_at_s, self._last_lease_at_s() or 0.0) > self._silence_s:
            self._lose("silent")

    def _lose(self, reason: str) -> None:
        log.warning("broker_gone", reason=reason)
        self._stats, self._loads, self._stats_failed = None, {}, True
        self._on_change()


def _process_of(stats: BrokerStats) -> BrokerProcess:
    return stats.pid, stats.start_timestamp
