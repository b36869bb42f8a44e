"""Session state machine: connection state, heartbeats, and the lease until which the session can be trusted.

A passive machine: `step(event, now_s)` takes an event and returns actions; `wake_s` is the time of the next `TIME`
event. Every store has one, for any transport.

    phase         event                         then
    -----         -----                         ----
    CLOSED        OPEN                                                                              ─▶ SEEKING
    SEEKING       Connected                     (the lease counts from the handshake request) Say
                                                session_connected, Announce CONNECTED, Arm          ─▶ CONNECTED
    SUSPENDED,    Connected, same session       as in SEEKING
    CONNECTED     Connected, another session    EXPIRED, then as in SEEKING
    CONNECTED     RequestAnswered               (the lease counts from the sending of that request)
                  TIME, a heartbeat is due      Heartbeat
                  TIME, the lease has lapsed    Say session_lease_lapsed, Announce SUSPENDED, Drop  ─▶ SUSPENDED
                  DISCONNECTED                  Announce SUSPENDED                                  ─▶ SUSPENDED
    SEEKING,      HungUp, ConnectionRefused     (becomes the obstacle) Say zookeeper_hangs_up or
    SUSPENDED                                   zookeeper_refuses, once until the next connection
    SUSPENDED     HungUp, certainly expired     also GiveUp
    SUSPENDED,    GivenUp                       (counted) Say session_given_up, then EXPIRED
    CONNECTED     EXPIRED                       Announce LOST                                       ─▶ SEEKING
    any           CLOSE                         Announce LOST                                       ─▶ CLOSED

All other events come too late and change nothing. A state is announced only when it changes. Heartbeats are due every
twelfth of the timeout, answered or not: a slow answer does not delay the next one.

The lease
    A busy client does not notice a dead connection, and learns that its session has expired only from the next server
    it reaches. So it keeps its own time. Heartbeats and writes are answered by the leader of the ensemble. The session
    is trusted for two thirds of its timeout after the newest answered one was *sent*.

    The bound holds even if our server fails before it has told the leader about our session, provided that the timeout
    is at least three ticks of the servers. A longer timeout than requested means long ticks, usually half of it. Then
    the session is trusted for half of its timeout, and session_timeout_raised is logged.

Certainly expired
    A session is given up for a new one if a server grants other sessions but closes the connection of this one. The
    server's data were lost or rolled back, and it refuses clients that have seen newer data.

    This needs twice the timeout since the newest answered request was sent, long after the lease lapsed (`is_over`).
    Before that, the server may only lag behind the others. While no server grants sessions nothing is given up: a
    restarted ZooKeeper continues its sessions.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from loadmanager.core.protocol.state_machine import Say
from loadmanager.store.metadata_store import SessionState

LEASE_RATIO = 2 / 3
"""Fraction of the timeout for which a session is trusted, counted from the sending of an answered request."""

RAISED_LEASE_RATIO = 1 / 2
"""The same for a timeout that is longer than requested."""

HEARTBEATS_PER_TIMEOUT = 12
"""Heartbeats per session timeout: even with a short session, a lease outlasts a pause of a second."""

_MS = 0.001
_LONG_TICKS = "ZooKeeper grants two of its ticks at least: tickTime should be a third of the timeout, or less"

OVER_AFTER_TIMEOUTS = 2
"""Number of timeouts without an answer after which a session has certainly expired."""


class SessionPhase(enum.Enum):
    CLOSED = enum.auto()
    SEEKING = enum.auto()
    """Open but without a session: none was started, or the last one has expired."""
    CONNECTED = enum.auto()
    SUSPENDED = enum.auto()
    """Without a connection; the session may still exist."""


# Events


@dataclass(frozen=True, slots=True)
class Connected:
    """A server has granted the session with this timeout; it was requested at `asked_at_s`."""

    session_id: int
    timeout_s: float
    asked_at_s: float


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """The ensemble's leader has answered a request of this session."""

    session_id: int
    sent_at_s: float


@dataclass(frozen=True, slots=True)
class HungUp:
    """The server at `address` closed the connection without granting or refusing the session."""

    address: str


@dataclass(frozen=True, slots=True)
class ConnectionRefused:
    """The handshake with the server at `address` failed, because of credentials or certificates."""

    address: str
    why: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The server at `address` grants sessions but did not take back this expired one, which was dropped."""

    address: str


class SessionSignal(enum.Enum):
    """Events without data."""

    TIME = enum.auto()
    OPEN = enum.auto()
    DISCONNECTED = enum.auto()
    """The connection has ended; the session may still exist."""
    EXPIRED = enum.auto()
    """The servers report that the session has expired."""
    CLOSE = enum.auto()


Event = Connected | RequestAnswered | HungUp | ConnectionRefused | GivenUp | SessionSignal

# Actions


@dataclass(frozen=True, slots=True)
class Announce:
    """Publish a change of the session's state."""

    state: SessionState


@dataclass(frozen=True, slots=True)
class Arm:
    """Arm every watch again: changes may have been missed."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Send a request that the ensemble's leader answers, and report RequestAnswered."""

    session_id: int
    sent_at_s: float


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop the connection without waiting."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Drop the session, and report GivenUp, if a server that grants other sessions closes its connection. Do nothing if
    it was re-established after `asked_at_s`.
    """

    asked_at_s: float


Action = Announce | Arm | Heartbeat | Drop | GiveUp | Say


@dataclass(slots=True)
class Session:
    """Session of one store, and its successors. `timeout_s` is the requested timeout, later the granted one;
    `session_id` is 0 without a session.
    """

    timeout_s: float
    session_id: int = 0
    phase: SessionPhase = SessionPhase.CLOSED
    lease_valid_until_s: float = -math.inf
    given_up: int = 0
    """Number of sessions given up."""
    obstacle: str | None = None
    """Reason why there is no connection, if known."""
    _asked_s: float = field(init=False)
    _asked_at_s: float = -math.inf
    _due_s: float = math.inf
    _to_do: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._asked_s = self.timeout_s

    @property
    def state(self) -> SessionState:
        match self.phase:
            case SessionPhase.CONNECTED:
                return SessionState.CONNECTED
            case SessionPhase.SUSPENDED:
                return SessionState.SUSPENDED
            case _:
                return SessionState.LOST

    @property
    def wake_s(self) -> float | None:
        """Time of the next heartbeat, or of the end of the lease."""
        if self.phase is not SessionPhase.CONNECTED:
            return None
        return min(self._due_s, self.lease_valid_until_s)

    def is_over(self, now_s: float) -> bool:
        """True if the session has certainly expired, by our own clock."""
        unanswered_timeouts = OVER_AFTER_TIMEOUTS - self._lease_ratio
        return now_s >= self.lease_valid_until_s + unanswered_timeouts * self.timeout_s

    def why_not(self, now_s: float, session_id: int | None = None) -> str | None:
        """Return the reason why no request may be sent now (on the session `session_id`, if given); None if it may."""
        if session_id is not None and session_id != self.session_id:
            return f"session {session_id:#x} is not the current one any more"
        if self.phase is not SessionPhase.CONNECTED:
            return f"no connection: {self.state}"
        if now_s >= self.lease_valid_until_s:
            return "no answer for too long: the lease lapsed"
        return None

    def step(self, event: Event, now_s: float) -> list[Action]:
        if event is SessionSignal.CLOSE:
            self._end(SessionPhase.CLOSED)
        elif self.phase is not SessionPhase.CLOSED:
            self._handle(event, now_s)
        elif event is SessionSignal.OPEN:
            self._go(SessionPhase.SEEKING)
        to_do, self._to_do = self._to_do, []
        return to_do

    def _handle(self, event: Event, now_s: float) -> None:
        match event:
            case Connected():
                self._on_connected(event, now_s)
            case RequestAnswered():
                self._on_answered(event)
            case HungUp(address):
                self._on_hung_up(address, now_s)
            case ConnectionRefused(address, why):
                self._meet("zookeeper_refuses", address, f"refuses: {why}")
            case GivenUp(address):
                self._give_up(address)
            case SessionSignal.EXPIRED:
                self._end(SessionPhase.SEEKING)
            case SessionSignal.DISCONNECTED:
                self._on_disconnected()
            case _:
                self._look(now_s)

    def _on_connected(self, granted: Connected, now_s: float) -> None:
        is_new = self.session_id != granted.session_id
        if is_new:
            self._end(SessionPhase.SEEKING)
        self.session_id, self.timeout_s, self.obstacle = granted.session_id, granted.timeout_s, None
        self._asked_at_s = granted.asked_at_s
        self._trust(granted.asked_at_s)
        self._say("session_connected", is_warning=False, timeout_s=granted.timeout_s)
        if is_new and self._is_raised:
            self._say("session_timeout_raised", asked_s=self._asked_s, granted_s=granted.timeout_s, why=_LONG_TICKS)
        self._go(SessionPhase.CONNECTED)
        self._to_do.append(Arm())
        self._schedule_heartbeat(now_s)

    def _on_answered(self, event: RequestAnswered) -> None:
        if self.phase is SessionPhase.CONNECTED and event.session_id == self.session_id:
            self._trust(event.sent_at_s)

    def _trust(self, sent_at_s: float) -> None:
        """Extend the lease. It counts from the sending; the server's timer started later."""
        self.lease_valid_until_s = max(self.lease_valid_until_s, sent_at_s + self._lease_ratio * self.timeout_s)

    @property
    def _is_raised(self) -> bool:
        return self.timeout_s > self._asked_s + _MS

    @property
    def _lease_ratio(self) -> float:
        return RAISED_LEASE_RATIO if self._is_raised else LEASE_RATIO

    def _schedule_heartbeat(self, now_s: float) -> None:
        self._due_s = now_s + self.timeout_s / HEARTBEATS_PER_TIMEOUT

    def _look(self, now_s: float) -> None:
        if self.phase is not SessionPhase.CONNECTED:
            return
        if now_s >= self.lease_valid_until_s:
            self._say("session_lease_lapsed")
            self._on_disconnected()
            self._to_do.append(Drop())
        elif now_s >= self._due_s:
            self._schedule_heartbeat(now_s)
            self._to_do.append(Heartbeat(self.session_id, now_s))

    def _on_disconnected(self) -> None:
        if self.phase is SessionPhase.CONNECTED:
            self._go(SessionPhase.SUSPENDED)

    def _on_hung_up(self, address: str, now_s: float) -> None:
        self._meet("zookeeper_hangs_up", address, "hangs up: it does not serve, or its data were lost or set back")
        if self.phase is SessionPhase.SUSPENDED and self.is_over(now_s):
            self._to_do.append(GiveUp(self._asked_at_s))

    def _meet(self, event: str, address: str, what: str) -> None:
        if self.phase is SessionPhase.CONNECTED:
            return
        if self.obstacle is None:
            self._say(event, address=address, why=what)
        self.obstacle = f"{address} {what}"

    def _give_up(self, address: str) -> None:
        if self.session_id:
            self.given_up += 1
            why = "it grants sessions but does not take this one back: its data were lost or set back"
            self._say("session_given_up", address=address, why=why)
        self._end(SessionPhase.SEEKING)

    def _end(self, phase: SessionPhase) -> None:
        self.session_id, self.lease_valid_until_s = 0, -math.inf
        self._go(phase)

    def _go(self, phase: SessionPhase) -> None:
        before, self.phase = self.state, phase
        if self.state is not before:
            self._to_do.append(Announce(self.state))

    def _say(self, event: str, *, is_warning: bool = True, **fields: object) -> None:
        self._to_do.append(Say(event, {"session_id": hex(self.session_id), **fields}, is_warning))


class OfSession:
    """Session properties of the port, for a store that has a `Session`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def session_timeout_s(self) -> float:
        return self._session.timeout_s

    @property
    def state(self) -> SessionState:
        return self._session.state

    @property
    def lease_valid_until_s(self) -> float:
        return self._session.lease_valid_until_s

    @property
    def obstacle(self) -> str | None:
        return self._session.obstacle

    @property
    def sessions_given_up(self) -> int:
        return self._session.given_up
