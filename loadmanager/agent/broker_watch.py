"""Health check of the broker, and its statistics, by polling.

`StuckDetector` finds a broker that answers but serves nothing. `BrokerExit` reports the end of its process.

    last seen                                        the broker is
    ---------                                        -------------
    statistics                                       SERVING
    no answer, or an invalid one, for a while        SERVING (the last statistics stay: slow is not gone)
    no statistics and no lease request               GONE after `silence_s`: its lease lapsed long before
    its port refuses connections                     GONE at once: the process has exited
    the kernel reports the exit (`BrokerExit`)       GONE at once
    statistics, but no more lease requests           GONE until it requests one (`stuck`): it serves nothing
    (nothing yet)                                    GONE

A broker with a new pid or start time is a new process: it has none of the previous one's topics open.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import socket
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

import structlog

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.bundle_stats import topic_loads
from loadmanager.agent.grants import Grants
from loadmanager.agent.presence import BrokerProcess
from loadmanager.core.domain.names import TopicName
from loadmanager.errors import InvalidRecordError
from loadmanager.net.broker_client import BrokerClient
from loadmanager.net.http_client import PeerUnavailableError
from loadmanager.net.liveness import has_socket, inode_at_other_end, pid_that_connected
from loadmanager.wire.broker_data import NamespaceBundleStats
from loadmanager.wire.http_bodies import BrokerStats

log = structlog.get_logger(__name__)

_LOOKS = 3
"""Number of polls in a row without a lease request. An agent that was paused must first read the pending requests."""


@dataclass(slots=True, eq=False)
class BrokerWatch:
    """Polls one broker. Calls `on_change()` when the broker appears, is gone, or is a new process."""

    client: BrokerClient
    grants: Grants
    metrics: AgentMetrics
    stuck: StuckDetector
    clock: Callable[[], float]
    _: KW_ONLY
    stats_interval_s: float
    probe_interval_s: float
    silence_s: float
    last_lease_at_s: Callable[[], float | None]
    on_change: Callable[[], None]
    stats: BrokerStats | None = None
    """The last usable statistics of the current process."""
    measured_at_s: float = field(init=False)
    """Time of the last usable statistics, on the injected clock."""
    loads: Mapping[str, NamespaceBundleStats] = field(default_factory=dict)
    _stats_failed: bool = False
    _granted_at_s: dict[str, float] = field(default_factory=dict)
    _dead: BrokerProcess | None = None
    _looks_without_question: int = 0

    def __post_init__(self) -> None:
        self.measured_at_s = self.clock()

    @property
    def process(self) -> BrokerProcess | None:
        """The broker's process; None if there is none to register."""
        return self.stats.process if self.stats else None

    @property
    def sole_process(self) -> BrokerProcess | None:
        """The broker's process, if it declares that no other process serves under its leases."""
        return self.process if self.stats is not None and self.stats.sole_process else None

    @property
    def is_answering(self) -> bool:
        """Tell if the last statistics request was answered."""
        return self.stats is not None and not self._stats_failed

    def granted(self, topic: TopicName) -> None:
        """Note that the broker opens this topic now; its load is measured from this time."""
        self._granted_at_s[str(topic)] = self.clock()

    def died(self, process: BrokerProcess) -> None:
        """Note that this process has exited. Ignore its answers that are still in flight."""
        self._dead = process
        if self.process == process:
            self._lose("died")

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(min(self.probe_interval_s, self.stats_interval_s))

    async def look(self) -> None:
        """Request statistics if they are due; otherwise only check that the process exists."""
        self._looks_without_question += 1
        if not self.stuck.asks_for_no_lease(self.clock()):
            self._looks_without_question = 0
        elif self.stats is not None and self._looks_without_question >= _LOOKS:
            self._lose("asks_for_no_lease")
        if not self.is_answering or self.clock() - self.measured_at_s >= self.stats_interval_s:
            await self._take_stats()
        elif await self.client.is_gone():
            self._lose("refused")

    async def _take_stats(self) -> None:
        try:
            stats = await self.client.stats()
        except PeerUnavailableError as error:
            await self._without_answer(str(error))
        except InvalidRecordError as error:
            self.metrics.garbage.labels("broker").inc()
            await self._without_answer(str(error))
        else:
            self.stuck.note_statistics(stats, self.grants.granted, self.clock())
            if stats.process == self._dead:
                return
            if self.stats is None and self.stuck.asks_for_no_lease(self.clock()):
                return
            self._accept(stats)
            if stats.opening is not None:
                self.grants.saw({entry.topic for entry in stats.topics}.union(stats.opening))

    def _accept(self, stats: BrokerStats) -> None:
        before = self.process
        now_s = self.clock()
        loads = topic_loads(self.stats, stats, {topic: now_s - at_s for topic, at_s in self._granted_at_s.items()})
        self._stats_failed = False
        self.measured_at_s = now_s
        if loads is not None:
            self.stats, self.loads = stats, loads
            self._granted_at_s.clear()
        if self.process != before:
            log.info("broker_appeared", pid=stats.pid, start_timestamp=stats.start_timestamp, version=stats.version)
            self.on_change()

    async def _without_answer(self, error: str) -> None:
        if not self._stats_failed:
            log.warning("broker_does_not_answer", error=error)
        self._stats_failed = True
        if self.stats is None:
            return
        if await self.client.is_gone():
            self._lose("refused")
        elif self.clock() - max(self.measured_at_s, self.last_lease_at_s() or 0.0) > self.silence_s:
            self._lose("silent")

    def _lose(self, reason: str) -> None:
        log.warning("broker_gone", reason=reason)
        self.stats, self.loads, self._stats_failed = None, {}, True
        self.on_change()


NO_LEASE_S = 10.0
"""Minimum time without a lease request. Brokers ask three times per lease, and the default lease is at most 3 s."""
STATISTICS = 3
REFUSED_S = 45.0
"""Below the minute after which the leader gives up (`namespaceBundleUnloadingTimeoutMs`); calls are seconds apart."""
KEPT_S = 600.0
_APART_S = 30.0
"""Refusals further apart belong to different moves."""


@dataclass(slots=True)
class StuckDetector:
    """Passive state machine that finds a broker which answers, but serves or closes nothing. Times: s, agent's clock.

    The broker is stuck

    - if it has stopped asking for leases: without a lease it serves nothing;
    - if topics were granted to it, but several statistics in a row show none open or opening;
    - if it has refused to close a bundle for `REFUSED_S`.

    The last two end when the broker opens a topic or closes that bundle, and after `KEPT_S` without another failure:
    the broker gets another chance. A new broker process is not stuck.
    """

    longest_lease_s: float
    _process: tuple[int, int] | None = None
    _asked_s: float | None = None
    _granted_in_time: int = 0
    """Number of granted topics when the broker last had a topic open or opening."""
    _opened: int | None = None
    _without_topics: int = 0
    _failed_to_open_s: float = -math.inf
    _refused: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Times of the first and the last refusal in a row, by bundle."""

    def note_lease_request(self, now_s: float) -> None:
        self._asked_s = now_s

    def note_statistics(self, stats: BrokerStats, granted: int, now_s: float) -> None:
        """Take statistics and the number of topics granted so far.

        Nothing is concluded from statistics without `opening`: they do not say which topics are being opened.
        """
        if self._process != stats.process:
            self._reset(stats, granted)
        has_opened = self._opened is not None and stats.opened is not None and stats.opened > self._opened
        self._opened = stats.opened
        if stats.topics or stats.opening or has_opened or stats.opening is None:
            self._without_topics, self._granted_in_time = 0, granted
            self._failed_to_open_s = -math.inf
        elif granted > self._granted_in_time:
            self._without_topics += 1
            if self._without_topics >= STATISTICS:
                self._failed_to_open_s, self._granted_in_time = now_s, granted

    def _reset(self, stats: BrokerStats, granted: int) -> None:
        self._process, self._asked_s, self._opened = stats.process, None, None
        self._without_topics, self._granted_in_time = 0, granted
        self._failed_to_open_s = -math.inf
        self._refused.clear()

    def note_closed(self, bundle: str) -> None:
        self._refused.pop(bundle, None)

    def note_refusal(self, bundle: str, now_s: float) -> None:
        first_s, last_s = self._refused.get(bundle, (now_s, now_s))
        self._refused[bundle] = (first_s if now_s - last_s <= _APART_S else now_s), now_s

    def asks_for_no_lease(self, now_s: float) -> bool:
        timeout_s = max(NO_LEASE_S, 3 * self.longest_lease_s)
        return self._asked_s is not None and now_s - self._asked_s > timeout_s

    def find_fault(self, now_s: float) -> str | None:
        """Return why the broker is stuck, as a sentence without a subject; None while it is not."""
        if self._asked_s is not None and self.asks_for_no_lease(now_s):
            return f"it answers, and has asked for no lease for {now_s - self._asked_s:.0f} s"
        if now_s - self._failed_to_open_s <= KEPT_S:
            return "it was granted topics, and opens none"
        for bundle, (first_s, last_s) in self._refused.items():
            if last_s - first_s >= REFUSED_S and now_s - last_s <= KEPT_S:
                return f"it has refused to close {bundle} for {last_s - first_s:.0f} s"
        return None


_MOST_CONNECTIONS = 64
"""Maximum number of cached connections of the followed process."""


class BrokerExit:
    """Follows one process at a time until it exits, then calls `on_exit()` in the event loop.

        fact                                        evidence
        ----                                        --------
        this process has exited                     a pidfd opened while it ran; a reused pid cannot confuse it
        this process asked for the lease            the kernel names the process at the other end of the connection
        no other process serves under the lease     `soleProcess` in the broker's statistics

    If one of them is uncertain, as for a broker in another pid namespace, leases end only when they lapse.
    """

    def __init__(self, on_exit: Callable[[BrokerProcess], None]) -> None:
        self._on_exit = on_exit
        self._process: BrokerProcess | None = None
        self._pidfd = -1
        self._own: set[int] = set()

    def follow(self, process: BrokerProcess | None) -> None:
        """Follow this process instead of the previous one; None: no change."""
        if process is None or process == self._process:
            return
        if self._has_ended():
            self._on_process_ended()
        self.close()
        try:
            self._pidfd = os.pidfd_open(process[0])
            asyncio.get_running_loop().add_reader(self._pidfd, self._on_process_ended)
        except (OSError, AttributeError, NotImplementedError) as error:
            log.info("broker_death_not_seen", pid=process[0], why=str(error))
            self.close()
        else:
            self._process = process

    async def holder(self, transport: asyncio.BaseTransport | None) -> BrokerProcess | None:
        """Return the followed process if it is running and owns the other end of this connection."""
        process = self._process
        if process is None or transport is None or not await self._is_asked_by(process[0], transport):
            return None
        return process if self._process == process and not self._has_ended() else None

    def close(self) -> None:
        """Stop following."""
        self._process = None
        self._own.clear()
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    async def _is_asked_by(self, pid: int, transport: asyncio.BaseTransport) -> bool:
        connection = transport.get_extra_info("socket")
        if connection is None:
            return False
        if connection.family == socket.AF_UNIX:
            return pid_that_connected(connection) == pid
        inode = inode_at_other_end(transport.get_extra_info("sockname"), transport.get_extra_info("peername"))
        if inode is None:
            return False
        if inode in self._own:
            return True
        # In a thread: this scans all descriptors of the broker, possibly tens of thousands.
        if not await asyncio.to_thread(has_socket, pid, inode):
            return False
        if len(self._own) >= _MOST_CONNECTIONS:
            self._own.clear()
        self._own.add(inode)
        return True

    def _has_ended(self) -> bool:
        if self._process is None:
            return False
        seen = select.poll()
        seen.register(self._pidfd, select.POLLIN)
        return bool(seen.poll(0))

    def _on_process_ended(self) -> None:
        process = self._process
        assert process is not None, "it is followed"
        self.close()
        self._on_exit(process)
