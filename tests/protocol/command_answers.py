"""Answers to unloads and warm-ups from a failing agent or a proxy: none of them counts as a release."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable

from aiohttp import web

COMMANDS = ("/unload", "/prepare")
"""Last parts of their paths."""
_CREEPS_S = 3.0
_WHO_SAYS_YES = "http://yes:1/"


class Manner(enum.Enum):
    """Answer to a command. A command that is not executed does not change the broker."""

    OBEYS = "does it, and says so"
    REFUSES = "412"
    FAILS = "503"
    REDIRECTS = "307, to somebody who says 204"
    CREEPS = "does it, after the call has timed out"
    BREAKS_OFF = "ends the connection"
    IS_SILENT = "nothing, ever"


_STATUSES = {Manner.REFUSES: 412, Manner.FAILS: 503, Manner.REDIRECTS: 307}


async def answer(manner: Manner, obey: Callable[[], Awaitable[web.StreamResponse]]) -> web.StreamResponse | None:
    """Response to the command; None when the connection ends instead."""
    if manner in _STATUSES:
        return web.Response(status=_STATUSES[manner], headers={"Location": _WHO_SAYS_YES})
    if manner is Manner.BREAKS_OFF:
        return None
    if manner is Manner.IS_SILENT:
        await asyncio.Event().wait()
    if manner is Manner.CREEPS:
        await asyncio.sleep(_CREEPS_S)
    return await obey()
