from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.protocol.state_machine import Say
from loadmanager.store.metadata_store import SessionState
from loadmanager.store.store_session import (
    Action,
    Announce,
    Arm,
    Connected,
    ConnectionRefused,
    Drop,
    Event,
    GivenUp,
    GiveUp,
    Heartbeat,
    HungUp,
    OfSession,
    RequestAnswered,
    Session,
    SessionPhase,
    SessionSignal,
)

TIMEOUT_S = 12.0
LEASE_S = 8.0
PAUSE_S = 1.0
ADDRESS = "127.0.0.1:2181"
LOST, SUSPENDED, CONNECTED = (Announce(SessionState[name]) for name in ("LOST", "SUSPENDED", "CONNECTED"))
LAPSED = Say("session_lease_lapsed", {"session_id": "0x7"})
DOES_NOT_SERVE = "hangs up: it does not serve, or its data were lost or set back"
HANGS_UP = Say("zookeeper_hangs_up", {"session_id": "0x7", "address": ADDRESS, "why": DOES_NOT_SERVE})


@pytest.fixture
def session() -> Session:
    """Connected at 100 s, by what was asked for at 99 s."""
    session = Session(TIMEOUT_S)
    session.step(SessionSignal.OPEN, 0.0)
    session.step(Connected(7, TIMEOUT_S, 99.0), 100.0)
    return session


def test_first_connection_begins_the_session_the_server_granted() -> None:
    session = Session(TIMEOUT_S)
    assert session.step(SessionSignal.OPEN, 0.0) == []
    assert (session.phase, session.state, session.session_id) == (SessionPhase.SEEKING, SessionState.LOST, 0)
    said = Say("session_connected", {"session_id": "0x7", "timeout_s": TIMEOUT_S}, is_warning=False)
    assert session.step(Connected(7, TIMEOUT_S, 99.0), 100.0) == [said, CONNECTED, Arm()]
    assert (session.session_id, session.timeout_s, session.state) == (7, TIMEOUT_S, SessionState.CONNECTED)
    assert session.lease_valid_until_s == 99 + LEASE_S, "counted from the asking"
    assert session.wake_s == 100 + PAUSE_S


def test_raised_timeout_is_trusted_for_half_and_logged_once() -> None:
    session = Session(5.0)
    session.step(SessionSignal.OPEN, 0.0)
    (_, said, *to_do) = session.step(Connected(7, TIMEOUT_S, 99.0), 100.0)
    assert isinstance(said, Say)
    assert (said.event, said.is_warning) == ("session_timeout_raised", True)
    assert (said.fields["asked_s"], said.fields["granted_s"]) == (5.0, TIMEOUT_S)
    assert to_do == [CONNECTED, Arm()]
    assert (session.lease_valid_until_s, session.wake_s) == (99 + TIMEOUT_S / 2, 100 + PAUSE_S)
    over_s = 99 + 2 * TIMEOUT_S
    assert (session.is_over(over_s - 0.001), session.is_over(over_s)) == (False, True)
    session.step(SessionSignal.DISCONNECTED, 101.0)
    (_, *to_do) = session.step(Connected(7, TIMEOUT_S, 101.0), 102.0)
    assert to_do == [CONNECTED, Arm()], "it is the same session"


def test_heartbeat_is_due_a_twelfth_of_the_timeout_after_the_last_one(session: Session) -> None:
    assert session.step(SessionSignal.TIME, 100.9) == []
    assert session.step(SessionSignal.TIME, 102.0) == [Heartbeat(7, 102.0)]
    assert session.wake_s == 103.0
    session.step(RequestAnswered(7, 102.0), 102.5)
    assert session.lease_valid_until_s == 102 + LEASE_S, "counted from the sending"
    assert session.wake_s == 103.0


def test_slow_answers_keep_the_lease_valid(session: Session) -> None:
    answer_s, in_progress = LEASE_S - 2 * PAUSE_S, [100.0]
    for now_s in range(101, 200):
        if in_progress[0] + answer_s <= now_s:
            session.step(RequestAnswered(7, in_progress.pop(0)), now_s)
        assert session.step(SessionSignal.TIME, now_s) == [Heartbeat(7, now_s)]
        in_progress.append(float(now_s))


def test_unanswered_heartbeat_does_not_extend_the_lease(session: Session) -> None:
    session.step(SessionSignal.TIME, 106.0)
    assert session.wake_s == session.lease_valid_until_s == 107.0


def test_answer_from_before_a_reconnection_counts_from_its_sending(session: Session) -> None:
    session.step(SessionSignal.TIME, 103.0)
    session.step(SessionSignal.DISCONNECTED, 103.5)
    session.step(Connected(7, TIMEOUT_S, 101.0), 104.0)
    session.step(RequestAnswered(7, 103.0), 106.5)
    assert session.lease_valid_until_s == 103 + LEASE_S
    session.step(RequestAnswered(7, 90.0), 106.6)
    assert session.lease_valid_until_s == 103 + LEASE_S, "an older one makes it no shorter"


def test_answers_of_another_session_or_without_connection_are_ignored(session: Session) -> None:
    session.step(RequestAnswered(8, 104.0), 104.5)
    session.step(SessionSignal.DISCONNECTED, 105.0)
    session.step(RequestAnswered(7, 104.0), 105.5)
    assert session.lease_valid_until_s == 107


def test_lapsed_lease_suspends_the_session_and_drops_the_connection(session: Session) -> None:
    session.step(SessionSignal.TIME, 102.0)
    assert session.why_not(106.9) is None
    assert session.why_not(107.0) == "no answer for too long: the lease lapsed"
    assert session.step(SessionSignal.TIME, 107.0) == [LAPSED, SUSPENDED, Drop()]
    assert (session.session_id, session.wake_s) == (7, None)
    assert session.step(SessionSignal.TIME, 108.0) == []
    assert session.step(SessionSignal.DISCONNECTED, 108.0) == [], "that is known"


def test_session_continues_on_another_connection(session: Session) -> None:
    assert session.step(SessionSignal.DISCONNECTED, 101.0) == [SUSPENDED]
    assert session.why_not(101.0) == "no connection: suspended"
    (_, *to_do) = session.step(Connected(7, TIMEOUT_S, 102.0), 103.0)
    assert to_do == [CONNECTED, Arm()]
    assert session.lease_valid_until_s == 110
    (_, *to_do) = session.step(Connected(7, TIMEOUT_S, 103.0), 104.0)
    assert to_do == [Arm()], "connected as before, but changes may have been missed"


def test_expired_session_is_replaced(session: Session) -> None:
    assert session.step(SessionSignal.EXPIRED, 103.0) == [LOST]
    assert (session.phase, session.session_id) == (SessionPhase.SEEKING, 0)
    assert session.lease_valid_until_s == float("-inf")
    assert session.step(SessionSignal.EXPIRED, 103.0) == []
    assert session.step(SessionSignal.DISCONNECTED, 103.0) == []
    (_, *to_do) = session.step(Connected(8, TIMEOUT_S, 103.5), 104.0)
    assert to_do == [CONNECTED, Arm()]
    assert session.why_not(104.0, 7) == "session 0x7 is not the current one any more"
    assert session.why_not(104.0, 8) is None


def test_grant_of_another_session_means_the_last_one_is_lost(session: Session) -> None:
    to_do = session.step(Connected(8, TIMEOUT_S, 90.0), 104.0)
    assert [each for each in to_do if isinstance(each, Announce)] == [LOST, CONNECTED]
    assert (session.session_id, session.lease_valid_until_s) == (8, 98.0), "the lease is that of the new one"


def test_server_that_hangs_up_is_the_obstacle_and_logged_once(session: Session) -> None:
    assert session.step(HungUp("stale:1"), 101.0) == []
    assert session.obstacle is None
    session.step(SessionSignal.DISCONNECTED, 102.0)
    assert session.step(HungUp(ADDRESS), 103.0) == [HANGS_UP]
    assert session.step(HungUp("other:1"), 104.0) == []
    assert session.obstacle == "other:1 hangs up: it does not serve, or its data were lost or set back"
    session.step(Connected(7, TIMEOUT_S, 104.5), 105.0)
    assert session.obstacle is None
    session.step(SessionSignal.DISCONNECTED, 106.0)
    assert session.step(HungUp(ADDRESS), 107.0) == [HANGS_UP]


def test_refusing_server_is_the_obstacle_and_the_session_is_kept(session: Session) -> None:
    session.step(SessionSignal.DISCONNECTED, 101.0)
    (said,) = session.step(ConnectionRefused(ADDRESS, "it does not take sasl:lm"), 1_000.0)
    assert said == Say(
        "zookeeper_refuses", {"session_id": "0x7", "address": ADDRESS, "why": "refuses: it does not take sasl:lm"}
    )
    assert session.obstacle == f"{ADDRESS} refuses: it does not take sasl:lm"
    assert session.step(ConnectionRefused(ADDRESS, "again"), 1_001.0) == []


def test_session_is_over_two_timeouts_after_the_last_answered_request(session: Session) -> None:
    session.step(SessionSignal.DISCONNECTED, 101.0)
    over_s = 99 + 2 * TIMEOUT_S
    assert not session.is_over(over_s - 0.001)
    assert session.is_over(over_s)
    assert session.step(HungUp(ADDRESS), over_s - 0.001) == [HANGS_UP]
    assert session.step(HungUp(ADDRESS), over_s + 0.001) == [GiveUp(99.0)], "it may be, if that server serves"
    session.step(SessionSignal.EXPIRED, over_s + 1)
    assert session.step(HungUp(ADDRESS), over_s + 2) == [], "there is none"


def test_session_given_up_is_counted_and_lost(session: Session) -> None:
    session.step(SessionSignal.DISCONNECTED, 101.0)
    said, lost = session.step(GivenUp(ADDRESS), 130.0)
    assert isinstance(said, Say)
    assert (said.event, said.fields["session_id"], said.fields["address"]) == ("session_given_up", "0x7", ADDRESS)
    assert lost == LOST
    assert (session.given_up, session.phase) == (1, SessionPhase.SEEKING)
    assert session.step(GivenUp(ADDRESS), 130.0) == [], "there is none any more"
    assert session.given_up == 1


def test_closed_session_ignores_events_until_reopened(session: Session) -> None:
    assert session.step(SessionSignal.CLOSE, 103.0) == [LOST]
    assert (session.phase, session.session_id, session.wake_s) == (SessionPhase.CLOSED, 0, None)
    for late in (
        Connected(7, TIMEOUT_S, 103.0),
        HungUp(ADDRESS),
        SessionSignal.DISCONNECTED,
        SessionSignal.TIME,
        SessionSignal.CLOSE,
    ):
        assert session.step(late, 104.0) == []
    assert session.why_not(104.0) == "no connection: lost"
    assert session.step(SessionSignal.OPEN, 105.0) == []
    assert session.step(SessionSignal.OPEN, 105.0) == []
    (_, *to_do) = session.step(Connected(8, TIMEOUT_S, 106.0), 106.0)
    assert to_do == [CONNECTED, Arm()]


def test_store_exposes_the_state_of_its_session(session: Session) -> None:
    session.step(SessionSignal.DISCONNECTED, 101.0)
    session.step(GivenUp(ADDRESS), 130.0)
    session.step(Connected(8, TIMEOUT_S, 131.0), 132.0)
    of_it = OfSession(session)
    assert (of_it.session_id, of_it.session_timeout_s, of_it.sessions_given_up) == (8, TIMEOUT_S, 1)
    assert (of_it.state, of_it.lease_valid_until_s) == (SessionState.CONNECTED, 131 + LEASE_S)
    session.step(SessionSignal.DISCONNECTED, 133.0)
    session.step(HungUp(ADDRESS), 133.0)
    assert (of_it.obstacle or "").startswith(ADDRESS)


@dataclass
class Servers:
    """Messages between a session's client and servers, at any time; those under way may be lost."""

    timeout_s: float
    session: Session = field(init=False)
    now_s: float = 0.0
    numbers: int = 0
    heard_at_s: dict[int, float] = field(default_factory=dict)
    """Time at which the servers last heard of each session that they have not ended."""
    newest_s: dict[int, float] = field(default_factory=dict)
    """Time at which the newest answered request of each was sent."""
    in_progress: list[Event] = field(default_factory=list)
    announced: list[SessionState] = field(default_factory=lambda: [SessionState.LOST])
    beats: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = Session(self.timeout_s)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for number, heard_at_s in list(self.heard_at_s.items()):
            if self.now_s >= heard_at_s + self.timeout_s:
                del self.heard_at_s[number]

    def shake_hands(self, asked_ago_s: float) -> None:
        """A handshake that was asked for a while ago is answered: with the session, if they have it still."""
        self.tell(SessionSignal.OPEN)
        if self.session.state is SessionState.CONNECTED:
            return
        number = self.session.session_id
        if number not in self.heard_at_s:
            self.numbers += 1
            number = self.numbers
        self.heard_at_s[number] = self.now_s
        self.tell(Connected(number, self.timeout_s, self.now_s - asked_ago_s))

    def tell(self, event: Event) -> None:
        match event:
            case Connected(number, _, asked_at_s):
                self.newest_s[number] = max(asked_at_s, self.newest_s.get(number, asked_at_s))
            case RequestAnswered(number, sent_at_s) if self.session.state is SessionState.CONNECTED:
                self.newest_s[number] = max(sent_at_s, self.newest_s[number])
        for action in self.session.step(event, self.now_s):
            self.do(action)

    def do(self, action: Action) -> None:
        match action:
            case Announce(state):
                assert state is not self.announced[-1], "only what is another"
                self.announced.append(state)
            case Heartbeat(number, sent_at_s):
                assert number == self.session.session_id
                assert sent_at_s == self.now_s
                self.beats.append((number, sent_at_s))
            case Drop():
                assert self.session.state is SessionState.SUSPENDED
            case GiveUp():
                assert self.session.session_id
                assert self.now_s >= self.newest_s[self.session.session_id] + 2 * self.timeout_s - 1e-6, (
                    "certainly over"
                )

    def beat(self, *, is_heard: bool) -> None:
        """Time passes until the session wants to be looked at; what becomes of its heartbeat is then under way."""
        self.pass_time(max(0.0, (self.session.wake_s or 0.0) - self.now_s))
        self.tell(SessionSignal.TIME)
        for number, sent_at_s in self.beats:
            if is_heard and number in self.heard_at_s:
                self.heard_at_s[number] = self.now_s
                self.in_progress.append(RequestAnswered(number, sent_at_s))
        self.beats.clear()

    def arrive(self, which: int) -> None:
        if self.in_progress:
            self.tell(self.in_progress.pop(which % len(self.in_progress)))

    def check(self) -> None:
        session = self.session
        if self.now_s < session.lease_valid_until_s:
            heard_at_s = self.heard_at_s.get(session.session_id)
            assert heard_at_s is not None, "the servers have ended a session that is trusted"
            assert session.lease_valid_until_s <= heard_at_s + LEASE_S, "nor will they before the lease lapses"
            assert not session.is_over(self.now_s)
        if session.why_not(self.now_s) is None:
            assert self.now_s < session.lease_valid_until_s
            assert session.state is SessionState.CONNECTED
        assert session.state is self.announced[-1]
        assert (session.session_id == 0) == (session.state is SessionState.LOST)
        assert (session.wake_s is None) == (session.state is not SessionState.CONNECTED)
        assert session.wake_s is None or session.wake_s <= session.lease_valid_until_s


DOINGS = st.one_of(
    st.tuples(st.just("time"), st.floats(0.0, 5.0)),
    st.tuples(st.just("beat"), st.booleans()),
    st.tuples(st.just("arrive"), st.integers(0, 2)),
    st.tuples(st.just("shake hands"), st.floats(0.0, 3.0)),
    st.tuples(
        st.just("tell"),
        st.sampled_from(
            [
                SessionSignal.DISCONNECTED,
                SessionSignal.EXPIRED,
                SessionSignal.CLOSE,
                HungUp("a"),
                ConnectionRefused("a", "so"),
                GivenUp("a"),
            ]
        ),
    ),
)


@given(doings=st.lists(DOINGS, min_size=20, max_size=60))
def test_session_is_trusted_only_while_the_servers_have_it(doings: list[tuple[str, float]]) -> None:
    servers = Servers(TIMEOUT_S)
    for what, value in doings:
        match what:
            case "time":
                servers.pass_time(value)
            case "beat":
                servers.beat(is_heard=bool(value))
            case "arrive":
                servers.arrive(int(value))
            case "shake hands":
                servers.shake_hands(value)
            case _:
                servers.tell(value)  # type: ignore[arg-type]  # an event
        servers.check()
