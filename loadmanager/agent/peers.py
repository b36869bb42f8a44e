"""What calls to the broker and to load-manager nodes have in common: bounded answers, named failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiohttp

from loadmanager.errors import InvalidRecordError, LoadManagerError

LARGEST_ANSWER_BYTES = 64 * 1024 * 1024
_SHOWN_CHARACTERS = 200


class PeerUnavailableError(LoadManagerError):
    """The other side did not answer, or answered that it cannot; the message says which call and what came."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer; `url` is what was asked."""

    url: str
    status: int
    body: bytes

    def shown(self) -> str:
        """The answer for a log or an error: its status and the start of its text."""
        text = self.body[:_SHOWN_CHARACTERS].decode("utf-8", errors="replace")
        return f"{self.url} answered {self.status} {text!r}" if text else f"{self.url} answered {self.status}"


async def call(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    timeout_s: float,
    **options: Any,  # noqa: ANN401 - handed on to aiohttp as they are
) -> Answer:
    """The answer to one request. `PeerUnavailableError` without one; `InvalidRecordError` when it never ends."""
    try:
        async with session.request(
            method, url, timeout=aiohttp.ClientTimeout(total=timeout_s), allow_redirects=False, **options
        ) as response:
            body = await _read(response, url)
            return Answer(url, response.status, body)
    except TimeoutError:
        raise PeerUnavailableError(f"{url} did not answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise PeerUnavailableError(f"{url}: {error}") from error


async def _read(response: aiohttp.ClientResponse, url: str) -> bytes:
    chunks = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > LARGEST_ANSWER_BYTES:
            raise InvalidRecordError(f"{url}: an answer of more than {LARGEST_ANSWER_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
