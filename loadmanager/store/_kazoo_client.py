"""kazoo's client with bounded waits and no queue: requests are refused when they cannot be sent now.

Overridden here, each because of something that was seen to go wrong:

- `submit` refuses at once what cannot be sent now on the session it is meant for. kazoo itself queues requests while it
  is connecting, without bound, and may send them on the next session.
- Events of persistent watches are handed on; kazoo drops those for which it has no one-shot watcher.
- The timeout that the server granted, and when it was asked, are kept; kazoo forgets both.
- A connection that sends but gets nothing acknowledged is ended by the kernel, one that does not answer by `drop`.
- An error in the connection thread costs the connection and not the thread.
- A session counts as connected once the servers know who we are; kazoo says so before it has told them, gives up for
  good when they do not like it, and writes credentials into its log.
- A session that no server takes back is given up. kazoo offers the highest transaction id that it has seen; a server
  that has not come so far, as its data were lost or set back, hangs up without a word, and kazoo tries again for ever.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, SASLException, SessionExpiredError
from kazoo.protocol.connection import AUTH_XID, ConnectionDropped, ConnectionHandler
from kazoo.protocol.serialization import Connect, Watch
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import ForceRetryError, KazooRetry

from loadmanager.store import store_session
from loadmanager.store._kazoo_requests import KazooRequest, auth
from loadmanager.store.store_probe import ServerRefusedError, Sockets, say, session_works
from loadmanager.store.zookeeper_acl import ANYBODY, Access, Credentials

if TYPE_CHECKING:
    from kazoo.protocol.connection import PendingReply, WireRequest  # protocols that only our stubs of kazoo have

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 1.0
_RETRY_BACKOFF = 2
_TRIES_WITHOUT_END = -1


class Listener(Protocol):
    """Callbacks in kazoo's connection thread, which waits for them: implementations only hand the event over."""

    def on_session(self, event: store_session.Event) -> None: ...

    def on_change(self, full_path: str) -> None:
        """Report a change at `full_path`, which lies below a watch."""


class PromptClient(KazooClient):
    """A kazoo client that refuses rather than queues, and reports to `Listener`. `clock` is read in kazoo's thread."""

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float,
        clock: Callable[[], float],
        listener: Listener,
        access: Access = ANYBODY,
    ) -> None:
        patience_s = session_timeout_s / 3
        retry = KazooRetry(
            _TRIES_WITHOUT_END, _FIRST_RETRY_S, _RETRY_BACKOFF, max_delay=min(patience_s, _LONGEST_RETRY_S)
        )
        sockets = Sockets(patience_s, access.tls)
        super().__init__(hosts, session_timeout_s, handler=sockets, connection_retry=retry)
        self._wire = _Connection(self, self._conn_retry.copy(), patience_s, clock, listener, access)
        self._connection = self._wire
        self._gate = threading.Lock()
        self._listener = listener
        self.add_listener(self._report)

    def submit(self, request: KazooRequest[T], reply: PendingReply, session_id: int) -> bool:
        """Hand the request to the connection thread; return False if it cannot be sent now, on that very session.

        The state is looked at and the request queued under the lock that guards changes of state, which empty the
        queue: so a request goes out on the connection there is now, or fails with it, and never on a later one.
        """
        with self._gate:
            if self._state != KeeperState.CONNECTED or self._session_id != session_id:
                return False
            self._call(request, reply)
            return True

    @property
    def granted_session_id(self) -> int:
        """Id of the current session, or of the last one."""
        return self._session_id or 0

    @property
    def has_no_session(self) -> bool:
        """True if the next connection begins a new session."""
        return self._session_id is None

    def awaited_reply(self) -> PendingReply | None:
        """Return the handler of the answer to the oldest request under way; the close request has none."""
        _, reply, _ = self._pending[0]
        return reply

    def drop(self) -> None:
        """Drop the connection (not the session) without waiting for the server; kazoo reconnects."""
        self._wire.drop()

    def give_up(self, asked_at_s: float) -> None:
        """Give the session up if a server that grants sessions hangs up on it: it is over by our own clock, unless it
        was re-established after `asked_at_s`.
        """
        self._wire.over_asked_at_s = asked_at_s

    def reconnect(self) -> None:
        """Reconnect after an error that kazoo does not foresee, as if the server had closed the connection."""
        self._session_callback(KeeperState.CONNECTING)

    def shut_down(self) -> None:
        """End the session and the threads; blocks until the server has answered or the connection is dropped."""
        self.stop()
        self.close()

    def _session_callback(self, state: str) -> None:
        with self._gate:
            super()._session_callback(state)

    def _report(self, state: str) -> None:
        """Report connections when the servers have authenticated us, not at kazoo's own event."""
        if state != KazooState.CONNECTED:
            is_lost = state == KazooState.LOST
            self._listener.on_session(
                store_session.SessionSignal.EXPIRED if is_lost else store_session.SessionSignal.DISCONNECTED
            )


class _Connection(ConnectionHandler):
    """kazoo's connection thread. `granted`: session timeout of the last handshake, and when it was requested;
    `over_asked_at_s`: the handshake whose session is over.
    """

    client: PromptClient

    def __init__(
        self,
        client: PromptClient,
        retry: KazooRetry,
        patience_s: float,
        clock: Callable[[], float],
        listener: Listener,
        access: Access,
    ) -> None:
        super().__init__(client, retry, sasl_options=_sasl_options(access.credentials))
        self.granted = (0.0, 0.0)
        self.over_asked_at_s: float | None = None
        self._patience_s = patience_s
        self._clock = clock
        self._listener = listener
        self._access = access

    def drop(self) -> None:
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):  # the thread closed it a moment ago
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # under TLS, too, whose state is that thread's

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        address = f"[{hostip}]:{port}" if ":" in hostip else f"{hostip}:{port}"
        try:
            timeouts = self._begin_session(host, hostip, port, address)
            self._say_who_we_are(timeouts[1])
        except (AuthFailedError, SASLException, ServerRefusedError) as error:
            if isinstance(error, AuthFailedError) and isinstance(error.__cause__, ConnectionDropped):
                # During SASL. A server that refuses us says so.
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
            if not is_over or not session_works(address, self._patience_s, self._access.tls, named=host):
                raise
            self._close_socket()
        try:
            return super()._connect(host, hostip, port)  # perhaps it serves only now, and goes on with all sessions
        except _HungUpError as error:
            self._listener.on_session(store_session.GivenUp(address))
            raise SessionExpiredError(f"given up: {address} does not take it back") from error

    def _say_who_we_are(self, timeout_ms: float) -> None:
        ours = self._access.credentials
        if ours is not None and ours.scheme == "digest":
            self._invoke(timeout_ms / 1000, auth("digest", f"{ours.user}:{ours.password}"), AUTH_XID)

    def _invoke(self, timeout: float, request: WireRequest, xid: int | None = None) -> object:
        """Send a request before the session is connected; a server slower than our timeout is given up for the next."""
        asked_at_s = self._clock()
        try:
            answer = super()._invoke(min(timeout, self._patience_s), request, xid)
        except ConnectionDropped as error:
            if isinstance(error.__context__, ssl.SSLError):
                raise ServerRefusedError(say(error.__context__)) from error
            raise _HungUpError(str(error)) from error
        if isinstance(answer, tuple) and isinstance(answer[0], Connect):
            self.granted = (answer[0].time_out / 1000.0, asked_at_s)
        return answer

    def _connect_loop(self, retry: KazooRetry) -> object:
        """Keep the thread alive: kazoo ends it for unforeseen errors, name resolution included."""
        try:
            return super()._connect_loop(retry)
        except ForceRetryError:
            raise
        except Exception as error:
            log.exception("zookeeper_client_failed")
            self.client.reconnect()
            raise ForceRetryError("unforeseen") from error

    def _read_response(self, header: object, buffer: bytes, offset: int) -> object:
        """Fail the waiting request if its answer cannot be read: kazoo forgets it for some errors."""
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
    """A server accepted the connection, and closed it before it answered the handshake."""


def _sasl_options(credentials: Credentials | None) -> dict[str, str] | None:
    if credentials is None or credentials.scheme != "sasl":
        return None
    return {"mechanism": "DIGEST-MD5", "username": credentials.user, "password": credentials.password}
