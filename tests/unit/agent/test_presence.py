from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.agent import presence as module
from loadmanager.agent.grants import Leases
from loadmanager.agent.presence import (
    Action,
    CheckRegistration,
    CloseTopics,
    CreateRegistration,
    DeleteRegistration,
    Died,
    Event,
    Forget,
    HeldRegistration,
    Presence,
    PresencePhase,
    PresenceSignal,
    Read,
    Register,
    RegistrationCreator,
    Withdraw,
    Work,
    WorkFailed,
    Wrote,
    ZnodeRead,
)
from loadmanager.core.protocol.state_machine import Say
from loadmanager.store.metadata_store import ANY_VERSION, Znode

OURS, THEIRS = 7, 8
PROCESS, RESTARTED = (100, 1), (101, 2)
LEASE_MS = 3000
LEASE_S = 3.03
NOW_S = 1000.0
LOOK = CheckRegistration(PROCESS, OURS, is_connected=True)
FORMER = RegistrationCreator("former", is_over=True, longest_lease_ms=LEASE_MS, url=None)
OTHER = RegistrationCreator("other", is_over=False, longest_lease_ms=LEASE_MS, url="http://other:1")


def a_znode(session_id: int = OURS, czxid: int = 50, version: int = 0) -> Znode:
    return Znode("/z", b"", version, czxid, czxid, session_id)


def without_words(to_do: list[Action]) -> list[Action]:
    return [each for each in to_do if not isinstance(each, Say)]


def words(to_do: list[Action]) -> list[str]:
    return [each.event for each in to_do if isinstance(each, Say)]


@pytest.fixture
def absent() -> Presence:
    return Presence("own", Leases(LEASE_MS))


@pytest.fixture
def registered(absent: Presence) -> Presence:
    absent.step(LOOK, NOW_S)
    absent.step(ZnodeRead(a_znode(), OURS), NOW_S)
    return absent


@pytest.fixture
def withdrawing(registered: Presence) -> Presence:
    """Its last lease lapses `LEASE_S` after now."""
    registered.grant(NOW_S, OURS, NOW_S + 60)
    registered.step(Withdraw("stopped"), NOW_S)
    return registered


def test_serving_broker_is_registered_in_this_session(absent: Presence) -> None:
    assert absent.wake_s <= NOW_S, "at once"
    assert absent.step(LOOK, NOW_S) == [Read()]
    assert absent.step(ZnodeRead(None, OURS), NOW_S) == [CreateRegistration(OURS)]
    assert absent.step(Wrote(50, 1), NOW_S) == []
    assert absent.registered is None
    said = Say("registered", {"incarnation": 50, "pid": 100}, is_warning=False)
    assert absent.step(ZnodeRead(a_znode(), OURS), NOW_S) == [said, Register(50)]
    assert absent.phase is PresencePhase.REGISTERED
    assert absent.registered == HeldRegistration(PROCESS, OURS, 50, 0)
    assert absent.wake_s == NOW_S + 5


@pytest.mark.parametrize(
    "look", [CheckRegistration(None, OURS, is_connected=True), CheckRegistration(PROCESS, OURS, is_connected=False)]
)
def test_no_request_while_broker_or_store_is_down(absent: Presence, look: CheckRegistration) -> None:
    assert absent.step(look, NOW_S) == []
    assert absent.wake_s == NOW_S + 5


def test_znode_read_in_another_session_is_read_again_at_once(absent: Presence) -> None:
    absent.step(LOOK, NOW_S)
    assert absent.step(ZnodeRead(a_znode(THEIRS), THEIRS), NOW_S) == []
    assert (absent.phase, absent.wake_s) == (PresencePhase.ABSENT, NOW_S)


def test_incarnation_and_leases_exist_only_in_the_own_session(registered: Presence) -> None:
    assert registered.incarnation(OURS) == 50
    assert registered.incarnation(THEIRS) is None
    assert registered.incarnation(0) is None
    assert registered.grant(NOW_S, OURS, NOW_S + 1) == 1000
    assert registered.grant(NOW_S, THEIRS, NOW_S + 1) == 0
    assert registered.step(PresenceSignal.END, NOW_S) == []
    assert registered.incarnation(OURS) is None
    assert registered.grant(NOW_S, OURS, NOW_S + 1) == 0
    assert registered.phase is PresencePhase.REGISTERED


def test_registration_is_checked_every_five_seconds(registered: Presence) -> None:
    assert registered.step(LOOK, NOW_S + 5) == [Read()]
    assert registered.step(ZnodeRead(a_znode(), OURS), NOW_S + 5) == []
    assert registered.wake_s == NOW_S + 10
    assert not registered.is_overwritten


def test_record_overwritten_by_another_client_must_be_written_again(registered: Presence) -> None:
    registered.step(Wrote(50, 1), NOW_S)
    registered.step(LOOK, NOW_S)
    assert registered.step(ZnodeRead(a_znode(version=1), OURS), NOW_S) == []
    registered.step(LOOK, NOW_S)
    assert registered.step(ZnodeRead(a_znode(version=2), OURS), NOW_S) == [
        Say("record_written_by_another", {"version": 2})
    ]
    assert registered.is_overwritten
    assert registered.registered == HeldRegistration(PROCESS, OURS, 50, 2)
    registered.step(Wrote(49, 9), NOW_S)
    assert registered.is_overwritten, "that was another registration"
    registered.step(Wrote(50, 3), NOW_S)
    assert not registered.is_overwritten
    assert registered.registered == HeldRegistration(PROCESS, OURS, 50, 3)


def test_registration_is_lost_with_its_session_and_recreated(registered: Presence) -> None:
    to_do = registered.step(CheckRegistration(PROCESS, THEIRS, is_connected=True), NOW_S)
    lost = Say("registration_lost", {"reason": "session_lost", "incarnation": 50})
    assert to_do == [lost, CloseTopics(), Forget("session_lost"), Read()]
    assert registered.phase is PresencePhase.ABSENT
    assert registered.step(ZnodeRead(None, THEIRS), NOW_S) == [CreateRegistration(THEIRS)]


def test_nothing_is_read_without_a_session(registered: Presence) -> None:
    to_do = registered.step(CheckRegistration(PROCESS, 0, is_connected=False), NOW_S)
    assert without_words(to_do) == [CloseTopics(), Forget("session_lost")]


@pytest.mark.parametrize("instead", [None, a_znode(THEIRS, czxid=51)])
def test_vanished_registration_is_lost(registered: Presence, instead: Znode | None) -> None:
    registered.step(LOOK, NOW_S)
    to_do = registered.step(ZnodeRead(instead, OURS), NOW_S)
    assert to_do[:3] == [
        Say("registration_lost", {"reason": "znode_vanished", "incarnation": 50}),
        CloseTopics(),
        Forget("znode_vanished"),
    ]
    assert to_do[3:] == ([CreateRegistration(OURS)] if instead is None else [])


def test_another_znode_of_the_own_session_is_another_registration(registered: Presence) -> None:
    registered.step(LOOK, NOW_S + 1)
    anew = a_znode(czxid=51)
    assert without_words(registered.step(ZnodeRead(anew, OURS), NOW_S + 1)) == [
        CloseTopics(),
        Forget("znode_vanished"),
        Register(51),
    ]
    assert (registered.incarnation(OURS), registered.wake_s) == (51, NOW_S + 6)


@pytest.mark.parametrize(("process", "reason"), [(None, "broker_gone"), (RESTARTED, "broker_restarted")])
def test_lost_broker_is_withdrawn_first(registered: Presence, process: tuple[int, int] | None, reason: str) -> None:
    to_do = registered.step(CheckRegistration(process, OURS, is_connected=False), NOW_S)
    assert to_do == [Say("withdrawing", {"reason": reason, "incarnation": 50}), Forget(reason), Read()]
    assert registered.phase is PresencePhase.WITHDRAWING
    assert registered.registered is None
    assert registered.incarnation(OURS) is None


def test_withdrawal_happens_once(registered: Presence) -> None:
    assert without_words(registered.step(Withdraw("stopped"), NOW_S)) == [Forget("stopped")]
    assert registered.step(Withdraw("stopped"), NOW_S) == []
    assert without_words(registered.step(CheckRegistration(None, OURS, is_connected=True), NOW_S)) == [Read()]


def test_znode_is_deleted_at_its_version_once_the_last_lease_lapsed(withdrawing: Presence) -> None:
    withdrawing.step(LOOK, NOW_S + 1)
    assert withdrawing.step(ZnodeRead(a_znode(), OURS), NOW_S + 1) == []
    assert withdrawing.wake_s == pytest.approx(NOW_S + LEASE_S)
    withdrawing.step(LOOK, NOW_S + LEASE_S)
    assert without_words(withdrawing.step(ZnodeRead(a_znode(version=3), OURS), NOW_S + LEASE_S)) == [
        DeleteRegistration(3, OURS)
    ]
    gone = Say("deregistered", {"incarnation": 50}, is_warning=False)
    assert withdrawing.step(PresenceSignal.DELETED, NOW_S + 4) == [gone]
    assert (withdrawing.phase, withdrawing.wake_s) == (PresencePhase.ABSENT, NOW_S + 4)


def test_znode_is_deleted_at_once_when_the_broker_closed_everything(withdrawing: Presence) -> None:
    withdrawing.step(PresenceSignal.CLOSED_EVERYTHING, NOW_S)
    withdrawing.step(LOOK, NOW_S)
    assert withdrawing.step(ZnodeRead(a_znode(), OURS), NOW_S) == [DeleteRegistration(0, OURS)]


def test_lease_of_an_exited_process_is_not_waited_for(registered: Presence) -> None:
    registered.grant(NOW_S, OURS, NOW_S + 60, PROCESS)
    said = Say("withdrawing", {"reason": "broker_died", "incarnation": 50})
    assert registered.step(Died(PROCESS), NOW_S) == [said, Forget("broker_died")]
    assert registered.grant(NOW_S, OURS, NOW_S + 60, PROCESS) == 0
    registered.step(CheckRegistration(None, OURS, is_connected=True), NOW_S)
    assert registered.step(ZnodeRead(a_znode(), OURS), NOW_S) == [DeleteRegistration(0, OURS)]


@pytest.mark.parametrize("holder", [None, RESTARTED], ids=["nobody knows whose", "another's"])
def test_foreign_lease_is_waited_for(registered: Presence, holder: tuple[int, int] | None) -> None:
    registered.grant(NOW_S, OURS, NOW_S + 60, PROCESS)
    registered.grant(NOW_S, OURS, NOW_S + 60, holder)
    registered.step(Died(PROCESS), NOW_S)
    registered.step(CheckRegistration(None, OURS, is_connected=True), NOW_S)
    assert registered.step(ZnodeRead(a_znode(), OURS), NOW_S) == []
    assert registered.wake_s == pytest.approx(NOW_S + LEASE_S)


def test_exit_of_another_process_withdraws_nothing(registered: Presence) -> None:
    assert registered.step(Died(RESTARTED), NOW_S) == []
    assert registered.phase is PresencePhase.REGISTERED
    assert Presence("own", Leases(LEASE_MS)).step(Died(PROCESS), NOW_S) == []


def test_exit_during_withdrawal_ends_the_lease_at_once(registered: Presence) -> None:
    registered.grant(NOW_S, OURS, NOW_S + 60, PROCESS)
    registered.step(CheckRegistration(None, OURS, is_connected=True), NOW_S)
    assert registered.step(ZnodeRead(a_znode(), OURS), NOW_S) == []
    assert registered.step(Died(PROCESS), NOW_S) == []
    registered.step(CheckRegistration(None, OURS, is_connected=True), NOW_S)
    assert registered.step(ZnodeRead(a_znode(), OURS), NOW_S) == [DeleteRegistration(0, OURS)]


def test_closed_everything_does_not_shorten_a_later_lease(registered: Presence) -> None:
    registered.step(PresenceSignal.CLOSED_EVERYTHING, NOW_S)
    registered.grant(NOW_S, OURS, NOW_S + 60)
    registered.step(Withdraw("stopped"), NOW_S)
    registered.step(LOOK, NOW_S)
    assert registered.step(ZnodeRead(a_znode(), OURS), NOW_S) == []


@pytest.mark.parametrize("instead", [None, a_znode(THEIRS, czxid=51)])
def test_unknown_deletion_is_found_done(withdrawing: Presence, instead: Znode | None) -> None:
    withdrawing.step(CheckRegistration(None, OURS, is_connected=True), NOW_S + 1)
    assert words(withdrawing.step(ZnodeRead(instead, OURS), NOW_S + 1)) == ["deregistered"]
    assert (withdrawing.phase, withdrawing.wake_s) == (PresencePhase.ABSENT, NOW_S + 6), "nobody is to be registered"


@pytest.mark.parametrize("instead", [None, a_znode(THEIRS, czxid=51)])
def test_znode_after_an_unknown_deletion(withdrawing: Presence, instead: Znode | None) -> None:
    withdrawing.step(CheckRegistration(RESTARTED, OURS, is_connected=True), NOW_S)
    to_do = withdrawing.step(ZnodeRead(instead, OURS), NOW_S)
    assert without_words(to_do) == ([CreateRegistration(OURS)] if instead is None else [])


def found(presence: Presence, znode: Znode, creator: RegistrationCreator | None, now_s: float = NOW_S) -> list[Action]:
    presence.step(LOOK, now_s)
    return presence.step(ZnodeRead(znode, OURS, creator), now_s)


@pytest.mark.parametrize("creator", [FORMER, replace(FORMER, life="own", is_over=False)], ids=["former", "given up"])
def test_leftover_stands_until_its_leases_lapse(absent: Presence, creator: RegistrationCreator) -> None:
    leftover = a_znode(THEIRS, version=4)
    said = Say("leftover_znode", {"incarnation": 50, "longest_lease_ms": LEASE_MS}, is_warning=False)
    assert found(absent, leftover, creator) == [said]
    assert absent.wake_s == pytest.approx(NOW_S + LEASE_S)
    absent.step(LOOK, NOW_S + 1)
    assert absent.step(ZnodeRead(leftover, OURS), NOW_S + 1) == [], "it is known"
    absent.step(LOOK, NOW_S + LEASE_S)
    assert absent.step(ZnodeRead(leftover, OURS), NOW_S + LEASE_S) == [DeleteRegistration(4, OURS)]
    assert absent.step(PresenceSignal.DELETED, NOW_S + LEASE_S) == []
    assert absent.wake_s == NOW_S + LEASE_S


def test_leftover_with_lapsed_leases_is_deleted_at_once(absent: Presence) -> None:
    leftover = a_znode(THEIRS, version=4)
    assert without_words(found(absent, leftover, replace(FORMER, longest_lease_ms=0))) == [DeleteRegistration(4, OURS)]


def test_leftover_seen_before_a_registration_is_identified_again(absent: Presence) -> None:
    leftover = a_znode(THEIRS)
    found(absent, leftover, FORMER)
    absent.step(ZnodeRead(a_znode(czxid=51), OURS), NOW_S)
    assert words(absent.step(ZnodeRead(leftover, OURS, FORMER), NOW_S)) == ["registration_lost", "leftover_znode"]


def test_closed_everything_does_not_shorten_leases_of_a_leftover(withdrawing: Presence) -> None:
    withdrawing.step(PresenceSignal.CLOSED_EVERYTHING, NOW_S)
    withdrawing.step(CheckRegistration(PROCESS, THEIRS, is_connected=True), NOW_S)
    assert without_words(withdrawing.step(ZnodeRead(a_znode(), THEIRS, FORMER), NOW_S)) == []
    assert withdrawing.wake_s == pytest.approx(NOW_S + LEASE_S)


def test_record_of_a_live_agent_is_kept_and_reported_once(absent: Presence) -> None:
    theirs = a_znode(THEIRS)
    in_use = Say("broker_id_in_use", {"agent_url": "http://other:1", "life": "other", "incarnation": 50})
    assert found(absent, theirs, OTHER) == [in_use]
    assert absent.wake_s == NOW_S + 0.5
    assert found(absent, theirs, OTHER, NOW_S + 100) == []
    assert words(found(absent, a_znode(THEIRS, czxid=51), OTHER)) == ["broker_id_in_use"]


@pytest.mark.parametrize("creator", [None, replace(FORMER, longest_lease_ms=None)], ids=["unreadable", "no lease"])
def test_incomplete_record_is_left_to_its_session(absent: Presence, creator: RegistrationCreator | None) -> None:
    assert found(absent, a_znode(THEIRS), creator) == []
    assert absent.wake_s == NOW_S + 0.5
    assert found(absent, a_znode(THEIRS), creator, NOW_S + 100) == []


def test_failure_is_retried_soon_and_logged_once_until_success(absent: Presence) -> None:
    delayed = Say("registration_delayed", {"phase": PresencePhase.ABSENT, "error": "no"})
    for said in ([delayed], []):
        absent.step(LOOK, NOW_S)
        assert absent.step(WorkFailed(OSError("no")), NOW_S) == said
        assert absent.wake_s == NOW_S + 0.5
    absent.step(LOOK, NOW_S)
    absent.step(ZnodeRead(a_znode(), OURS), NOW_S)
    absent.step(LOOK, NOW_S)
    assert words(absent.step(WorkFailed(OSError("no")), NOW_S)) == ["registration_delayed"]


def test_session_may_end_once_deregistered_or_after_the_last_lease(withdrawing: Presence) -> None:
    assert Presence("own", Leases(LEASE_MS)).may_go(NOW_S)
    assert not withdrawing.may_go(NOW_S + 1000)
    withdrawing.step(PresenceSignal.LEAVE, NOW_S)
    assert not withdrawing.may_go(NOW_S + LEASE_S + 4.9)
    assert withdrawing.may_go(NOW_S + LEASE_S + 5.1)
    withdrawing.step(PresenceSignal.LEAVE, NOW_S + 100)
    assert not withdrawing.may_go(NOW_S + 104.9)
    assert withdrawing.may_go(NOW_S + 105)
    withdrawing.step(LOOK, NOW_S + 100)
    withdrawing.step(PresenceSignal.DELETED, NOW_S + 100)
    assert withdrawing.may_go(NOW_S + 100)


Happening = tuple[Any, ...]
"""A method of `Place`, and how it is called."""


def read_transitions() -> Iterator[tuple[str, str]]:
    """The arrows between the phases in the table of the module."""
    assert module.__doc__ is not None
    rows = module.__doc__.partition("    phase         event")[2].partition("\n\n")[0].splitlines()[2:]
    phase = ""
    for row in rows:
        phase = row[4:18].strip() or phase
        _, arrow, following = row.partition("─▶ ")
        if arrow:
            yield "REGISTERED" if phase == "any" else phase, following.strip()


def test_transitions_match_the_table() -> None:
    registering = (LOOK, ZnodeRead(a_znode(), OURS))
    seen = set()
    for events in ((ZnodeRead(None, OURS),), (Withdraw("test"), PresenceSignal.DELETED), (Died(PROCESS),)):
        agent = Presence("own", Leases(LEASE_MS))
        for event in (*registering, *events):
            before = agent.phase
            agent.step(event, NOW_S)
            seen.add((before.name, agent.phase.name))
    assert {(before, after) for before, after in seen if before != after} == set(read_transitions())


@dataclass
class Place:
    """A store with one znode, and the agents that make it: ours, its former life, and another that lives."""

    presence: Presence = field(default_factory=lambda: Presence("own", Leases(LEASE_MS)))
    now_s: float = NOW_S
    zxid: int = 50
    session_id: int = 1
    process: tuple[int, int] | None = PROCESS
    """The broker's process as the agent sees it."""
    living: tuple[int, int] = PROCESS
    """The one that there is."""
    znode: Znode | None = None
    creator: RegistrationCreator = OTHER
    work: Work | None = None
    granted: int | None = None
    """The incarnation that grants are for."""
    served_until_s: dict[tuple[str, tuple[int, int] | None], float] = field(default_factory=dict)
    """End of the last lease that a registration gave to a process, by a slow clock; None: to any process."""
    has_closed: bool = False
    is_ending: bool = False

    def tell(self, event: Event) -> None:
        self.work = None if isinstance(event, CheckRegistration) else self.work
        for action in self.presence.step(event, self.now_s):
            match action:
                case Register(incarnation):
                    assert self.granted is None
                    self.granted = incarnation
                case Forget():
                    assert self.granted is not None or self.presence.phase is PresencePhase.ABSENT
                    self.granted = None
                case Read() | CreateRegistration() | DeleteRegistration():
                    assert self.work is None, "one at a time"
                    self.work = action

    def look(self) -> None:
        self.tell(CheckRegistration(self.process, self.session_id, is_connected=True))

    def go_round(self, unanswered: int, at: int, meanwhile: Happening) -> None:
        """A look, and the work that comes of it; one may go without an answer, and something happen before another."""
        self.look()
        for number in range(9):
            if number == at:
                self.happen(*meanwhile)
            self.do(is_answered=number != unanswered)

    def happen(self, to: Callable[..., None], *how: object) -> None:
        to(self, *how)
        self.check()

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def do(self, *, is_answered: bool) -> None:
        """The work there is is done; the answer may get lost."""
        work, self.work = self.work, None
        match work:
            case None:
                return
            case Read():
                event: Event = ZnodeRead(self.znode, self.session_id, self.creator)
            case CreateRegistration(session_id):
                event = WorkFailed(OSError("refused"))
                if self.znode is None and session_id == self.session_id:
                    own = RegistrationCreator("own", is_over=False, longest_lease_ms=LEASE_MS, url=None)
                    self.make(own, session_id)
                    event = ZnodeRead(self.znode, session_id, own)
            case DeleteRegistration(version, session_id):
                event = self.delete(version, session_id)
        self.tell(event if is_answered else WorkFailed(OSError("no answer")))

    def delete(self, version: int, session_id: int) -> Event:
        if self.znode is None:
            return PresenceSignal.DELETED
        if session_id != self.session_id or version not in {ANY_VERSION, self.znode.version}:
            return WorkFailed(OSError("refused"))
        assert self.creator is not OTHER, "a living other's record is never deleted"
        is_served = any(
            life == self.creator.life and self.now_s < until_s for (life, _), until_s in self.served_until_s.items()
        )
        assert not is_served or self.has_closed, "never while a lease may be valid"
        self.znode = None
        return PresenceSignal.DELETED

    def make(self, creator: RegistrationCreator, session_id: int) -> None:
        self.zxid += 1
        # Versions are unlike each other's, as those of long-lived records are: a new one may be at any.
        self.znode, self.creator = Znode("/z", b"", self.zxid * 10, self.zxid, self.zxid, session_id), creator

    def happen_to_the_znode(self, what: str) -> None:
        znode = self.znode
        match what:
            case "another took the place":
                self.make(OTHER, 1000)
            case "a former life was here":
                self.make(FORMER, 1001)
                self.served_until_s["former", None] = self.now_s + LEASE_MS / 1000
            case "it went with its session" if znode is not None and znode.ephemeral_owner >= 1000:
                self.znode = None
            case "an operator deleted it":
                self.znode = None
            case "an operator wrote it" if znode is not None:
                self.znode = replace(znode, version=znode.version + 1)

    def happen_to_the_session(self, what: str) -> None:
        if what == "it is over" and self.znode is not None and self.znode.ephemeral_owner == self.session_id:
            self.znode = None
        self.session_id += 1

    def happen_to_the_broker(self, what: str) -> None:
        match what:
            case "it asks":
                self.ask(self.living)
            case "somebody asks":
                self.ask(None)
            case "it dies":
                self.served_until_s.pop(("own", self.living), None)
                dead, self.living = self.living, (self.living[0] + 1, self.living[1] + 1)
                self.tell(Died(dead))
            case "it is seen":
                self.process = self.living
            case "it closed everything" if self.presence.phase is PresencePhase.WITHDRAWING:
                self.has_closed = True
                self.tell(PresenceSignal.CLOSED_EVERYTHING)
            case "it is withdrawn":
                self.tell(Withdraw("stopped"))
            case "it restarts":
                self.process = self.living = (self.living[0] + 1, self.living[1] + 1)
            case "it goes":
                self.process = None
            case "its agent is about to end":
                self.is_ending = True
                self.tell(PresenceSignal.END)

    def ask(self, holder: tuple[int, int] | None) -> None:
        lease_s = self.presence.grant(self.now_s, self.session_id, self.now_s + 60, holder) / 1000
        if lease_s:
            assert self.presence.registered is not None
            assert self.presence.registered.session_id == self.session_id
            assert not self.is_ending
            self.served_until_s["own", holder], self.has_closed = self.now_s + lease_s, False

    def check(self) -> None:
        incarnation = self.presence.incarnation(self.session_id)
        assert incarnation is None or incarnation == self.granted
        assert (self.granted is not None) == (self.presence.phase is PresencePhase.REGISTERED)


TO_THE_ZNODE = st.sampled_from(
    [
        "another took the place",
        "a former life was here",
        "it went with its session",
        "an operator deleted it",
        "an operator wrote it",
    ]
)
TO_THE_SESSION = st.sampled_from(["it is over", "it is given up"])
TO_THE_BROKER = st.sampled_from(
    ["it closed everything", "it is withdrawn", "it restarts", "it goes", "it dies", "it is seen"]
)
HAPPENINGS = st.one_of(
    st.tuples(st.just(Place.pass_time), st.sampled_from([0.1, 1.0, 2.9, 3.1])),
    st.tuples(st.just(Place.happen_to_the_broker), st.sampled_from(["it asks", "it asks", "somebody asks"])),
    st.tuples(st.just(Place.happen_to_the_broker), TO_THE_BROKER),
    st.tuples(st.just(Place.happen_to_the_znode), TO_THE_ZNODE),
    st.tuples(st.just(Place.happen_to_the_session), TO_THE_SESSION),
)
ROUNDS = st.tuples(st.integers(0, 12), st.integers(0, 12), HAPPENINGS, HAPPENINGS)


@given(rounds=st.lists(ROUNDS, min_size=8, max_size=30), ends_after=st.integers(0, 40))
def test_no_live_record_is_deleted(rounds: list[tuple[int, int, Happening, Happening]], ends_after: int) -> None:
    place = Place()
    for number, (unanswered, at, meanwhile, afterwards) in enumerate(rounds):
        if number == ends_after:
            place.happen_to_the_broker("its agent is about to end")
        place.go_round(unanswered, at, meanwhile)
        place.happen(*afterwards)
