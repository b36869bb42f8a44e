"""Server-sent events as a client reads them."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import orjson
from support.waiting import patience


class Events:
    """The events of a stream, as they come."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self._read = bytearray()

    async def next(self, wanted: str = "") -> dict[str, str]:
        """The next event, or the next of that kind."""
        while True:
            async with asyncio.timeout(patience()):
                frame = await self._frame()
            fields = dict(line.split(": ", 1) for line in frame.decode().strip().split("\n"))
            if fields.get("event") and (not wanted or fields["event"] == wanted):
                return fields

    async def _frame(self) -> bytes:
        """Read one frame of any length."""
        while b"\n\n" not in self._read:
            self._read += await self.answer.content.readany()
            assert not self.answer.content.at_eof(), "the stream has ended"
        frame, _, self._read = self._read.partition(b"\n\n")
        return bytes(frame)

    async def data(self, wanted: str) -> Any:  # noqa: ANN401 - JSON
        return orjson.loads((await self.next(wanted))["data"])
