"""Client that looks up topics of unowned bundles all the time, so that assignments are always needed."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.dev.demo.demo_settings import TENANT
from loadmanager.dev.demo.demo_summary import LeaderFailover
from loadmanager.errors import InvalidRecordError
from loadmanager.net.http_client import HttpClient, PeerUnavailableError
from loadmanager.util import clock
from loadmanager.wire.http_bodies import OwnershipAnswer

INTERVAL_S = 0.5
BUNDLES = 32
_NAMESPACES = 3
"""Namespaces that exist at a time: two with fresh topics, and the last one, whose owners may be asked for."""
_FAILOVER_INTERVAL_S = 0.05
_FAILOVER_TIMEOUT_S = 60.0
_TIMEOUT_S = 10.0


class AssignmentProber:
    """Creates small namespaces and looks up one topic in each of their bundles."""

    def __init__(self, node_urls: Callable[[], Sequence[str]], http: HttpClient) -> None:
        self.assignments = 0
        self._node_urls = node_urls
        self._http = http
        self._fresh: deque[str] = deque()
        self._namespaces: deque[str] = deque()
        self._created = itertools.count(1)
        self._turn = itertools.count()

    async def run(self) -> None:
        """Probe at a slow pace, until cancelled; failures are for `measure_failover` to notice."""
        while True:
            await self._stock_up()
            if self._fresh and await self._lookup(self._fresh.popleft()):
                self.assignments += 1
            await asyncio.sleep(INTERVAL_S)

    async def measure_failover(self, epoch_before: int, killed_at_s: float) -> LeaderFailover | None:
        """The first assignment by a later leader, among lookups that all started after the old one was killed.

        None when there is none in a minute.
        """
        waiting: set[asyncio.Task[tuple[float, int] | None]] = set()
        try:
            while (self._fresh or waiting) and clock.now_s() < killed_at_s + _FAILOVER_TIMEOUT_S:
                if self._fresh and len(waiting) < BUNDLES // 2:
                    waiting.add(asyncio.create_task(self._assign(self._fresh.popleft())))
                done, waiting = await asyncio.wait(
                    waiting, timeout=_FAILOVER_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
                )
                later = [found for task in done if (found := task.result()) and found[1] > epoch_before]
                if later:
                    at_s, epoch = min(later)
                    return LeaderFailover(epoch_before, epoch, round(at_s - killed_at_s, 3))
        finally:
            for task in waiting:
                task.cancel()
        return None

    async def _stock_up(self) -> None:
        """Have the topics of one whole namespace in store, so that a failover finds bundles to be assigned. Delete the
        oldest namespace, whose bundles all have an owner.
        """
        if len(self._fresh) >= BUNDLES:
            return
        name = f"probe-{next(self._created)}"
        if await self._change("PUT", name, json={"bundles": {"numBundles": BUNDLES}}):
            self._fresh.extend(topic_per_bundle(name, BUNDLES))
            self._namespaces.append(name)
        if len(self._namespaces) > _NAMESPACES and await self._change("DELETE", self._namespaces[0]):
            self._namespaces.popleft()

    async def _change(self, method: str, namespace: str, **body: Any) -> bool:  # noqa: ANN401 - JSON
        """Create or delete a namespace, and tell if that is done."""
        url = f"{self._node()}/admin/v2/namespaces/{TENANT}/{namespace}"
        try:
            answer = await self._http.call(method, url, _TIMEOUT_S, **body)
        except (PeerUnavailableError, InvalidRecordError):
            return False
        return answer.status == web.HTTPNoContent.status_code

    async def _assign(self, topic: str) -> tuple[float, int] | None:
        """Return when the lookup of a fresh topic was answered, and the epoch in which its owner was committed.

        A topic whose lookup failed is fresh again after a while: there may be no leader for longer than topics last.
        """
        if not await self._lookup(topic):
            await asyncio.sleep(INTERVAL_S)
            self._fresh.append(topic)
            return None
        at_s = clock.now_s()
        self.assignments += 1
        epoch = await self._find_epoch(topic)
        return (at_s, epoch) if epoch is not None else None

    async def _lookup(self, topic: str) -> bool:
        return await self._get(f"/lookup/v2/topic/{topic.replace('://', '/', 1)}") is not None

    async def _find_epoch(self, topic: str) -> int | None:
        """The epoch of the leader that gave the topic's bundle its owner; nodes learn of it one after the other."""
        deadline_s = clock.now_s() + _FAILOVER_TIMEOUT_S
        while clock.now_s() < deadline_s:
            body = await self._get(f"/loadbalance/v1/ownership/{topic.replace('://', '/', 1)}")
            answer = OwnershipAnswer.model_validate_json(body) if body is not None else None
            if answer is not None and answer.state == OwnershipState.OWNED:
                return answer.epoch
            await asyncio.sleep(_FAILOVER_INTERVAL_S)
        return None

    async def _get(self, path: str) -> bytes | None:
        try:
            answer = await self._http.call("GET", f"{self._node()}{path}", _TIMEOUT_S)
        except (PeerUnavailableError, InvalidRecordError):
            return None
        return answer.body if answer.status == web.HTTPOk.status_code else None

    def _node(self) -> str:
        urls = self._node_urls()
        return urls[next(self._turn) % len(urls)]


def topic_per_bundle(namespace: str, bundles: int) -> list[str]:
    """One topic in each of the equal bundles of a namespace, in an order of no meaning."""
    cut = NamespaceBundles(equal_boundaries(bundles))
    found: dict[int, str] = {}
    for number in itertools.count():
        topic = f"persistent://{TENANT}/{namespace}/probe-{number}"
        found.setdefault(cut.index_of_topic(topic), topic)
        if len(found) == bundles:
            return list(found.values())
    raise AssertionError("numbers do not end")
