"""Sockets for kazoo with bounded waits and optional TLS; probe of a metadata store that uses them.

kazoo connects without a time limit. Its TLS reads the certificates again for each connection, and does not report why
they are unusable. It also misses answers that TLS has already decrypted, because `select` does not report them.

The probe opens a session; nothing less proves that a store serves. A server that listens, or even answers four-letter
commands, may lack a quorum.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Sequence

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionDropped

TlsContext = Callable[[], ssl.SSLContext]
"""Returns the context for a new connection."""


class ServerRefusedError(ConnectionDropped):
    """The TLS or authentication handshake with the server failed; the message has the reason."""


class Sockets(SequentialThreadingHandler):
    """Socket factory. Connecting, and each acknowledgement, take at most `network_timeout_s`. With `named`, the
    server's certificate must name that host, whatever address is used.
    """

    def __init__(self, network_timeout_s: float, tls: TlsContext | None, named: str | None = None) -> None:
        super().__init__()
        self._network_timeout_s = network_timeout_s
        self._tls = tls
        self._named = named

    def create_connection(self, *args: object, **kwargs: object) -> socket.socket:
        connection = super().create_connection(*args, **{**kwargs, "timeout": self._network_timeout_s})
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._network_timeout_s * 1000))
        if self._tls is None:
            return connection
        try:
            return self._tls().wrap_socket(connection, server_hostname=self._named or str(kwargs["hostname"]))
        except ssl.SSLError as error:
            raise ServerRefusedError(say(error)) from error
        except ConnectionResetError as error:
            raise ServerRefusedError("TLS: the server closed the connection; this port may not speak TLS") from error

    def select(
        self, readable: Sequence[object], writable: Sequence[object], failed: Sequence[object], timeout: float | None
    ) -> tuple[list[object], list[object], list[object]]:
        """Wait like the kernel's select, but return TLS sockets with buffered data at once."""
        ready = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        found = super().select(readable, writable, failed, 0 if ready else timeout)
        return [*ready, *(each for each in found[0] if each not in ready)], found[1], found[2]


def say(error: ssl.SSLError) -> str:
    """Describe the TLS error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # depends on the build of OpenSSL
        return "TLS: the server closed the connection; this port may not speak TLS"
    return f"TLS: {error.reason or error}"


SESSION_TIMEOUT_S = 4.0

_silent = logging.getLogger(__name__)  # refused connections are expected here
_silent.setLevel(logging.CRITICAL)


def session_works(connect_string: str, timeout_s: float, tls: TlsContext | None = None, *, named: str = "") -> bool:
    """Return True if a session could be opened within `timeout_s`, which takes a write by a quorum. Blocks.

    Over TLS the server's certificate must name the host `named`, or the requested one.
    """
    network_timeout_s = min(SESSION_TIMEOUT_S, timeout_s)
    client = KazooClient(
        connect_string, network_timeout_s, handler=Sockets(network_timeout_s, tls, named or None), logger=_silent
    )
    try:
        client.start(timeout_s)
    except (KazooException, KazooTimeoutError):
        return False
    finally:
        client.stop()
        client.close()
    return True
