"""kazoo's client with bounded waits and without a queue: a request that cannot be sent now is refused.

Each override fixes an observed fault:

- `submit` refuses at once a request that cannot be sent now on the intended session. kazoo itself queues requests
  without bound while it connects, and may send them on the next session.
- Events of persistent watches are passed on. kazoo drops events without a one-shot watcher.
- The granted timeout, and the time of the handshake request, are stored. kazoo drops both.
- The kernel ends a connection without acknowledgements; `drop` ends one without answers.
- An error in the connection thread costs the connection, not the thread.
- A session counts as connected once the servers have authenticated us. kazoo reports it earlier, gives up for ever if
  authentication fails, and logs credentials.
- A session that no server takes back is given up. kazoo sends the highest transaction id that it has seen. A server
  behind that id, after a data loss or a rollback, closes the connection silently, and kazoo retries for ever.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException, SASLException, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import AUTH_XID, ConnectionDropped, ConnectionHandler
from kazoo.protocol.serialization import Connect, Watch
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import ForceRetryError, KazooRetry

from loadmanager.store import store_session
from loadmanager.store._kazoo_requests import KazooRequest, auth
from loadmanager.store.zookeeper_acl import ANYBODY, Access, Credentials

if TYPE_CHECKING:
    from kazoo.protocol.connection import PendingReply, WireRequest  # protocols that exist only in our stubs of kazoo

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 1.0
_RETRY_BACKOFF = 2
_TRIES_WITHOUT_END = -1


class Listener(Protocol):
    """Callbacks in kazoo's connection thread, which waits for them: implementations must only hand the event over."""

    def on_session(self, event: store_session.Event) -> None: ...

    def on_change(self, full_path: str) -> None:
        """Report a change at `full_path`, below a watched path."""


class PromptClient(KazooClient):
    """kazoo client that refuses instead of queueing, and reports to `Listener`. `clock` is read in kazoo's thread."""

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        clock: Callable[[], float],
        listener: Listener,
        access: Access = ANYBODY,
    ) -> None:
        network_timeout_s = session_timeout_s / 3
        retry = KazooRetry(
            _TRIES_WITHOUT_END, _FIRST_RETRY_S, _RETRY_BACKOFF, max_delay=min(network_timeout_s, _LONGEST_RETRY_S)
        )
        sockets = Sockets(network_timeout_s, access.tls)
        super().__init__(hosts, session_timeout_s, handler=sockets, connection_retry=retry)
        self._wire = _Connection(self, self._conn_retry.copy(), network_timeout_s, clock, listener, access)
        self._connection = self._wire
        self._gate = threading.Lock()
        self._listener = listener
        self.add_listener(self._report)

    def submit(self, request: KazooRequest[T], reply: PendingReply, session_id: int) -> bool:
        """Pass the request to the connection thread; return False if it cannot be sent now on this session.

        A lock guards the check of the state and the queueing. Changes of state take the same lock and empty the queue.
        So a request is sent on the current connection or fails with it, and never goes out on a later one.
        """
        with self._gate:
            if self._state != KeeperState.CONNECTED or self._session_id != session_id:
                return False
            self._call(request, reply)
            return True

    @property
    def granted_session_id(self) -> int:
        """Id of the current session, or of the previous one."""
        return self._session_id or 0

    @property
    def has_no_session(self) -> bool:
        """True if the next connection begins a new session."""
        return self._session_id is None

    def awaited_reply(self) -> PendingReply | None:
        """Return the handler of the oldest pending request; None for the close request."""
        _, reply, _ = self._pending[0]
        return reply

    def drop(self) -> None:
        """Drop the connection, not the session, without waiting for the server; kazoo reconnects."""
        self._wire.drop()

    def give_up(self, asked_at_s: float) -> None:
        """Give the session up if a server grants other sessions but closes this one's connection. The session has
        expired by our own clock, unless it was re-established after `asked_at_s`.
        """
        self._wire.over_asked_at_s = asked_at_s

    def reconnect(self) -> None:
        """Reconnect after an unexpected error in kazoo, as if the server had closed the connection."""
        self._session_callback(KeeperState.CONNECTING)

    def shut_down(self) -> None:
        """End the session and the threads; blocks until the server has answered or the connection is dropped."""
        self.stop()
        self.close()

    def _session_callback(self, state: str) -> None:
        with self._gate:
            super()._session_callback(state)

    def _report(self, state: str) -> None:
        """Report lost connections and sessions. New ones are reported after authentication, not at kazoo's event."""
        if state != KazooState.CONNECTED:
            is_lost = state == KazooState.LOST
            self._listener.on_session(
                store_session.SessionSignal.EXPIRED if is_lost else store_session.SessionSignal.DISCONNECTED
            )


class _Connection(ConnectionHandler):
    """kazoo's connection thread. `granted`: session timeout of the last handshake, and when it was requested.
    `over_asked_at_s`: request time of the handshake whose session has expired.
    """

    client: PromptClient

    def __init__(
        self,
        client: PromptClient,
        retry: KazooRetry,
        network_timeout_s: float,
        clock: Callable[[], float],
        listener: Listener,
        access: Access,
    ) -> None:
        super().__init__(client, retry, sasl_options=_sasl_options(access.credentials))
        self.granted = (0.0, 0.0)
        self.over_asked_at_s: float | None = None
        self._network_timeout_s = network_timeout_s
        self._clock = clock
        self._listener = listener
        self._access = access

    def drop(self) -> None:
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):  # the thread has just closed it
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # plain shutdown: TLS state belongs to the thread

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        address = f"[{hostip}]:{port}" if ":" in hostip else f"{hostip}:{port}"
        try:
            timeouts = self._begin_session(host, hostip, port, address)
            self._say_who_we_are(timeouts[1])
        except (AuthFailedError, SASLException, ServerRefusedError) as error:
            if isinstance(error, AuthFailedError) and isinstance(error.__cause__, ConnectionDropped):
                # Closed during SASL: not a refusal, which a server would report.
                self._listener.on_session(store_session.HungUp(address))
                raise ConnectionDropped(str(error)) from error
            why = str(error) if isinstance(error, ServerRefusedError) else f"it does not take {self._access.who}"
            self._listener.on_session(store_session.ConnectionRefused(address, why))
            raise ConnectionDropped(why) from error
        self._listener.on_session(store_session.Connected(self.client.granted_session_id, *self.granted))
        return timeouts

    def _begin_session(self, host: str, hostip: str, port: int, address: str) -> tuple[float, float]:
        try:
            return super()._connect(host, hostip, port)
        except _HungUpError:
            self._listener.on_session(store_session.HungUp(address))
            is_over = not self.client.has_no_session and self.over_asked_at_s == self.granted[1]
            if not is_over or not session_works(address, self._network_timeout_s, self._access.tls, named=host):
                raise
            self._close_socket()
        try:
            return super()._connect(host, hostip, port)  # it may have just started and accept the session
        except _HungUpError as error:
            self._listener.on_session(store_session.GivenUp(address))
            raise SessionExpiredError(f"given up: {address} does not take it back") from error

    def _say_who_we_are(self, timeout_ms: float) -> None:
        ours = self._access.credentials
        if ours is not None and ours.scheme == "digest":
            self._invoke(timeout_ms / 1000, auth("digest", f"{ours.user}:{ours.password}"), AUTH_XID)

    def _invoke(self, timeout: float, request: WireRequest, xid: int | None = None) -> object:
        """Send a request of the handshake; after our timeout the next server is tried."""
        asked_at_s = self._clock()
        try:
            answer = super()._invoke(min(timeout, self._network_timeout_s), request, xid)
        except ConnectionDropped as error:
            if isinstance(error.__context__, ssl.SSLError):
                raise ServerRefusedError(say(error.__context__)) from error
            raise _HungUpError(str(error)) from error
        if isinstance(answer, tuple) and isinstance(answer[0], Connect):
            self.granted = (answer[0].time_out / 1000.0, asked_at_s)
        return answer

    def _connect_loop(self, retry: KazooRetry) -> object:
        """Keep the thread alive: kazoo ends it after unexpected errors, including failed name resolution."""
        try:
            return super()._connect_loop(retry)
        except ForceRetryError:
            raise
        except Exception as error:
            log.exception("zookeeper_client_failed")
            self.client.reconnect()
            raise ForceRetryError("unforeseen") from error

    def _read_response(self, header: object, buffer: bytes, offset: int) -> object:
        """Fail the pending request if its answer cannot be read: kazoo forgets it after some errors."""
        reply = self.client.awaited_reply()
        try:
            return super()._read_response(header, buffer, offset)
        except Exception as error:
            if reply is not None:
                reply.set_exception(error)
            raise

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        self._listener.on_change(event.path)

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.close()


class _HungUpError(ConnectionDropped):
    """A server accepted the connection and closed it before it answered the handshake."""


def _sasl_options(credentials: Credentials | None) -> dict[str, str] | None:
    if credentials is None or credentials.scheme != "sasl":
        return None
    return {"mechanism": "DIGEST-MD5", "username": credentials.user, "password": credentials.password}


TlsContext = Callable[[], ssl.SSLContext]
"""Returns the context for a new connection."""


class ServerRefusedError(ConnectionDropped):
    """The TLS or authentication handshake with the server failed; the message has the reason."""


class Sockets(SequentialThreadingHandler):
    """Socket factory. Connecting, and each acknowledgement, take at most `network_timeout_s`. With `named`, the
    server's certificate must name that host, whatever address is used.

    kazoo connects without a time limit. Its TLS reads the certificates again for each connection, and does not report
    why they are unusable. It also misses answers that TLS has already decrypted, because `select` does not report them.
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

_silent = logging.getLogger(f"{__name__}.probe")  # refused connections are expected here
_silent.setLevel(logging.CRITICAL)


def session_works(connect_string: str, timeout_s: float, tls: TlsContext | None = None, *, named: str = "") -> bool:
    """Return True if a session could be opened within `timeout_s`, which takes a write by a quorum. Blocks.

    Nothing less proves that a store serves: a server that listens, or even answers four-letter commands, may lack a
    quorum. Over TLS the server's certificate must name the host `named`, or the requested one.
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
