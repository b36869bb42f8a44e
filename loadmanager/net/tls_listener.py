"""TLS listener and connection limit: each handshake has a timeout, and a connection counts from its accept.

asyncio's servers report a connection only after its handshake, so clients that never start one could use up all open
files. They also keep one TLS context for ever, while certificates are renewed.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from loadmanager.net.tls_contexts import ServerTls

log = structlog.get_logger(__name__)

SSLProtocol.max_size = 32 * 1024
"""Read buffer of each TLS connection, including idle ones. With asyncio's default of 256 KiB, the allowed connections
would take more than half a gigabyte."""

_SHUTDOWN_S = 1.0
"""Time to wait for the peer's close notification."""

_TRY_AGAIN_S = 1.0
_SAID_EVERY_S = 10.0


class Handshake:
    """A connection during its handshake."""

    is_silent = True

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._task = asyncio.create_task(work, name="TLS handshake")
        return self._task

    def take(self) -> socket.socket:
        """Hand over the socket; the caller must close it."""
        self._has_begun = True
        return self._socket

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if not self._has_begun:
            self._socket.close()


@dataclass(slots=True, eq=False)
class TlsListener:
    """Accepts on `listener` until closed. `serve` creates the protocol after the handshake."""

    listener: socket.socket
    tls: ServerTls
    connections: ConnectionLimit
    serve: Callable[[Handshake], asyncio.Protocol]
    handshake_s: float
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _in_progress: set[Handshake] = field(default_factory=set)
    _said_at_s: float = -math.inf

    def __post_init__(self) -> None:
        self.listener.settimeout(0)
        self._listen()

    def close(self) -> None:
        """Stop accepting, and abort handshakes in progress."""
        self._loop.remove_reader(self.listener)
        self.listener.close()
        for handshake in list(self._in_progress):
            handshake.abort()

    def _listen(self) -> None:
        if self.listener.fileno() >= 0:
            self._loop.add_reader(self.listener, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # usually too many open files
            log.warning("not_accepting", error=str(error))
            self._loop.remove_reader(self.listener)
            self._loop.call_later(_TRY_AGAIN_S, self._listen)
            return
        sock.settimeout(0)
        handshake = Handshake(sock)
        if self.connections.admit(handshake):
            self._in_progress.add(handshake)
            handshake.begin(self._complete(handshake)).add_done_callback(lambda _: self._over(handshake))
        else:
            handshake.abort()

    def _over(self, handshake: Handshake) -> None:
        self._in_progress.discard(handshake)
        self.connections.gone(handshake)

    async def _complete(self, handshake: Handshake) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self.serve(handshake),
                handshake.take(),
                ssl=self.tls.context(),
                ssl_handshake_timeout=self.handshake_s,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        # Drop the traceback: it would keep everything made for the handshake until cycles are collected.
        except asyncio.CancelledError as aborted:
            raise aborted.with_traceback(None) from None
        except (OSError, RuntimeError) as error:
            self._on_handshake_failed(error.with_traceback(None))

    def _on_handshake_failed(self, error: Exception) -> None:
        """Count and log a failed handshake, with rate limiting. A connection that sent nothing counts as broken off."""
        if not isinstance(error, ssl.SSLError):
            self.tls.handshakes["broken_off"] += 1
            return
        self.tls.handshakes["refused"] += 1
        now_s = time.monotonic()
        if now_s - self._said_at_s >= _SAID_EVERY_S:
            self._said_at_s = now_s
            log.warning("tls_handshake_refused", error=str(error))


class Connection(Protocol):
    """A connection that counts from its accept."""

    @property
    def is_silent(self) -> bool:
        """True if no request is in progress."""

    def abort(self) -> None:
        """Close the connection at once."""


class ConnectionLimit:
    """Limit on open connections, ordered by idle time, longest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[Connection, None] = OrderedDict()
        self._is_full = False

    def admit(self, connection: Connection) -> bool:
        """Return True if the connection is admitted; closes the longest idle connection if necessary."""
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
