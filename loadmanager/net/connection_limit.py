"""Connection limit of a server: beyond it, the connection that was idle longest is closed."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)


class Connection(Protocol):
    """A counted connection, from its accept on."""

    @property
    def is_silent(self) -> bool:
        """True if no request is under way."""

    def abort(self) -> None:
        """Close the connection at once."""


class ConnectionLimit:
    """Open connections, the longest idle first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[Connection, None] = OrderedDict()
        self._is_full = False

    def admit(self, connection: Connection) -> bool:
        """Return True if there is room for one more, after closing the longest idle connection if need be."""
        if len(self._open) >= self._most and not self._close_a_silent_one():
            return False
        self._open[connection] = None
        return True

    def asked(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.move_to_end(connection)

    def gone(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        self._is_full = self._is_full and len(self._open) > self._most // 2

    def _close_a_silent_one(self) -> bool:
        if not self._is_full:
            self._is_full = True
            log.warning("connections_exhausted", connections=self._most)
        silent = next((each for each in self._open if each.is_silent), None)
        if silent is None:
            return False
        del self._open[silent]
        silent.abort()
        return True
