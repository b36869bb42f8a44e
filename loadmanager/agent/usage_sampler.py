"""Sampler of the usage of the broker's process, or of its whole host.

    hostUsageScope    the broker                                                   measured
    --------------    ---------------------------------------------------------    -----------------------------------
    host              (any)                                                        the whole machine
    process           (any)                                                        its process and children
    auto              is alone on the machine, in no container, without limits     the whole machine
    auto              has neighbours, or limits, or is in a container              its process and children
    auto              is invisible: it runs in another container                   nothing; usage and limits are unknown

Limits belong to the measured machine or process, never to the agent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from yarl import URL

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.broker_watch import BrokerWatch
from loadmanager.agent.bundle_stats import traffic
from loadmanager.agent.host_readings import Roots, find_limits, is_in_container, read_host, read_process
from loadmanager.agent.host_usage import (
    NOTHING_KNOWN,
    HostReading,
    HostUsage,
    unknown_limits,
    usage_between,
    why_bandwidth_is_unknown,
)
from loadmanager.agent.presence import BrokerProcess
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.net.liveness import listens_at

log = structlog.get_logger(__name__)

_FIRST_INTERVAL_S = 1.0
"""Usage needs two readings. The second follows soon, so that it is not unknown for a minute."""
_LOOK_INTERVAL_S = 2.0
"""Interval of checks for a new neighbour or a restarted broker, which changes the scope."""
_INIT = 1
"""Pid of the first process. On a machine it is no broker; in a container it may be."""
NOT_MEASURED = (
    "the broker's process cannot be seen from here, as in another container: share its pid namespace (Kubernetes:"
    " shareProcessNamespace: true; Docker: --pid=container:BROKER), or set hostUsageScope"
)
_LIMITS_NOT_SEEN = (
    "the control group of the broker's container cannot be read: run agent and broker as the same user, or set"
    " cpuLimitCores"
)


@dataclass(slots=True, eq=False)
class UsageSampler:
    """Measures usage at intervals. `usage` is the last measurement, taken at `measured_at_s` or later; unknown before
    the first.
    """

    settings: AgentSettings
    watch: BrokerWatch
    metrics: AgentMetrics
    clock: Callable[[], float]
    roots: Roots
    count_agents: Callable[[], int]
    scope: str = "unknown"
    """Scope of the last measurement: `host`, `process` or `unknown`."""
    usage: HostUsage = field(default_factory=lambda: NOTHING_KNOWN)
    measured_at_s: float = field(init=False)
    _previous: HostReading | None = None
    _has_rates: bool = False
    _unknown: tuple[str, ...] | None = None
    _reported_fault: str = ""
    _subject: tuple[int, BrokerProcess | None] = (1, None)

    def __post_init__(self) -> None:
        self.measured_at_s = self.clock()

    @property
    def agents_on_host(self) -> int:
        """Agents on this machine at the last sample, this one included."""
        return self._subject[0]

    def fault(self) -> str:
        """Return why an existing broker cannot be measured, and the fix; empty if it is measured."""
        return NOT_MEASURED if self.scope == "unknown" and self._subject[1] is not None else ""

    async def run(self) -> None:
        while True:
            await self.sample()
            await self._pause()

    async def sample(self) -> None:
        asked_at_s = self.clock()
        self._subject = await self._look()
        scope, reading = await asyncio.to_thread(self._read, *self._subject)
        if scope != self.scope:
            if self.scope == "host":  # the usage of the machine is not that of the process
                self.usage = NOTHING_KNOWN
            self._previous, self.scope = None, scope
            log.info("broker_measured", scope=scope, brokers=self.agents_on_host)
        previous, self._previous = self._previous, reading
        self._has_rates = previous is not None
        if (fault := self.fault()) != self._reported_fault:
            self._reported_fault = fault
            if fault:
                log.warning("broker_not_measured", why=fault)
        of_process = scope == "process"
        if reading is None:
            self.usage = NOTHING_KNOWN
        elif previous is None:  # with a usage of 0, a report of this moment would hold for minutes
            return
        else:
            own_traffic = traffic(self.watch.loads) if of_process else None
            self.usage = usage_between(
                previous, reading, self.settings.load_balancer_override_broker_nic_speed_gbps, own_traffic
            )
        self.measured_at_s = min(asked_at_s, self.watch.measured_at_s) if of_process else asked_at_s
        self.metrics.show_usage(self.usage)
        self._say_what_is_unknown(reading)

    async def _pause(self) -> None:
        """Wait until the next sample is due or the scope may have changed."""
        interval_s = self.settings.load_balancer_host_usage_check_interval_minutes * 60
        due_s = self.clock() + (interval_s if self._has_rates else min(_FIRST_INTERVAL_S, interval_s))
        while (left_s := due_s - self.clock()) > 0:
            await asyncio.sleep(min(left_s, _LOOK_INTERVAL_S))
            if await self._look() != self._subject:
                return

    async def _look(self) -> tuple[int, BrokerProcess | None]:
        return await asyncio.to_thread(self.count_agents), self.watch.process

    def _read(self, agents: int, broker: BrokerProcess | None) -> tuple[str, HostReading | None]:
        """Return the scope and a reading of it; None if nothing can be measured."""
        declared = self.settings.load_balancer_override_broker_nic_speed_gbps is not None
        is_auto = self.settings.host_usage_scope == "auto"
        if self.settings.host_usage_scope == "host":
            return "host", read_host(self.roots, self.clock, self.settings.cpu_limit_cores, nic_speed_declared=declared)
        if broker is None or (is_auto and not self._sees(broker)):
            return "unknown", None
        if is_auto and agents == 1 and self._has_no_limits(broker):
            return "host", read_host(self.roots, self.clock, self.settings.cpu_limit_cores, nic_speed_declared=declared)
        reading = read_process(
            broker[0], self.roots, self.clock, self.settings.cpu_limit_cores, nic_speed_declared=declared
        )
        return ("unknown", None) if reading is None else ("process", reading)

    def _has_no_limits(self, broker: BrokerProcess) -> bool:
        try:
            return not is_in_container(self.roots) and not find_limits(broker[0], self.roots).is_below_host()
        except OSError:  # the process has exited
            return False

    def _sees(self, broker: BrokerProcess) -> bool:
        """Tell if the pid denotes the broker in this pid namespace."""
        pid = broker[0]
        if pid == os.getpid() or (pid == _INIT and not is_in_container(self.roots)):
            return False
        return listens_at(pid, URL(self.settings.broker_url).port) is not False

    def _say_what_is_unknown(self, reading: HostReading | None) -> None:
        unknown = unknown_limits(self.usage)
        if unknown == self._unknown:
            return
        self._unknown = unknown
        log.info("resource_limits_unknown", resources=unknown, scope=self.scope)
        if reading is not None and "cpu" in unknown:
            log.warning("cpu_limit_unknown", why=_LIMITS_NOT_SEEN)
        if reading is not None and "bandwidthIn" in unknown:
            log.warning(
                "bandwidth_limit_unknown",
                why=why_bandwidth_is_unknown(reading.nics),
                meaning="bandwidth counts as unused",
                to_change="loadBalancerOverrideBrokerNicSpeedGbps",
            )
