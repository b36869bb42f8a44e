"""Time from the end of a leader until the next one assigns a bundle, measured by lookups of topics without an owner."""

from __future__ import annotations

import asyncio
import itertools
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

BUNDLES = 32
NAMESPACE = "probe"
_PAUSE_S = 0.5
"""Pause after a failed lookup."""
_LOOKUP_EVERY_S = 0.05
_MEASURED_WITHIN_S = 60.0
_TIMEOUT_S = 10.0


class FailoverProbe:
    """A namespace whose bundles have no owner, and lookups of one topic in each."""

    def __init__(self, node_urls: Callable[[], Sequence[str]], http: HttpClient) -> None:
        self._node_urls = node_urls
        self._http = http
        self._turn = itertools.count()

    async def prepare(self) -> None:
        """Create the namespace, while there is still a leader."""
        await self._change("PUT", json={"bundles": {"numBundles": BUNDLES}})

    async def measure(self, epoch_before: int, killed_at_s: float) -> LeaderFailover | None:
        """Return the first assignment by a later leader, None without one in a minute; delete the namespace."""
        found: asyncio.Queue[tuple[float, int]] = asyncio.Queue()
        tasks = [
            asyncio.create_task(self._assign(topic, number * _LOOKUP_EVERY_S, found))
            for number, topic in enumerate(topic_per_bundle(NAMESPACE, BUNDLES))
        ]
        try:
            async with asyncio.timeout(_MEASURED_WITHIN_S):
                at_s, epoch = await found.get()
                while epoch <= epoch_before:
                    at_s, epoch = await found.get()
        except TimeoutError:
            return None
        finally:
            for task in tasks:
                task.cancel()
            await self._change("DELETE")
        return LeaderFailover(epoch_before, epoch, round(at_s - killed_at_s, 3))

    async def _assign(self, topic: str, after_s: float, found: asyncio.Queue[tuple[float, int]]) -> None:
        """Look the topic up until it has an owner; put when that was, and the epoch of its owner."""
        place = topic.replace("://", "/", 1)
        await asyncio.sleep(after_s)
        await self._ask(f"/lookup/v2/topic/{place}", _PAUSE_S)
        at_s, epoch = clock.now_s(), None
        while epoch is None:  # nodes learn of it one after the other
            body = await self._ask(f"/loadbalance/v1/ownership/{place}", _LOOKUP_EVERY_S)
            answer = OwnershipAnswer.model_validate_json(body)
            epoch = answer.epoch if answer.state == OwnershipState.OWNED else None
            await asyncio.sleep(_LOOKUP_EVERY_S)
        await found.put((at_s, epoch))

    async def _ask(self, path: str, pause_s: float) -> bytes:
        """Ask node after node, with a pause in between, until one answers."""
        while True:
            answer = await self._call("GET", path)
            if answer is not None:
                return answer
            await asyncio.sleep(pause_s)

    async def _change(self, method: str, **body: Any) -> None:  # noqa: ANN401 - JSON
        """Create or delete the namespace, at each node once if need be: a leader may just have ended."""
        for _ in self._node_urls():
            if await self._call(method, f"/admin/v2/namespaces/{TENANT}/{NAMESPACE}", **body) is not None:
                return
            await asyncio.sleep(_PAUSE_S)

    async def _call(self, method: str, path: str, **body: Any) -> bytes | None:  # noqa: ANN401 - JSON
        """Ask the next node; None without a successful answer."""
        urls = self._node_urls()
        try:
            answer = await self._http.call(method, urls[next(self._turn) % len(urls)] + path, _TIMEOUT_S, **body)
        except (PeerUnavailableError, InvalidRecordError):
            return None
        return answer.body if answer.status in (web.HTTPOk.status_code, web.HTTPNoContent.status_code) else None


def topic_per_bundle(namespace: str, bundles: int) -> list[str]:
    """Return one topic in each of the equal bundles of a namespace, in any order."""
    cut = NamespaceBundles(equal_boundaries(bundles))
    found: dict[int, str] = {}
    for number in itertools.count():
        topic = f"persistent://{TENANT}/{namespace}/probe-{number}"
        found.setdefault(cut.index_of_topic(topic), topic)
        if len(found) == bundles:
            return list(found.values())
    raise AssertionError("numbers do not end")
