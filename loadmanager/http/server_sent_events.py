"""Server-sent events: what streams begin with, and one event as it is sent."""

from __future__ import annotations

from aiohttp import web

from loadmanager.http.openapi import EVENTS

NOTHING_NEW = b": nothing new\n\n"
"""Tells a reader that the other side is there."""


def event_stream() -> web.StreamResponse:
    """The answer that events are written to; proxies are told to keep none of them back."""
    response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    response.content_type = EVENTS
    return response


def frame_of(event: str, data: bytes, identity: object = "") -> bytes:
    """One event, with the id that a reader comes back with; `data` has no line ends, as JSON of ours has none."""
    line = f"id: {identity}\n" if identity else ""
    return b"event: %b\n%bdata: %b\n\n" % (event.encode(), line.encode(), data)
