"""Measures the host, or the broker's process, every so often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from loadmanager.agent.broker_watch import BrokerWatch
from loadmanager.agent.bundle_stats import traffic
from loadmanager.agent.host_readings import Roots, read_host, read_process
from loadmanager.agent.host_usage import HostReading, HostUsage, usage_between
from loadmanager.agent.metrics import AgentMetrics
from loadmanager.config import AgentSettings

log = structlog.get_logger(__name__)

_FIRST_INTERVAL_S = 1.0
"""Rates need two readings; the second is taken soon, so that a broker does not look idle for its first minute."""


class UsageSampler:
    """`usage` is the last one measured; everything in it is unknown before the first. Everything in it is from
    `measured_at_s` or later.
    """

    def __init__(
        self,
        settings: AgentSettings,
        watch: BrokerWatch,
        metrics: AgentMetrics,
        clock: Callable[[], float],
        roots: Roots,
    ) -> None:
        self._interval_s = settings.load_balancer_host_usage_check_interval_minutes * 60
        self._scope = settings.host_usage_scope
        self._cores = settings.cpu_limit_cores
        self._nic_speed_gbps = settings.load_balancer_override_broker_nic_speed_gbps
        self._watch = watch
        self._metrics = metrics
        self._clock = clock
        self._roots = roots
        self._previous: HostReading | None = None
        self._unknown: tuple[str, ...] | None = None
        self.usage = HostUsage()
        self.measured_at_s = clock()

    async def run(self) -> None:
        await self.sample()
        await asyncio.sleep(min(_FIRST_INTERVAL_S, self._interval_s))
        while True:
            await self.sample()
            await asyncio.sleep(self._interval_s)

    async def sample(self) -> None:
        measured_at_s = self._clock()
        if self._scope == "process":
            measured_at_s = min(measured_at_s, self._watch.measured_at_s)
        reading = await asyncio.to_thread(self._read)
        if reading is None:
            self._previous, self.usage = None, HostUsage()
        else:
            own_traffic = traffic(self._watch.loads) if self._scope == "process" else None
            self.usage = usage_between(self._previous, reading, self._nic_speed_gbps, own_traffic)
            self._previous = reading
        self.measured_at_s = measured_at_s
        self._metrics.show_usage(self.usage)
        self._say_what_is_unknown()

    def _read(self) -> HostReading | None:
        declared = self._nic_speed_gbps is not None
        if self._scope == "host":
            return read_host(self._roots, self._clock, self._cores, nic_speed_declared=declared)
        process = self._watch.process
        if process is None:
            return None
        return read_process(process[0], self._roots, self._clock, self._cores, nic_speed_declared=declared)

    def _say_what_is_unknown(self) -> None:
        unknown = self.usage.unknown_limits()
        if unknown != self._unknown:
            self._unknown = unknown
            log.info("resource_limits_unknown", resources=unknown, scope=self._scope)
