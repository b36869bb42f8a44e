"""Server-sent events: the response of a stream, and the encoding of one event."""

from __future__ import annotations

from aiohttp import web

from loadmanager.http.openapi import EVENTS

NOTHING_NEW = b": nothing new\n\n"
"""Tells a reader that the other side is there."""


def event_stream() -> web.StreamResponse:
    """Return the response of an event stream; its headers keep proxies from buffering."""
    response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    response.content_type = EVENTS
    return response


def encode_event(event: str, data: bytes, identity: object = "") -> bytes:
    """Encode one event, with the id for a reader that reconnects; `data` is JSON without line ends."""
    line = f"id: {identity}\n" if identity else ""
    return b"event: %b\n%bdata: %b\n\n" % (event.encode(), line.encode(), data)
