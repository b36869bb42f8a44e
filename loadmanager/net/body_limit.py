"""Request body limits: a maximum size per operation, and a limit on concurrent large bodies.

Without these limits, anyone who can connect could leave an unfinished body of the maximum size on every connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator

from aiohttp import web

from loadmanager.errors import BadRequestError, BodyTooLargeError

SMALL_BYTES = 65_536
"""Bodies up to this size do not count as large: each connection's buffer may hold as much."""

_LARGE_AT_A_TIME = 8
_SHOWN_CHARACTERS = 40


class BodyLimit:
    """Limit on concurrent large bodies of one server."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_LARGE_AT_A_TIME)

    @contextlib.asynccontextmanager
    async def read(self, request: web.Request, most_bytes: int) -> AsyncIterator[None]:
        """Read the body. A large one keeps its slot until the context ends. A long wait ends in 408, like a slow body.

        Raises `BodyTooLargeError`, before reading if the length is declared, and `BadRequestError` for a compressed
        body: a few bytes could expand without limit.
        """
        packed = request.headers.get("Content-Encoding", "identity")
        if packed.lower() != "identity":
            raise BadRequestError(f"Content-Encoding: {packed[:_SHOWN_CHARACTERS]!r}: send the body as it is")
        length = request.content_length
        if length is None and not request.can_read_body:
            length = 0
        if length is not None and length > most_bytes:
            raise BodyTooLargeError(most_bytes)
        is_large = length is None or length > SMALL_BYTES
        async with self._places if is_large else contextlib.nullcontext():
            if len(await _whole(request)) > most_bytes:
                raise BodyTooLargeError(most_bytes)
            yield


async def _whole(request: web.Request) -> bytes:
    try:
        return await request.read()
    except Exception as error:
        # The stream keeps the error, whose frames hold the bytes read, in a cycle that is collected much later.
        traceback.clear_frames(error.__traceback__)
        raise
