"""HTTP client for other processes: no redirects, bounded answers, named failures.

Redirects are refused because only the process that was asked can answer: an agent that redirects its caller has closed
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from yarl import URL

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.shared_settings import TlsSettings
from loadmanager.errors import InvalidRecordError, LoadManagerError, describe_failure
from loadmanager.net.auth.outgoing_token import Token, own_token
from loadmanager.net.request_ids import get_id_headers
from loadmanager.net.tls_contexts import RenewedTls, client_tls_of
from loadmanager.net.tracing import OFF, Tracing
from loadmanager.wire.body_sizes import LARGEST_ANSWER_BYTES

_CONNECTIONS = 100
_SHOWN_CHARACTERS = 200


class PeerUnavailableError(LoadManagerError):
    """The peer did not answer, or answered that it is unavailable; the message names the call and the answer."""


class PeerNotReachedError(PeerUnavailableError):
    """The connection failed, or the URL is invalid: the peer has not received the request."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete HTTP answer; `url` is the request's."""

    url: str
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def shown(self) -> str:
        """Describe the answer for a log or an error: its status and the start of its body."""
        text = self.body[:_SHOWN_CHARACTERS].decode("utf-8", errors="replace")
        return f"{self.url} answered {self.status} {text!r}" if text else f"{self.url} answered {self.status}"


@dataclass(frozen=True, slots=True)
class Caller:
    """Outgoing identity of a process: its token and certificate, and the certificates that it trusts.

    Without `tls` the system's trust store applies.
    """

    token: Token | None = None
    tls: RenewedTls | None = None
    tracing: Tracing = OFF

    @classmethod
    def of(cls, settings: AuthSettings, tracing: Tracing = OFF) -> Self:
        """Build it from the settings; raises `ConfigurationError` for an unusable token or file."""
        tls = client_tls_of(settings) if isinstance(settings, TlsSettings) else None
        return cls(own_token(settings), tls, tracing)

    def headers(self) -> dict[str, str]:
        who = {} if self.token is None else {"Authorization": f"Bearer {self.token.read()}"}
        return {**who, **self.tracing.headers()}


NOBODY = Caller()


class HttpClient:
    """HTTP client with at most `connections` connections, on behalf of the caller. Create it in a running event loop;
    close it, or use `async with`.
    """

    def __init__(self, connections: int = _CONNECTIONS, caller: Caller = NOBODY) -> None:
        self._caller = caller
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections), middlewares=[_once_unless_get]
        )

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(
        self,
        method: str,
        url: str | URL,
        timeout_s: float,
        *,
        connect_timeout_s: float | None = None,
        most_bytes: int | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401 - passed on to aiohttp
    ) -> HttpAnswer:
        """Send one request and return its answer with any status. Redirects are not followed.

        `PeerUnavailableError` without an answer; `InvalidRecordError` if it is longer than `most_bytes` (default
        `LARGEST_ANSWER_BYTES`).
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s)
        if self._caller.tls is not None:
            options.setdefault("ssl", self._caller.tls.context())
        shown = {**self._caller.headers(), **(headers or {}), **get_id_headers()}
        try:
            async with self._session.request(
                method, url, timeout=timeout, allow_redirects=False, headers=shown, **options
            ) as response:
                body = await _read(response, str(url), most_bytes or LARGEST_ANSWER_BYTES)
                return HttpAnswer(str(url), response.status, body, response.headers)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ValueError) as error:
            raise PeerNotReachedError(f"{url}: {describe_failure(error)}") from error
        except TimeoutError:
            raise PeerUnavailableError(f"{url} did not answer within {timeout_s:.3g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise PeerUnavailableError(f"{url}: {describe_failure(error)}") from error


async def _once_unless_get(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Stop aiohttp from repeating PUT and DELETE. It repeats them when the connection ends without an answer, and hides
    the first outcome.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method == "GET":
            raise
        raise aiohttp.ClientConnectionError(str(error)) from error


async def _read(response: aiohttp.ClientResponse, url: str, most_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            start = HttpAnswer(url, response.status, bytes(body[:_SHOWN_CHARACTERS]))
            raise InvalidRecordError(f"{start.shown()}: an answer of more than {most_bytes} bytes")
    return bytes(body)
