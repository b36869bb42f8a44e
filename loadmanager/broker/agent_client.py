"""HTTP between a broker and its agent: client for leases and owners, endpoints for statistics and unloads."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import StreamReader, web

from loadmanager.broker.contract import Leased, OwnershipAnswered

_OWNER_TIMEOUT_S = 5.0
_MOST_BYTES = 1 << 20
_MOST_MS = 86_400_000
_SHOWN_CHARACTERS = 200
_OK = 200


class NoAnswerError(Exception):
    """The agent did not answer, or gave an invalid answer; the message says what was received, and what to check."""


def check_address(address: str) -> str:
    """Raises `ValueError` for an invalid agent address."""
    parts = urlsplit(address)
    is_url = parts.scheme == "http" and bool(parts.hostname)
    is_socket = parts.scheme == "unix" and parts.path.startswith("/")
    if not is_url and not is_socket:
        raise ValueError(f"agent {address!r}: expected such as http://127.0.0.1:9091, or unix:/path/of/the/socket")
    return address


class AgentClient:
    """Client of the agent at `address`. A function is called for each request, and may raise `OSError` or `ValueError`
    while the address is unknown.
    """

    def __init__(self, address: str | Callable[[], str]) -> None:
        if isinstance(address, str):
            check_address(address)
        self._address = address
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def lease(self, timeout_s: float) -> Leased:
        """Ask for a lease; raises `NoAnswerError` if there is none."""
        where, body = await self._get("/loadmanager/v1/lease", {}, timeout_s)
        valid_for_ms = _whole(body, "validForMs", where)
        if not 0 <= valid_for_ms <= _MOST_MS:
            raise NoAnswerError(f"{where}: validForMs: {valid_for_ms}: expected 0 to {_MOST_MS}")
        listed = body.get("available")
        available = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else ()
        return Leased(_whole(body, "incarnation", where), valid_for_ms / 1000, frozenset(available))

    async def owner(self, topic: str, wait_ms: int = 0) -> OwnershipAnswered:
        """Ask if this broker owns the topic; the agent may delay a "no" by up to `wait_ms`. Raises `NoAnswerError`."""
        query = {"topic": topic, **({"waitMs": str(wait_ms)} if wait_ms else {})}
        where, body = await self._get("/loadmanager/v1/owner", query, _OWNER_TIMEOUT_S + wait_ms / 1000)
        is_owned, owner = body.get("owned"), body.get("owner")
        if not isinstance(is_owned, bool):
            raise NoAnswerError(f"{where}: owned: expected true or false")
        incarnation = _whole(body, "incarnation", where)
        return OwnershipAnswered(topic, is_owned, incarnation, owner if isinstance(owner, str) else None)

    async def _get(self, path: str, query: dict[str, str], timeout_s: float) -> tuple[str, dict[str, Any]]:
        """Return the requested URL and the JSON object of a 200 answer."""
        where = "the agent"
        try:
            address = check_address(self._address if isinstance(self._address, str) else self._address())
            where = f"the agent at {address}"
            base = "http://localhost" if address.startswith("unix:") else address.rstrip("/")
            timeout = aiohttp.ClientTimeout(total=timeout_s)
            async with self._session(address).get(
                f"{base}{path}", params=query, timeout=timeout, allow_redirects=False
            ) as response:
                status, text = response.status, await read(response.content, _MOST_BYTES)
            body = json.loads(text) if status == _OK else None
        except TimeoutError:
            raise NoAnswerError(f"{where} did not answer within {timeout_s:.3g} s") from None
        except (aiohttp.ClientConnectorError, OSError) as error:
            raise NoAnswerError(
                f"{where} cannot be reached ({error}): does `loadmanager agent` run there, and is this its"
                " agentLocalPort, or its brokerSocketPath?"
            ) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise NoAnswerError(f"{where} gave no answer to {path}: {error}") from error
        if not isinstance(body, dict):
            shown = text[:_SHOWN_CHARACTERS].decode(errors="replace")
            raise NoAnswerError(f"{where} answered {status} {shown!r} to {path}")
        return where, body

    def _session(self, address: str) -> aiohttp.ClientSession:
        """Return the session for an address. There is one per address: the agent may restart at another one."""
        if address not in self._sessions:
            is_socket = address.startswith("unix:")
            connector = aiohttp.UnixConnector(urlsplit(address).path) if is_socket else aiohttp.TCPConnector(limit=0)
            self._sessions[address] = aiohttp.ClientSession(connector=connector)
        return self._sessions[address]


def _whole(body: dict[str, Any], key: str, where: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise NoAnswerError(f"{where}: {key}: expected a whole number")
    return value


async def read(content: StreamReader, most_bytes: int) -> bytes:
    """Read all of the content; raises `ValueError` if it is longer than `most_bytes`."""
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            raise ValueError(f"a body of more than {most_bytes} bytes")
    return bytes(body)


_ENDPOINTS_MOST_BYTES = 64 << 20
"""An unload names all topics of a bundle that may be open, and an incomplete list is useless. So this limit applies
even if the application around these routes has a lower one.
"""


class NotDoneError(Exception):
    """The request was not executed; the agent will repeat it."""


@dataclass(frozen=True, slots=True)
class Named:
    """Topics of an unload or a warm-up. `bundle` is for logs; `destination` is the bundle's next owner, if known."""

    bundle: str
    topics: tuple[str, ...]
    destination: str | None

    @classmethod
    def parse(cls, text: bytes) -> Named:
        """Parse a request body; raises `ValueError`, which names the field."""
        body = json.loads(text)
        if not isinstance(body, dict):
            raise ValueError('expected {"bundle":"...","topics":["..."]}')  # noqa: TRY004 - an invalid value
        bundle, topics, destination = body.get("bundle"), body.get("topics"), body.get("destination")
        if not isinstance(bundle, str):
            raise ValueError("bundle: expected a name")  # noqa: TRY004 - as above
        if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
            raise ValueError("topics: expected a list of names")
        return cls(bundle, tuple(topics), destination if isinstance(destination, str) else None)


def make_routes(
    stats: Callable[[], Mapping[str, Any]],
    unload: Callable[[Named], Awaitable[None]],
    prepare: Callable[[Named], Awaitable[None]],
) -> list[web.RouteDef]:
    """Return the broker's endpoints. `unload` and `prepare` return when done, or raise `NotDoneError`."""

    async def show_stats(_request: web.Request) -> web.Response:
        return web.json_response(stats())

    return [
        web.get("/loadmanager/v1/stats", show_stats),
        web.post("/loadmanager/v1/unload", partial(_do, unload)),
        web.post("/loadmanager/v1/prepare", partial(_do, prepare)),
    ]


async def _do(what: Callable[[Named], Awaitable[None]], request: web.Request) -> web.Response:
    try:
        named = Named.parse(await read(request.content, _ENDPOINTS_MOST_BYTES))
    except ValueError as error:
        return web.json_response({"reason": f"{request.path}: {error}"}, status=400)
    try:
        await what(named)
    except NotDoneError as error:
        return web.json_response({"reason": str(error)}, status=500)
    return web.Response(status=204)
