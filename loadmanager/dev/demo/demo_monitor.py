"""Monitor of the demo's cluster: polls its processes once a second, and prints events, rates and the summary."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from aiohttp import web
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from loadmanager.dev.demo.demo_cluster import BrokerProcess, DemoCluster
from loadmanager.dev.demo.evidence import DemoSummary, RateSample
from loadmanager.errors import InvalidRecordError
from loadmanager.net.http_client import HttpClient, PeerUnavailableError
from loadmanager.util import clock
from loadmanager.wire.http_bodies import BrokerStats

INTERVAL_S = 1.0
_TIMEOUT_S = 0.9


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """An event, with its time on the clock of leases."""

    at_s: float
    text: str


@dataclass(slots=True)
class ShownBroker:
    """A broker in the view. Its rate is None until it has answered twice, and while it does not answer."""

    name: str
    messages_per_s: float | None = None
    topic_names: frozenset[str] = frozenset()


@dataclass(slots=True)
class DemoState:
    """State of the demo, for the screen and the summary. Times are on the clock of leases."""

    started_s: float = field(default_factory=clock.now_s)
    is_started: bool = False
    leader_url: str | None = None
    leader_name: str | None = None
    brokers: list[ShownBroker] = field(default_factory=list)
    samples: list[RateSample] = field(default_factory=list)
    events: list[DemoEvent] = field(default_factory=list)
    page_url: str | None = None

    def add_event(self, text: str) -> None:
        self.events.append(DemoEvent(clock.now_s(), text))


class Monitor:
    """Keeps a `DemoState` up to date."""

    def __init__(self, cluster: DemoCluster, state: DemoState, http: HttpClient) -> None:
        self._cluster = cluster
        self._state = state
        self._http = http
        self._counted: dict[str, tuple[float, dict[str, int]]] = {}

    async def run(self) -> None:
        """Poll once a second until cancelled."""
        while True:
            started_s = clock.now_s()
            await self.look()
            await asyncio.sleep(max(0.0, started_s + INTERVAL_S - clock.now_s()))

    async def look(self) -> None:
        for name in await self._cluster.watch():
            self._state.add_event(f"{name} ended by itself")
        brokers = list(self._cluster.brokers.values())
        _, *stats = await asyncio.gather(self._look_at_leader(), *(self._find_stats(broker) for broker in brokers))
        rates = {}
        rows = []
        for broker, answer in zip(brokers, stats, strict=True):
            row = ShownBroker(broker.name)
            if answer is not None:
                row.topic_names = frozenset(topic.topic for topic in answer.topics)
                rate = self._rate(broker.instance, answer)
                if rate is not None:
                    rates[broker.name] = row.messages_per_s = rate
            rows.append(row)
        self._state.brokers = rows
        self._state.samples.append(RateSample(clock.now_s(), rates))
        self._show_page()

    def _show_page(self) -> None:
        """Announce the page's address, on a standby: the demo kills the leader."""
        urls = self._cluster.node_urls
        if self._state.page_url not in urls:
            standbys = [url for url in urls if url != self._state.leader_url]
            self._state.page_url = (standbys or urls)[-1]
            self._state.add_event(f"look at it: {self._state.page_url}/")

    def _rate(self, instance: str, stats: BrokerStats) -> float | None:
        """Return the messages per second since the last poll; None at the first poll."""
        counters = {topic.topic: topic.messages_in for topic in stats.topics}
        before = self._counted.get(instance)
        self._counted[instance] = stats.monotonic_s, counters
        if before is None:
            return None
        then_s, old = before
        # A topic's counter restarts at zero when it is opened. A smaller value means that it was reopened.
        grown = sum(
            count - old[topic] if old.get(topic, count + 1) <= count else count for topic, count in counters.items()
        )
        return grown / max(stats.monotonic_s - then_s, 1e-3)

    async def _find_stats(self, broker: BrokerProcess) -> BrokerStats | None:
        body = await self._find(f"{broker.url}/loadmanager/v1/stats")
        try:
            return BrokerStats.model_validate(body) if body is not None else None
        except ValidationError:
            return None

    async def _look_at_leader(self) -> None:
        """Update the leader, asking the last known leader, or any node if none is known."""
        url = self._state.leader_url if self._state.leader_url in self._cluster.node_urls else None
        body = await self._find(f"{url or self._cluster.node_urls[0]}/loadbalance/v1/fleet")
        if body is None:
            return
        leader = body["leader"]
        self._state.leader_url = leader["url"] if leader else None
        names = {node.url: node.name for node in self._cluster.nodes.values()}
        self._state.leader_name = names.get(self._state.leader_url or "")

    async def _find(self, url: str) -> dict[str, Any] | None:
        try:
            answer = await self._http.call("GET", url, _TIMEOUT_S)
        except (PeerUnavailableError, InvalidRecordError):
            return None
        if answer.status != web.HTTPOk.status_code:
            return None
        body: dict[str, Any] = orjson.loads(answer.body)
        return body


T = TypeVar("T")
_LOOK_S = 0.5
_LINE_INTERVAL_S = 5.0
_MOST_FAILURES = 5


async def show_lines(state: DemoState, console: Console, run: asyncio.Task[T]) -> T:
    """Print events, and a status line every few seconds, until `run` has ended; return its result."""
    printed = 0
    next_line_s = clock.now_s() + _LINE_INTERVAL_S
    while not run.done():
        await asyncio.wait({run}, timeout=_LOOK_S)
        for event in state.events[printed:]:
            console.print(event_line(state, event), highlight=False, markup=False, soft_wrap=True)
        printed = len(state.events)
        if clock.now_s() >= next_line_s and state.brokers:
            next_line_s = clock.now_s() + _LINE_INTERVAL_S
            console.print(status_line(state), highlight=False, markup=False, soft_wrap=True)
    return await run


def event_line(state: DemoState, event: DemoEvent) -> str:
    return f"{event.at_s - state.started_s:7.1f} s  {event.text}"


def status_line(state: DemoState) -> str:
    rates = "  ".join(
        f"{row.name} {'?' if row.messages_per_s is None else f'{row.messages_per_s:.0f}/s'}" for row in state.brokers
    )
    return f"{clock.now_s() - state.started_s:7.1f} s  leader {state.leader_name or 'none'}  {rates}"


def print_summary(summary: DemoSummary, console: Console) -> None:
    table = Table(box=None, show_header=False, title="summary", title_justify="left")
    table.add_column(style="dim")
    table.add_column()
    for name, value in summary_rows(summary):
        table.add_row(name, value)
    console.print(table)
    for failure in summary.failures[:_MOST_FAILURES]:
        console.print(f"FAILED: {failure}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    if (more := len(summary.failures) - _MOST_FAILURES) > 0:
        console.print(f"FAILED: {more} more: see --json", style="bold red", highlight=False)
    if summary.failures:
        console.print("On a busy machine, run the demo with a longer --duration.")
    else:
        console.print("No topic ever had two owners, and none ended without one.")


def summary_rows(summary: DemoSummary) -> Iterator[tuple[str, str]]:
    for name, ratio in summary.imbalance.items():
        yield f"imbalance {name.replace('_', ' ')} (max/mean)", "no traffic" if ratio is None else f"{ratio:.2f}"
    yield "bundles moved", str(summary.bundles_moved)
    for cause, gap in summary.gaps.items():
        times = f"p50 {gap.p50_s:.3f} s, p99 {gap.p99_s:.3f} s, max {gap.max_s:.3f} s"
        yield f"publishing waited, {cause.replace('_', ' ')}", f"{times} ({gap.gaps} times, {gap.topics} topics)"
    if summary.leader_failover_s is not None:
        yield "leader killed, until the next assignment", f"{summary.leader_failover_s:.2f} s"
    yield "messages published", f"{summary.messages:,}"
    yield "topics with two owners at once", str(len({overlap.topic for overlap in summary.two_owners}))
    yield "topics without an owner at the end", f"{len(summary.topics_without_owner)} of {summary.topics}"
