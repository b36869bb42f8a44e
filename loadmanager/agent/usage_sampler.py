"""Measures the host, or the broker's process, every so often.

    hostUsageScope    other brokers are registered on this host    measured is
    --------------    -----------------------------------------    ---------------------------------------------------
    host              (nobody looks)                               the host, or the container
    process           (nobody looks)                               the broker's process
    auto              no                                           the host, or the container
    auto              yes                                          the broker's process
    auto              yes, and the process cannot be seen          the host: it is said that it is that of all of them

Limits are those of the host, or the container, in any case: they must not change when a neighbour comes or goes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import structlog

from loadmanager.agent.broker_watch import BrokerWatch
from loadmanager.agent.bundle_stats import traffic
from loadmanager.agent.host_readings import Roots, read_host, read_process
from loadmanager.agent.host_usage import HostReading, HostUsage, usage_between, why_bandwidth_is_unknown
from loadmanager.agent.metrics import AgentMetrics
from loadmanager.config import AgentSettings

log = structlog.get_logger(__name__)

_FIRST_INTERVAL_S = 1.0
"""Rates need two readings of one kind; the second is taken soon, so that a broker does not look idle for a minute."""


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
        brokers_on_host: Callable[[], Awaitable[int]],
    ) -> None:
        self._interval_s = settings.load_balancer_host_usage_check_interval_minutes * 60
        self._setting = settings.host_usage_scope
        self._cores = settings.cpu_limit_cores
        self._nic_speed_gbps = settings.load_balancer_override_broker_nic_speed_gbps
        self._watch = watch
        self._metrics = metrics
        self._clock = clock
        self._roots = roots
        self._brokers_on_host = brokers_on_host
        self._previous: HostReading | None = None
        self._has_rates = False
        self._unknown: tuple[str, ...] | None = None
        self._sharing: tuple[int, str] = (1, "host")
        self.scope = "process" if self._setting == "process" else "host"
        """What was measured last."""
        self.usage = HostUsage()
        self.measured_at_s = clock()

    async def run(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(self._interval_s if self._has_rates else min(_FIRST_INTERVAL_S, self._interval_s))

    async def sample(self) -> None:
        asked_at_s = self._clock()
        brokers = await self._brokers_on_host() if self._setting == "auto" else 1
        scope, reading = await asyncio.to_thread(self._read, brokers)
        self._say_what_is_shared(brokers, scope)
        if scope != self.scope:  # what was measured before stands until there are two readings of the other kind
            self._previous, self.scope, self._has_rates = reading, scope, False
            return
        of_process = scope == "process"
        if reading is None:
            self.usage = HostUsage()
        else:
            own_traffic = traffic(self._watch.loads) if of_process else None
            self.usage = usage_between(self._previous, reading, self._nic_speed_gbps, own_traffic)
        self._has_rates = self._previous is not None
        self._previous = reading
        self.measured_at_s = min(asked_at_s, self._watch.measured_at_s) if of_process else asked_at_s
        self._metrics.show_usage(self.usage)
        self._say_what_is_unknown(reading)

    def _read(self, brokers: int) -> tuple[str, HostReading | None]:
        """What is measured while so many brokers are on the host; no reading of a process that there is not."""
        declared = self._nic_speed_gbps is not None
        if self._setting == "process" or brokers > 1:
            process = self._watch.process
            if process is None:
                return "process", None
            reading = None
            if self._setting == "process" or process[0] != os.getpid():  # else it is another one, of another namespace
                reading = read_process(process[0], self._roots, self._clock, self._cores, nic_speed_declared=declared)
            if reading is not None or self._setting == "process":
                return "process", reading
        return "host", read_host(self._roots, self._clock, self._cores, nic_speed_declared=declared)

    def _say_what_is_shared(self, brokers: int, scope: str) -> None:
        if (brokers, scope) == self._sharing or (brokers == 1 and self._sharing[0] == 1):
            return
        self._sharing = brokers, scope
        if brokers > 1 and scope == "host":
            log.warning(
                "shared_host_measured_as_a_whole",
                brokers=brokers,
                why="the broker's process is not to be seen from here, so each of them reports what all use",
                to_change="have the agent see the broker's process (one pid namespace), or hostUsageScope",
            )
        else:
            log.info("host_shared", brokers=brokers, measured=scope)

    def _say_what_is_unknown(self, reading: HostReading | None) -> None:
        unknown = self.usage.unknown_limits()
        if unknown == self._unknown:
            return
        self._unknown = unknown
        log.info("resource_limits_unknown", resources=unknown, scope=self.scope)
        if reading is not None and "bandwidthIn" in unknown:
            log.warning(
                "bandwidth_limit_unknown",
                why=why_bandwidth_is_unknown(reading.nics),
                meaning="bandwidth counts as unused",
                to_change="loadBalancerOverrideBrokerNicSpeedGbps",
            )
