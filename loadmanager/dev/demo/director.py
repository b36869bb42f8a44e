"""Script of the demo: its events, measurements and summary."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from loadmanager.broker import CloseReason
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.dev.demo.demo_cluster import DemoCluster, DemoError
from loadmanager.dev.demo.demo_monitor import INTERVAL_S, DemoState, Monitor, ShownBroker
from loadmanager.dev.demo.demo_settings import TENANT, DemoSettings
from loadmanager.dev.demo.evidence import (
    DemoSummary,
    find_overlaps,
    imbalance,
    read_journals,
    serving_intervals,
    summarize_gaps,
    topics_without_owner,
)
from loadmanager.net.http_client import HttpClient, PeerUnavailableError
from loadmanager.util import clock
from loadmanager.util.atomic_write import write_json

_MOST_HOT = 3
"""Maximum number of brokers with a hot spot. The first hot spot is on one broker, the next ones are on more."""
_HOT_SPOT_DELAY_S = 1.25
"""Delay until the clients have noticed the hot spot and a full measurement interval has passed."""

_LONGEST_BEFORE_S = 6.0
_NEXT_STRETCH_S = 2.5 * INTERVAL_S
_MEASURED_WITHIN_S = 60.0
_EVEN, _EVEN_FOR_S, _EVEN_WITHIN_S = 1.15, 4.0, 30.0
_POLL_S = 0.1
_PROBE_NAMESPACE = "probe"
_LOOKUP_EVERY_S = 0.02
_LOOKUP_TIMEOUT_S = 15.0
_LEADER_TIMEOUT_S = 90.0
_START_TIMEOUT_S = 90.0


class Director:
    """One run of the demo on a started cluster."""

    def __init__(self, settings: DemoSettings, cluster: DemoCluster, state: DemoState, http: HttpClient) -> None:
        self._settings = settings
        self._cluster = cluster
        self._state = state
        self._http = http
        self._hot_spots = 0
        self._was_completed = False
        self._failover_s: float | None = None
        self._windows: dict[str, tuple[float, float]] = {}
        self._start_s = 0.0
        self._end_s = 0.0

    async def run(self, stopped: asyncio.Event, *, forever: bool) -> DemoSummary:
        """Run the script until its end or `stopped`. With `forever`, continue after its end."""
        await self._wait_for_brokers()
        await self._create_namespaces()
        monitor = Monitor(self._cluster, self._state, self._http)
        await self._cluster.start_clients()
        self._start_s = self._state.started_s = clock.now_s()
        self._state.is_started = True
        await monitor.look()
        watching = asyncio.create_task(monitor.run())
        script = asyncio.create_task(self._play(forever=forever))
        try:
            ends = [script, watching, asyncio.create_task(stopped.wait())]
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        self._end_s = clock.now_s()
        self._state.add_event("stopping the clients: everything under way has to arrive")
        await self._cluster.stop_clients()
        return self._summarize()

    async def _play(self, *, forever: bool) -> None:
        self._state.add_event("topics find their owners")
        await self._wait_until(0.13)
        self._move_hot_spot()
        self._windows["before"] = (clock.now_s() + _HOT_SPOT_DELAY_S, math.inf)
        await self._measure("after_shedding", 0.34, 0.41)
        await self._kill_leader()
        await self._wait_until(0.45)
        self._move_hot_spot()
        await self._wait_until(0.55)
        await self._kill_busiest_broker()
        await self._wait_until(0.61)
        broker = await self._cluster.start_broker()
        self._state.add_event(f"{broker.name} is new, and gets its part")
        await self._wait_until(0.95)
        await self._wait_until_balanced()
        await self._measure("at_the_end", 0.95, 1.0)
        self._was_completed = True
        while forever:
            self._move_hot_spot()
            await asyncio.sleep(self._settings.duration_s)

    async def _wait_until_balanced(self) -> None:
        """Wait, up to a limit, until the load is balanced. The measurements come afterwards."""
        deadline_s = clock.now_s() + _EVEN_WITHIN_S
        while (now_s := clock.now_s()) < deadline_s:
            last = [sample for sample in self._state.samples if sample.at_s >= now_s - _EVEN_FOR_S]
            all_count = all(len(sample.by_broker) == len(self._cluster.brokers) for sample in last)
            found = imbalance(last, now_s - _EVEN_FOR_S, now_s)
            if all_count and found is not None and found <= _EVEN:
                return
            await asyncio.sleep(INTERVAL_S)

    def _move_hot_spot(self) -> None:
        """Move the hot spot to topics of the least loaded brokers."""
        workload = self._settings.workload
        able = [row for row in self._state.brokers if len(row.topic_names) >= workload.hot_topics]
        by_rate = sorted(able or self._state.brokers, key=_rate)
        cut = NamespaceBundles(equal_boundaries(self._settings.bundles_per_namespace))
        self._hot_spots += 1
        quietest = by_rate[: min(self._hot_spots, _MOST_HOT)]
        candidates = [name for row in quietest for name in row.topic_names]
        hot = workload.choose_hot_topics(
            candidates, lambda name: (name.rpartition("/")[0], cut.index_of_topic(name)), self._hot_spots
        )
        write_json(self._cluster.hot_spot_file, hot)
        share = f"{workload.hot_share:.0%} of the traffic goes to {len(hot)} of their topics"
        self._state.add_event(f"hot spot on {', '.join(row.name for row in quietest)}: {share}")

    async def _kill_leader(self) -> None:
        """Kill the leader, and look up a topic of a new namespace until the next leader has assigned it."""
        await self._change_namespace("PUT", _PROBE_NAMESPACE)
        name = await self._get_leader()
        killed_at_s = await self._cluster.kill_node(name)
        self._state.add_event(f"the leader {name} was killed")
        for turn in itertools.count():
            if await self._is_assigned(self._cluster.node_urls[turn % len(self._cluster.node_urls)]):
                self._failover_s = round(clock.now_s() - killed_at_s, 3)
                self._state.add_event(f"the next assignment came {self._failover_s:.2f} s later")
                break
            if clock.now_s() > killed_at_s + _MEASURED_WITHIN_S:
                break
            await asyncio.sleep(_LOOKUP_EVERY_S)
        with contextlib.suppress(DemoError, PeerUnavailableError):  # the namespace is no longer used
            await self._change_namespace("DELETE", _PROBE_NAMESPACE)

    async def _is_assigned(self, node_url: str) -> bool:
        url = f"{node_url}/lookup/v2/topic/persistent/{TENANT}/{_PROBE_NAMESPACE}/topic"
        try:
            answer = await self._http.call("GET", url, _LOOKUP_TIMEOUT_S)
        except PeerUnavailableError:
            return False
        return answer.status == web.HTTPOk.status_code

    async def _kill_busiest_broker(self) -> None:
        # A broker without topics may still have the rate of topics that were unloaded since.
        serving = [row for row in self._state.brokers if row.topic_names]
        busiest = max(serving or self._state.brokers, key=_rate)
        await self._cluster.kill_broker(busiest.name)
        self._state.add_event(f"{busiest.name} and its agent were killed: a machine is lost")

    async def _get_leader(self) -> str:
        """Return the name of the leader."""
        deadline_s = clock.now_s() + _LEADER_TIMEOUT_S
        while self._state.leader_name is None:
            if clock.now_s() > deadline_s:
                raise DemoError(f"no node has led for {_LEADER_TIMEOUT_S:g} s")
            await asyncio.sleep(_POLL_S)
        return self._state.leader_name

    async def _wait_for_brokers(self) -> None:
        """Wait until every node knows every broker. Otherwise the first broker would get all bundles."""
        deadline_s = clock.now_s() + _START_TIMEOUT_S
        waiting = self._cluster.node_urls
        while waiting:
            answer = await self._http.call("GET", f"{waiting[0]}/admin/v2/brokers", _START_TIMEOUT_S)
            known = orjson.loads(answer.body)
            if len(known) >= len(self._cluster.brokers):
                waiting = waiting[1:]
            elif clock.now_s() > deadline_s:
                raise DemoError(f"after {_START_TIMEOUT_S:g} s the brokers {known} are registered, and no more")
            else:
                await asyncio.sleep(_POLL_S)

    async def _create_namespaces(self) -> None:
        for name in self._settings.workload.namespaces:
            await self._change_namespace("PUT", name)

    async def _change_namespace(self, method: str, name: str) -> None:
        body = {"bundles": {"numBundles": self._settings.bundles_per_namespace}} if method == "PUT" else None
        url = f"{self._cluster.node_urls[0]}/admin/v2/namespaces/{TENANT}/{name}"
        answer = await self._http.call(method, url, _START_TIMEOUT_S, json=body)
        if answer.status != web.HTTPNoContent.status_code:
            raise DemoError(f"namespace {name}: {answer.shown()}")

    async def _wait_until(self, share: float) -> None:
        """Wait for a point of the script, given as a share of its length."""
        await asyncio.sleep(max(0.0, self._start_s + self._settings.at_s(share) - clock.now_s()))

    async def _measure(self, name: str, from_share: float, until_share: float) -> None:
        """Wait for a section of the script, and record it as the window in which the imbalance is measured.

        If the machine was too busy to sample that window, use the next one.
        """
        await self._wait_until(from_share)
        from_s = clock.now_s()
        await self._wait_until(until_share)
        deadline_s = clock.now_s() + _MEASURED_WITHIN_S
        while imbalance(self._state.samples, from_s, until_s := clock.now_s()) is None and until_s < deadline_s:
            from_s = until_s
            await asyncio.sleep(_NEXT_STRETCH_S)
        self._windows[name] = (from_s, until_s)

    def _summarize(self) -> DemoSummary:
        serving = read_journals(self._cluster.serving_logs())
        clients = read_journals(self._cluster.client_journals())
        intervals = serving_intervals(serving, self._cluster.ended_at_s)
        accounts = [record for record in clients if record["event"] == "account"]
        topics = self._settings.workload.topic_names()
        return DemoSummary(
            was_completed=self._was_completed,
            duration_s=round(self._end_s - self._start_s, 1),
            brokers=len(self._cluster.brokers),
            topics=len(topics),
            imbalance=self._imbalances(serving),
            bundles_moved=_bundles_moved(serving),
            gaps=summarize_gaps((r for r in clients if r["event"] == "gap"), self._cluster.ended_at_s),
            leader_failover_s=self._failover_s,
            messages=sum(account["messages"] for account in accounts),
            two_owners=find_overlaps(intervals),
            topics_without_owner=topics_without_owner(topics, accounts, intervals),
            died_unexpectedly=self._cluster.died_unexpectedly,
        )

    def _imbalances(self, serving_records: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
        """Return the imbalance by window. `before` ends with the first unload, but is long enough for one sample."""
        windows = dict(self._windows)
        if "before" in windows:
            from_s, _ = windows["before"]
            unloads = [r["at_s"] for r in _find_unloaded(serving_records) if r["at_s"] > from_s - _HOT_SPOT_DELAY_S]
            first_s = min([from_s + _LONGEST_BEFORE_S, *unloads])
            windows["before"] = from_s, max(first_s, from_s + 1.5 * INTERVAL_S)
        return {name: imbalance(self._state.samples, *window) for name, window in windows.items()}


def _rate(broker: ShownBroker) -> float:
    return broker.messages_per_s or 0.0


def _bundles_moved(serving_records: Iterable[Mapping[str, Any]]) -> int:
    """Count the unloads that closed at least one topic."""
    return len({(record["instance"], record["call"]) for record in _find_unloaded(serving_records)})


def _find_unloaded(serving_records: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Return the records of topics that were closed by an unload."""
    closed = (record for record in serving_records if record["event"] == "closed")
    return (record for record in closed if record["reason"] == CloseReason.UNLOADED)


async def run_demo(
    settings: DemoSettings,
    state: DemoState,
    stopped: asyncio.Event,
    *,
    folder: Path | None,
    forever: bool,
    history: Path | None = None,
) -> DemoSummary:
    """Start all processes, run the script, end all processes, and return the summary."""
    started = DemoCluster.started(settings, folder, history, state.add_event)
    async with started as cluster, HttpClient() as http:
        state.add_event(f"everything runs, in {cluster.folder}")
        return await Director(settings, cluster, state, http).run(stopped, forever=forever)
