"""HTTP client of the load-manager nodes, with failover."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from yarl import URL

from loadmanager.client.push_events import Owner, parse_object, text_of
from loadmanager.core.domain.names import InvalidNameError, TopicName
from loadmanager.errors import (
    ConfigurationError,
    ForbiddenError,
    InvalidRecordError,
    LoadManagerError,
    NamespaceNotFoundError,
    NodesUnavailableError,
    UnauthenticatedError,
    describe_failure,
)
from loadmanager.net.auth.outgoing_token import Token

WATCH_PATH = "/loadbalance/v1/watch"
PROTOCOL = 1
CONNECT_TIMEOUT_S = 3.0
LOOKUP_TIMEOUT_S = 15.0
"""Time after which the next node is asked. Nodes answer within 10 s."""
SILENCE_S = 30.0
"""Longest silence of a watch stream. Nodes send something three times as often."""
_MOST_LOOKUPS = 64
"""Maximum number of concurrent lookups of one client."""
_MOST_BYTES = 64 * 1024
_CONFIRMATIONS = 2
"""Number of nodes that must not know a namespace: one may lag behind."""
_REFUSALS = {401: UnauthenticatedError, 403: ForbiddenError, 412: InvalidNameError}


@dataclass(frozen=True, slots=True)
class NotNow:
    """A node's answer that the topic can have no owner now, and how long this may last."""

    reason: str
    passes_in_s: float = 0.0


class NodeFailedError(LoadManagerError):
    """One node did not answer as a node should; the message begins with its URL."""


class NoWatchError(NodeFailedError):
    """The node answers but does not push in our protocol: it has another version, or is no node."""


class BusyError(NodeFailedError):
    """The node answers, but has no capacity for another watch now."""


_NOT_PUSHED: dict[int, type[NodeFailedError]] = {
    **dict.fromkeys((400, 404, 405, 412), NoWatchError),
    503: BusyError,
}
"""Errors by HTTP status of a node without watches, without our protocol, or without capacity."""


class Nodes:
    """The nodes at `urls`, in random order, so that clients spread over them. A node that fails moves to the end."""

    def __init__(
        self,
        urls: Sequence[str],
        session: aiohttp.ClientSession,
        chance: random.Random,
        *,
        token: Token | None = None,
        ssl_context: ssl.SSLContext | None = None,
        listener: str | None = None,
    ) -> None:
        self.urls = list(urls)
        chance.shuffle(self.urls)
        self._session = session
        self._token = token
        self._ssl = ssl_context if ssl_context is not None else True
        self._turns = asyncio.Semaphore(_MOST_LOOKUPS)
        self._query = "" if listener is None else "?" + urlencode({"listenerName": listener})

    async def lookup(self, topic: str) -> Owner | NotNow:
        """Return the owner of the topic; the node assigns a free bundle.

        Raises `NamespaceNotFoundError`, `InvalidNameError`, `UnauthenticatedError` or `ForbiddenError` if a node
        answers so, and `NodesUnavailableError` if no node answers.
        """
        name = TopicName.parse(topic)
        path = f"/lookup/v2/topic/{name.domain}/{name.namespace}/{quote(name.local_name, safe='')}{self._query}"
        failures: list[str] = []
        unknown: list[NamespaceNotFoundError] = []
        for url in list(self.urls):
            try:
                async with self._turns:
                    return await self._lookup_at(url, path)
            except NamespaceNotFoundError as error:  # the node may not have seen a new namespace yet
                unknown.append(error)
            except NodeFailedError as error:
                failures.append(str(error))
                self.pass_over(url)
            if len(unknown) == _CONFIRMATIONS:
                break
        if unknown:
            raise unknown[0]
        raise unavailable(failures)

    def pass_over(self, url: str) -> None:
        """Move a failed node to the end. If several lookups fail at once, only the first one moves it."""
        if self.urls[0] == url:
            self.urls.append(self.urls.pop(0))

    @asynccontextmanager
    async def watching(
        self, url: str, namespaces: Sequence[str], marks: Sequence[str]
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open the watch stream of one node. Raises `NodeFailedError`, also while it is read."""
        query = [("protocol", PROTOCOL), *(("namespace", name) for name in namespaces)]
        marked = {"Last-Event-ID": ",".join(marks)} if marks else {}
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_S)
        async with self._get(url, f"{WATCH_PATH}?{urlencode(query)}", limits, marked) as response:
            if response.status in _NOT_PUSHED and (reason := await _reason(response)):
                raise _NOT_PUSHED[response.status](f"{url} answered {response.status} {reason}")
            if response.status != HTTPStatus.OK:
                raise await _refusal(url, response)
            if response.content_type != "text/event-stream":
                raise NoWatchError(f"{url}: {WATCH_PATH} answered {response.content_type}: expected text/event-stream")
            yield response.content

    async def _lookup_at(self, url: str, path: str) -> Owner | NotNow:
        """Ask one node. Raises as `lookup` does, and `NodeFailedError`."""
        limits = aiohttp.ClientTimeout(total=LOOKUP_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        async with self._get(url, path, limits) as response:
            if response.status == HTTPStatus.OK:
                try:
                    return Owner.of_json(parse_object(await _body(response), "answer"), "answer")
                except InvalidRecordError as error:
                    raise NodeFailedError(f"{url}: {error}") from None
            if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
                self.pass_over(url)
                return NotNow(await _describe(url, response), _retry_after_s(response.headers))
            if response.status == HTTPStatus.NOT_FOUND and (reason := await _reason(response)):
                raise NamespaceNotFoundError(reason)
            raise await _refusal(url, response)

    @asynccontextmanager
    async def _get(
        self, url: str, path: str, limits: aiohttp.ClientTimeout, marked: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {**(marked or {})}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.read()}"
        try:
            async with self._session.get(
                URL(url + path, encoded=True), headers=headers, timeout=limits, allow_redirects=False, ssl=self._ssl
            ) as response:
                yield response
        except TimeoutError:
            raise NodeFailedError(f"{url}: no answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NodeFailedError(f"{url}: {describe_failure(error)}") from None


def checked_urls(urls: Sequence[str]) -> list[str]:
    """Check the URLs of nodes; raises `ConfigurationError`."""
    if not urls or isinstance(urls, str):
        raise ConfigurationError(f"urls {urls!r}: expected the URLs of nodes, such as ['http://node-1:8080']")
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigurationError(f"urls: {url!r}: expected http://host:port or https://host:port")
    return [url.rstrip("/") for url in urls]


def unavailable(failures: Sequence[str]) -> NodesUnavailableError:
    return NodesUnavailableError("no load-manager node answered: " + "; ".join(failures))


async def _refusal(url: str, response: aiohttp.ClientResponse) -> Exception:
    kind = _REFUSALS.get(response.status, NodeFailedError)
    return kind(await _describe(url, response))


async def _describe(url: str, response: aiohttp.ClientResponse) -> str:
    return f"{url} answered {response.status} {await _reason(response)}".rstrip()


async def _reason(response: aiohttp.ClientResponse) -> str:
    """Return the reason in a node's error answer; empty if the answer is not from a node."""
    try:
        return text_of(parse_object(await _body(response), "answer"), "reason", "answer") or ""
    except InvalidRecordError:
        return ""


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise InvalidRecordError(f"an answer of more than {_MOST_BYTES} bytes")
    return bytes(body)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else 1.0
