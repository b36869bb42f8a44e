"""Body limits of requests and answers."""

from __future__ import annotations

from aiohttp import StreamReader


async def read(content: StreamReader, most_bytes: int) -> bytes:
    """All of it; `ValueError` for more."""
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            raise ValueError(f"a body of more than {most_bytes} bytes")
    return bytes(body)
