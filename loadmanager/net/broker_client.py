"""Client of the agent for its broker: statistics, warm-up, unloads, and a check of its process."""

from __future__ import annotations

from http import HTTPStatus

from loadmanager.net.http_client import HttpAnswer, HttpClient, PeerUnavailableError
from loadmanager.net.liveness import is_refused
from loadmanager.wire.http_bodies import UNKNOWN, BrokerStats, TopicsOfBundle, UnloadRequest
from loadmanager.wire.validation import parse_model

STATS_TIMEOUT_S = 5.0
UNLOAD_TIMEOUT_S = 8.0
"""Shorter than the leader's timeout for one attempt (10 s), so that the leader learns why an unload failed."""


class UnloadRefusedError(PeerUnavailableError):
    """The broker answered that it has not closed the topics."""


class BrokerClient:
    """Client of one broker's HTTP interface."""

    def __init__(self, http: HttpClient, url: str) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._stats_timeout_s = STATS_TIMEOUT_S
        self._unload_timeout_s = UNLOAD_TIMEOUT_S

    async def stats(self) -> BrokerStats:
        """Read the statistics; raises `PeerUnavailableError` without an answer, `InvalidRecordError` for impossible
        figures.
        """
        answer = await self._http.call("GET", f"{self._url}/loadmanager/v1/stats", self._stats_timeout_s)
        if answer.status != HTTPStatus.OK:
            raise PeerUnavailableError(answer.shown())
        return parse_model(BrokerStats, answer.body, answer.url)

    async def prepare(self, wanted: TopicsOfBundle) -> bool:
        """Ask the broker to prepare for a bundle; False if it does not support that. Raises `PeerUnavailableError`
        without an answer.
        """
        answer = await self._tell("prepare", wanted)
        if answer.status not in {HTTPStatus.NO_CONTENT, *UNKNOWN}:
            raise PeerUnavailableError(f"{answer.shown()}, expected 204")
        return answer.status == HTTPStatus.NO_CONTENT

    async def unload(self, bundle: str, topics: list[str], destination: str | None = None) -> None:
        """Wait until the broker has closed the topics; raises `PeerUnavailableError` if it did not confirm in time.
        `destination` is the next owner, if known.
        """
        answer = await self._tell("unload", UnloadRequest(bundle=bundle, topics=topics, destination=destination))
        if answer.status != HTTPStatus.NO_CONTENT:
            raise UnloadRefusedError(f"{answer.shown()}, expected 204")

    async def _tell(self, what: str, body: TopicsOfBundle) -> HttpAnswer:
        return await self._http.call(
            "POST",
            f"{self._url}/loadmanager/v1/{what}",
            self._unload_timeout_s,
            data=body.to_json(),
            headers={"Content-Type": "application/json"},
        )

    async def is_gone(self) -> bool:
        """Return True if the broker's process has exited: its port refuses connections."""
        return await is_refused(self._url)
