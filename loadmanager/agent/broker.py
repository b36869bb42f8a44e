"""The broker as its agent sees it: its statistics, its unloads, and whether its process is there at all."""

from __future__ import annotations

from http import HTTPStatus

from loadmanager.agent.bundle_stats import check_stats
from loadmanager.calling import HttpClient, PeerUnavailableError
from loadmanager.liveness import is_refused
from loadmanager.wire.http import BrokerStats, UnloadRequest
from loadmanager.wire.validation import parse_model

STATS_TIMEOUT_S = 5.0
UNLOAD_TIMEOUT_S = 8.0
"""Shorter than the leader's patience with one attempt (10 s), so that it hears why an unload did not succeed."""


class BrokerClient:
    """The HTTP interface of one broker."""

    def __init__(
        self,
        http: HttpClient,
        url: str,
        stats_timeout_s: float = STATS_TIMEOUT_S,
        unload_timeout_s: float = UNLOAD_TIMEOUT_S,
    ) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._stats_timeout_s = stats_timeout_s
        self._unload_timeout_s = unload_timeout_s

    async def stats(self) -> BrokerStats:
        """`PeerUnavailableError` without an answer, `InvalidRecordError` when it cannot be true."""
        answer = await self._http.call("GET", f"{self._url}/loadmanager/v1/stats", self._stats_timeout_s)
        if answer.status != HTTPStatus.OK:
            raise PeerUnavailableError(answer.shown())
        stats = parse_model(BrokerStats, answer.body, answer.url)
        check_stats(stats, answer.url)
        return stats

    async def unload(self, bundle: str, topics: list[str]) -> None:
        """Return once the broker has closed the topics; `PeerUnavailableError` when it did not say so in time."""
        request = UnloadRequest(bundle=bundle, topics=topics).to_json()
        answer = await self._http.call(
            "POST",
            f"{self._url}/loadmanager/v1/unload",
            self._unload_timeout_s,
            data=request,
            headers={"Content-Type": "application/json"},
        )
        if answer.status != HTTPStatus.NO_CONTENT:
            raise PeerUnavailableError(f"{answer.shown()}, expected 204")

    async def is_gone(self) -> bool:
        """Whether the broker's process has ended: its port refuses connections."""
        return await is_refused(self._url)
