from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.broker import contract
from loadmanager.broker.contract import (
    TRIES_TO_ASK,
    Action,
    AskLease,
    AskOwnership,
    Close,
    CloseReason,
    Confirm,
    Contract,
    ContractSignal,
    Deny,
    Event,
    Leased,
    Leave,
    NotClosed,
    NotOpened,
    Open,
    Opened,
    OwnershipAnswered,
    OwnershipUnanswered,
    Refusal,
    Refuse,
    Serve,
    TopicClosed,
    TopicPhase,
    TopicWanted,
    UnloadWanted,
)

T, U = "persistent://t/ns/t", "persistent://t/ns/u"


def phase_of(of: Contract, topic: str) -> TopicPhase | None:
    held = of._held.get(topic)
    return None if held is None else held.phase


BUNDLE = "t/ns/0x00000000_0xffffffff"


def unload(*topics: str, number: int = 1) -> UnloadWanted:
    return UnloadWanted(number, BUNDLE, topics, "b2:8080")


class LeasedContract:
    """A contract at a time of its own, with a lease of 3 s in incarnation 7."""

    def __init__(self) -> None:
        self.contract = Contract()
        self.now_s = 100.0
        assert self.step(ContractSignal.TIME) == [AskLease(2.0)]
        assert self.step(Leased(7, 3.0)) == []

    def step(self, event: Event) -> list[Action]:
        return self.contract.step(event, self.now_s)

    def open(self, *topics: str) -> None:
        for topic in topics:
            assert self.step(TopicWanted(topic)) == [AskOwnership(topic)]
            assert self.step(OwnershipAnswered(topic, is_owned=True, incarnation=7)) == [Open(topic, 7)]
            assert self.step(Opened(topic)) == [Serve(topic)]

    def lease(self, incarnation: int = 7, after_s: float = 0.0) -> list[Action]:
        """Asked for now, and answered so much later."""
        self.contract._ask_s = self.now_s
        assert AskLease(1.5) in self.step(ContractSignal.TIME)
        self.now_s += after_s
        return self.step(Leased(incarnation, 3.0))

    def serves(self, topic: str = T) -> bool:
        return self.contract.serves(topic, self.now_s)


@pytest.fixture
def broker() -> LeasedContract:
    return LeasedContract()


# The lease


def test_nothing_is_opened_before_the_first_lease() -> None:
    contract = Contract()
    assert contract.wake_s == -math.inf
    assert contract.step(TopicWanted(T), 5.0) == [Refuse(T, Refusal.NO_LEASE)]
    assert not contract.has_lease(5.0)


def test_lease_counts_from_its_request(broker: LeasedContract) -> None:
    broker.open(T)
    broker.lease(after_s=2.5)
    assert broker.contract.lease_until_s == 103.0
    broker.now_s = 102.999
    assert broker.serves()
    broker.now_s = 103.0
    assert not broker.serves()


def test_lease_is_renewed_every_third_by_one_request_at_a_time(broker: LeasedContract) -> None:
    assert broker.contract.wake_s == 101.0
    assert broker.step(ContractSignal.TIME) == []
    broker.now_s = 101.0
    assert broker.step(ContractSignal.TIME) == [AskLease(1.5)]
    assert broker.contract.wake_s == 103.0, "the moment at which the lease lapses"
    assert broker.step(ContractSignal.TIME) == []


def test_unanswered_renewal_is_retried_and_the_lease_kept(broker: LeasedContract) -> None:
    broker.open(T)
    broker.now_s = 101.0
    broker.step(ContractSignal.TIME)
    broker.now_s = 101.05
    assert broker.step(ContractSignal.UNLEASED) == []
    assert broker.serves()
    assert broker.contract.wake_s == 101.1
    broker.now_s = 101.1
    assert broker.step(ContractSignal.TIME) == [AskLease(1.5)]
    broker.now_s = 102.5
    assert broker.step(ContractSignal.UNLEASED) == [], "it took longer than the pause"
    assert broker.contract.wake_s == pytest.approx(102.52)


def test_shorter_lease_does_not_shorten_the_current_one(broker: LeasedContract) -> None:
    broker.now_s = 101.0
    broker.step(Leased(7, 0.5))
    assert broker.contract.lease_until_s == 103.0


def test_unrequested_lease_counts_from_its_arrival(broker: LeasedContract) -> None:
    broker.now_s = 101.0
    broker.step(Leased(7, 3.0))
    assert broker.contract.lease_until_s == 104.0


def available_until_s(broker: LeasedContract, *namespaces: str) -> float:
    broker.contract._ask_s = broker.now_s
    broker.step(ContractSignal.TIME)
    broker.step(Leased(7, 3.0, frozenset(namespaces)))
    return broker.contract.lease_until_s


def test_open_topics_of_an_available_namespace_outlast_the_lease(broker: LeasedContract) -> None:
    other = "persistent://t/others/t"
    broker.open(T, other)
    broker.step(TopicWanted(U))
    broker.now_s = available_until_s(broker, "t/ns")
    assert broker.step(ContractSignal.TIME)[0] == Close(other, CloseReason.LAPSED)
    assert (broker.serves(), broker.serves(other)) == (True, False)
    assert broker.step(TopicWanted(T)) == [Serve(T)]
    assert broker.step(OwnershipAnswered(U, is_owned=True, incarnation=7)) == [Refuse(U, Refusal.NO_LEASE)]
    broker.step(ContractSignal.UNLEASED)
    broker.now_s += 0.1
    assert broker.lease() == [Close(T, CloseReason.LAPSED)], "its record may have changed"
    assert not broker.contract.has_lease(broker.now_s)
    broker.step(TopicClosed(other))
    broker.step(TopicClosed(T))
    assert broker.contract.has_lease(broker.now_s)
    assert broker.step(TopicWanted(T)) == [AskOwnership(T)]


@pytest.mark.parametrize("asked_after_s", [-0.01, 0.0, 0.09])
def test_rest_of_a_lapsed_lease_closes_no_available_topic(broker: LeasedContract, asked_after_s: float) -> None:
    broker.open(T)
    lapses_s = available_until_s(broker, "t/ns")
    broker.contract._ask_s = broker.now_s = lapses_s + asked_after_s
    assert broker.step(ContractSignal.TIME) == [AskLease(1.5)]
    broker.now_s = lapses_s + 0.095
    assert broker.step(Leased(7, 0.2)) == []
    assert (broker.serves(), broker.contract.has_lease(broker.now_s)) == (True, False)
    assert broker.contract.wake_s == pytest.approx(lapses_s + max(asked_after_s + 0.1, 0.115))


def test_unopened_topic_of_an_available_namespace_lapses(broker: LeasedContract) -> None:
    broker.step(TopicWanted(T))
    broker.step(OwnershipAnswered(T, is_owned=True, incarnation=7))
    broker.now_s = available_until_s(broker, "t/ns")
    assert broker.step(Opened(T)) == [Refuse(T, Refusal.CLOSING), Close(T, CloseReason.LAPSED)]
    assert not broker.serves()


def test_available_topic_is_closed_by_unload_or_new_incarnation(broker: LeasedContract) -> None:
    broker.open(T, U)
    broker.now_s = available_until_s(broker, "t/ns") + 100.0
    assert broker.step(unload(T)) == [Close(T, CloseReason.UNLOADED, unload(T))]
    assert broker.lease(incarnation=8) == [Close(T, CloseReason.LAPSED), Close(U, CloseReason.LAPSED)]
    assert not broker.serves(U)


def test_availability_is_that_of_the_last_lease(broker: LeasedContract) -> None:
    broker.open(T)
    available_until_s(broker, "t/ns")
    broker.now_s = available_until_s(broker)
    assert broker.step(ContractSignal.TIME)[0] == Close(T, CloseReason.LAPSED)


def test_end_of_the_lease_closes_topics_and_voids_questions(broker: LeasedContract) -> None:
    broker.open(T)
    broker.step(TopicWanted(U))
    broker.now_s = 103.0
    assert broker.step(ContractSignal.TIME) == [Close(T, CloseReason.LAPSED), AskLease(1.5)]
    assert broker.step(TopicWanted(T)) == [Refuse(T, Refusal.CLOSING)]
    assert broker.step(OwnershipAnswered(U, is_owned=True, incarnation=7)) == [Refuse(U, Refusal.NO_LEASE)]
    assert list(broker.contract._held) == [T]
    assert broker.step(TopicClosed(T)) == []
    assert list(broker.contract._held) == []


def test_new_lease_does_not_revive_a_void_answer(broker: LeasedContract) -> None:
    broker.step(TopicWanted(U))
    broker.now_s = 103.0
    broker.lease()
    assert broker.step(OwnershipAnswered(U, is_owned=True, incarnation=7)) == [AskOwnership(U)]
    assert broker.step(OwnershipAnswered(U, is_owned=True, incarnation=7)) == [Open(U, 7)]


def test_lease_of_another_incarnation_is_used_once_all_is_closed(broker: LeasedContract) -> None:
    broker.open(T, U)
    broker.step(TopicWanted("persistent://t/ns/v"))
    broker.now_s = 101.0
    closings = broker.lease(8)
    assert closings == [Close(T, CloseReason.LAPSED), Close(U, CloseReason.LAPSED)]
    assert broker.contract.incarnation == 8
    broker.step(TopicClosed(T))
    assert not broker.contract.has_lease(broker.now_s)
    assert broker.step(TopicWanted(T)) == [Refuse(T, Refusal.NO_LEASE)]
    broker.step(TopicClosed(U))
    assert broker.contract.has_lease(broker.now_s)
    assert broker.contract.lease_until_s == 104.0
    assert broker.step(OwnershipAnswered("persistent://t/ns/v", is_owned=True, incarnation=8)) == [
        AskOwnership("persistent://t/ns/v")
    ]


def test_renewed_lease_also_waits_for_topics_of_the_former_incarnation(broker: LeasedContract) -> None:
    broker.open(T)
    broker.lease(8)
    broker.now_s = 102.0
    broker.lease(8)
    assert not broker.contract.has_lease(broker.now_s)
    broker.step(TopicClosed(T))
    assert broker.contract.lease_until_s == 105.0


def test_new_incarnation_without_open_topics_is_used_at_once(broker: LeasedContract) -> None:
    assert broker.lease(8) == []
    assert broker.contract.has_lease(broker.now_s)


# Opening


def test_open_topic_is_not_asked_for_again(broker: LeasedContract) -> None:
    broker.open(T)
    assert broker.step(TopicWanted(T)) == [Serve(T)]


def test_concurrent_requests_share_one_question_and_opening(broker: LeasedContract) -> None:
    assert broker.step(TopicWanted(T)) == [AskOwnership(T)]
    assert broker.step(TopicWanted(T)) == []
    assert broker.contract.opening == [T]
    broker.step(OwnershipAnswered(T, is_owned=True, incarnation=7))
    assert broker.step(TopicWanted(T)) == []
    assert (broker.contract.opening, list(broker.contract._held), phase_of(broker.contract, T)) == (
        [],
        [T],
        TopicPhase.OPENING,
    )
    assert not broker.serves()


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        (OwnershipAnswered(T, is_owned=False, incarnation=7, owner="b2:8080"), Refuse(T, Refusal.NOT_OWNER, "b2:8080")),
        (OwnershipAnswered(T, is_owned=True, incarnation=6), Refuse(T, Refusal.NOT_OWNER)),
        (OwnershipUnanswered(T, "gone"), Refuse(T, Refusal.NO_ANSWER, why="gone")),
    ],
    ids=["of another", "of another life", "no answer"],
)
def test_topic_is_not_opened_without_a_grant(broker: LeasedContract, answer: Event, refusal: Refuse) -> None:
    broker.step(TopicWanted(T))
    assert broker.step(answer) == [refusal]
    assert broker.contract.opening == []


def test_unrequested_answer_opens_nothing(broker: LeasedContract) -> None:
    assert broker.step(OwnershipAnswered(T, is_owned=True, incarnation=7)) == []


def test_unload_voids_the_outstanding_answer(broker: LeasedContract) -> None:
    broker.step(TopicWanted(T))
    assert broker.step(unload(U, T)) == [Confirm(1)]
    assert broker.contract.opening == [T]
    assert broker.step(OwnershipUnanswered(T)) == [AskOwnership(T)]
    assert broker.step(OwnershipAnswered(T, is_owned=True, incarnation=7)) == [Open(T, 7)]


def test_repeatedly_voided_question_is_given_up(broker: LeasedContract) -> None:
    broker.step(TopicWanted(T))
    answers = []
    for _ in range(TRIES_TO_ASK):
        broker.step(unload(T))
        answers += broker.step(OwnershipAnswered(T, is_owned=True, incarnation=7))
    assert answers == [*[AskOwnership(T)] * (TRIES_TO_ASK - 1), Refuse(T, Refusal.NO_ANSWER)]


def test_topic_that_failed_to_open_is_not_held(broker: LeasedContract) -> None:
    broker.step(TopicWanted(T))
    broker.step(OwnershipAnswered(T, is_owned=True, incarnation=7))
    assert broker.step(NotOpened(T)) == []
    assert list(broker.contract._held) == []
    assert broker.step(Opened(T)) == []


# Closing


def test_unload_is_confirmed_once_all_its_topics_are_closed(broker: LeasedContract) -> None:
    broker.open(T, U)
    call = unload(T, U, "persistent://t/ns/unknown")
    assert broker.step(call) == [Close(T, CloseReason.UNLOADED, call), Close(U, CloseReason.UNLOADED, call)]
    assert not broker.serves()
    assert broker.step(unload(T, number=2)) == []
    assert broker.step(TopicClosed(T)) == [Confirm(2)]
    assert broker.step(TopicClosed(U)) == [Confirm(1)]
    assert broker.step(unload(T, U, number=3)) == [Confirm(3)]


def test_opening_topic_can_be_closed(broker: LeasedContract) -> None:
    broker.step(TopicWanted(T))
    broker.step(OwnershipAnswered(T, is_owned=True, incarnation=7))
    assert broker.step(Leave(T)) == [Refuse(T, Refusal.CLOSING), Close(T, CloseReason.LEFT)]
    assert broker.step(Opened(T)) == []
    assert broker.step(TopicWanted(T)) == [Refuse(T, Refusal.CLOSING)]
    assert broker.step(Leave(U)) == []


def test_lease_that_ends_during_a_close_makes_it_urgent_once(broker: LeasedContract) -> None:
    broker.open(T)
    call = unload(T)
    broker.step(call)
    broker.now_s = 103.0
    assert broker.step(ContractSignal.TIME) == [Close(T, CloseReason.LAPSED), AskLease(1.5)]
    broker.step(Leased(7, 3.0))
    assert broker.step(Leave(T)) == []
    broker.now_s = 106.0
    assert broker.step(TopicWanted(U)) == [Refuse(U, Refusal.NO_LEASE)], "it is hurried already"
    assert broker.step(TopicClosed(T)) == [Confirm(1)]


@pytest.mark.parametrize(
    ("ended", "actions"),
    [
        (TopicClosed(T), [Confirm(1)]),
        (NotClosed(T, "disk full"), [Deny(1, "disk full"), Close(T, CloseReason.LAPSED)]),
    ],
    ids=["closed", "not closed"],
)
def test_late_closing_counts_before_lapse(broker: LeasedContract, ended: Event, actions: list[Action]) -> None:
    broker.open(T, U)
    broker.step(unload(T))
    broker.now_s = 104.0
    assert broker.step(ended) == [*actions, Close(U, CloseReason.LAPSED)]


def test_failed_opening_after_the_lease_is_not_closed(broker: LeasedContract) -> None:
    broker.step(TopicWanted(T))
    broker.step(OwnershipAnswered(T, is_owned=True, incarnation=7))
    broker.now_s = 104.0
    assert broker.step(NotOpened(T)) == []
    assert list(broker.contract._held) == []


def test_failed_close_is_denied_and_retried(broker: LeasedContract) -> None:
    broker.open(T)
    call = unload(T)
    broker.step(call)
    broker.step(unload(U, number=2))
    assert broker.step(NotClosed(T, "disk full")) == [Deny(1, "disk full")]
    assert broker.step(NotClosed(T, "disk full")) == []
    assert broker.step(NotClosed(U, "never open")) == []
    assert broker.step(TopicClosed(T)) == [], "nobody was asked to"
    assert (phase_of(broker.contract, T), broker.serves()) == (TopicPhase.NOT_CLOSED, False)
    again = unload(T, number=3)
    assert broker.step(again) == [Close(T, CloseReason.UNLOADED, again)]
    broker.step(NotClosed(T, "disk full"))
    broker.now_s = broker.contract.wake_s
    assert broker.step(ContractSignal.TIME) == [AskLease(1.5), Close(T, CloseReason.UNLOADED, again)]
    assert broker.step(TopicClosed(T)) == []
    assert list(broker.contract._held) == []


def test_retry_of_a_failed_closing_stays_urgent(broker: LeasedContract) -> None:
    broker.open(T)
    broker.now_s = 103.0
    assert broker.step(ContractSignal.TIME) == [Close(T, CloseReason.LAPSED), AskLease(1.5)]
    assert broker.step(NotClosed(T, "disk full")) == []
    assert broker.step(unload(T)) == [Close(T, CloseReason.LAPSED)]
    assert broker.step(TopicClosed(T)) == [Confirm(1)]


def test_closing_a_topic_nobody_waits_for_refuses_nobody(broker: LeasedContract) -> None:
    broker.open(T)
    assert broker.step(Leave(T)) == [Close(T, CloseReason.LEFT)]
    assert broker.step(TopicClosed(T)) == []


def test_end_closes_everything_and_opens_nothing(broker: LeasedContract) -> None:
    broker.open(T)
    broker.step(TopicWanted(U))
    assert broker.step(ContractSignal.END) == [Close(T, CloseReason.ENDED)]
    assert broker.step(OwnershipAnswered(U, is_owned=True, incarnation=7)) == [Refuse(U, Refusal.ENDING)]
    assert broker.step(TopicWanted(U)) == [Refuse(U, Refusal.ENDING)]


# Whatever happens


def read_transitions() -> Iterator[tuple[str, str]]:
    """The arrows between the states of a topic in the table of the module."""
    assert contract.__doc__ is not None
    rows = contract.__doc__.partition("    topic       event")[2].partition("\n\n")[0].splitlines()[2:]
    state = ""
    for row in rows:
        state = row[4:16].strip() or state
        _, arrow, following = row.partition("─▶ ")
        if arrow:
            yield state, following.strip()


TRANSITIONS = frozenset(read_transitions())


def find_state(held: Contract, topic: str) -> str:
    phase = phase_of(held, topic)
    return phase.name if phase is not None else "ASKED" if topic in held.opening else "unknown"


def test_transitions_match_the_table() -> None:
    owned, foreign = (OwnershipAnswered(T, is_owned=each, incarnation=7) for each in (True, False))
    closed_twice = (unload(T), NotClosed(T, "busy"), unload(T, number=2), TopicClosed(T))
    seen = set()
    for events in ((owned, Opened(T), *closed_twice), (foreign,), (owned, NotOpened(T)), (owned, Leave(T))):
        broker = LeasedContract()
        for event in (TopicWanted(T), *events):
            before = find_state(broker.contract, T)
            broker.step(event)
            seen.add((before, find_state(broker.contract, T)))
    assert seen == TRANSITIONS


@dataclass
class Witness:
    """Rules of the contract, computed independently from events and actions."""

    contract: Contract = field(default_factory=Contract)
    now_s: float = 0.0
    asked_lease_s: float | None = None
    incarnation: int | None = None
    until_s: float = -math.inf
    void: dict[str, bool] = field(default_factory=dict)
    """The questions that are outstanding, and whether their answers are void."""
    alive: dict[str, bool] = field(default_factory=dict)
    """Open topics; True: the topic has to be closed."""
    former: set[str] = field(default_factory=set)
    """Topics that were open when a lease of another incarnation came, and still are."""
    unloads: dict[int, set[str]] = field(default_factory=dict)

    def step(self, event: Event) -> None:
        self._notice_time()
        self._before(event)
        before = {topic: find_state(self.contract, topic) for topic in (T, U)}
        for action in self.contract.step(event, self.now_s):
            self._check(action, event)
        self._check_serving()
        after = {topic: find_state(self.contract, topic) for topic in (T, U)}
        assert {(before[each], after[each]) for each in (T, U) if before[each] != after[each]} <= TRANSITIONS

    def _notice_time(self) -> None:
        if self.now_s >= self.until_s:
            self._doom(self.alive)
            self.void = dict.fromkeys(self.void, True)

    def _doom(self, topics: Iterable[str]) -> None:
        self.alive.update({topic: True for topic in topics if topic in self.alive})

    def _before(self, event: Event) -> None:
        match event:
            case Leased(incarnation, valid_for_s):
                if incarnation != self.incarnation:
                    self._doom(self.alive)
                    self.void = dict.fromkeys(self.void, True)
                    self.former = set(self.alive)
                asked_s = self.now_s if self.asked_lease_s is None else self.asked_lease_s
                before_s = self.until_s if incarnation == self.incarnation else -math.inf
                self.until_s = max(before_s, asked_s + valid_for_s)
                self.incarnation, self.asked_lease_s = incarnation, None
            case ContractSignal.UNLEASED:
                self.asked_lease_s = None
            case ContractSignal.END:
                self._doom(self.alive)
            case UnloadWanted(number, _, topics):
                self._doom(topics)
                self.void.update({topic: True for topic in topics if topic in self.void})
                self.unloads[number] = {topic for topic in topics if topic in self.alive}
            case Leave(topic):
                self._doom([topic])
            case TopicClosed(topic) if phase_of(self.contract, topic) is TopicPhase.CLOSING:
                self._gone(topic)
            case NotOpened(topic) if phase_of(self.contract, topic) is TopicPhase.OPENING:
                self._gone(topic)

    def _gone(self, topic: str) -> None:
        del self.alive[topic]
        self.former.discard(topic)
        for waiting in self.unloads.values():
            waiting.discard(topic)

    def _check(self, action: Action, event: Event) -> None:
        match action:
            case AskLease():
                assert self.asked_lease_s is None, "one question at a time"
                self.asked_lease_s = self.now_s
            case AskOwnership(topic):
                assert topic not in self.void or isinstance(event, (OwnershipAnswered, OwnershipUnanswered))
                self.void[topic] = False
            case Open(topic, incarnation):
                assert isinstance(event, OwnershipAnswered)
                assert event.is_owned
                assert event.incarnation == incarnation == self.incarnation
                assert not self.void.pop(topic), "the answer was void"
                assert self.now_s < self.until_s
                assert topic not in self.alive
                self.alive[topic] = False
            case Refuse(topic):
                if isinstance(event, (OwnershipAnswered, OwnershipUnanswered)):
                    self.void.pop(topic, None)
            case Serve(topic):
                assert topic in self.alive
            case Confirm(number):
                assert not self.unloads.pop(number), "something of it may be open"
            case Deny(number):
                assert self.unloads.pop(number), "it was done"
            case Close(topic):
                assert self.alive[topic], "nobody wants it closed"

    def _check_serving(self) -> None:
        for topic in [T, U]:
            if self.contract.serves(topic, self.now_s):
                assert self.now_s < self.until_s, "rule 1"
                assert self.alive[topic] is False, "rule 2, and 3"
                assert not self.former, "rule 4"
            assert not self.contract.serves(topic, self.until_s)
        assert set(self.contract.opening) == set(self.void)
        assert set(self.contract._held) == set(self.alive)
        has_to_wake = any(not doomed for doomed in self.alive.values()) and self.now_s < self.until_s
        assert not has_to_wake or self.contract.wake_s <= self.until_s


topics = st.sampled_from([T, T, U])
incarnations = st.sampled_from([7, 7, 8])
pauses_s = st.sampled_from([0.1, 1.0, 4.0])
calls = st.builds(UnloadWanted, st.just(0), st.just(BUNDLE), st.lists(topics, min_size=1, max_size=3).map(tuple))
leases = st.builds(Leased, incarnations, st.sampled_from([0.0, 1.0, 3.0, 3.0]))
answers = st.builds(OwnershipAnswered, topics, st.sampled_from([True, True, False]), incarnations)
single = st.one_of(
    leases,
    answers,
    calls,
    pauses_s,
    st.builds(TopicWanted, topics),
    st.builds(OwnershipUnanswered, topics),
    st.builds(Opened, topics),
    st.builds(NotOpened, topics),
    st.builds(Leave, topics),
    st.builds(TopicClosed, topics),
    st.builds(NotClosed, topics, st.just("broken")),
    st.sampled_from([ContractSignal.TIME, ContractSignal.TIME, ContractSignal.UNLEASED]),
)
leasing = st.tuples(st.just(4.0), st.just(ContractSignal.TIME), pauses_s, leases)
opening = st.builds(
    lambda topic, life: (TopicWanted(topic), OwnershipAnswered(topic, is_owned=True, incarnation=life), Opened(topic)),
    topics,
    incarnations,
)
reborn = st.tuples(opening, leases, opening)
late = st.tuples(st.builds(TopicWanted, topics), calls | leasing | leases, answers)
paused = st.builds(
    lambda opened, call, pause_s, topic, ended: (opened, call, pause_s, ended(topic)),
    opening,
    calls,
    pauses_s,
    topics,
    st.sampled_from([TopicClosed, lambda topic: NotClosed(topic, "broken"), NotOpened]),
)
"""Events that rarely follow each other by chance."""

Happening = Event | float | tuple["Happening", ...]
happening = st.lists(st.one_of(single, leasing, opening, reborn, late, paused), max_size=40)


def flat(happening: Iterable[Happening]) -> Iterator[Event | float]:
    for each in happening:
        if isinstance(each, tuple):
            yield from flat(each)
        else:
            yield each


@given(happening, st.sampled_from([ContractSignal.END, ContractSignal.TIME]))
def test_contract_rules_hold_for_any_events(happening: list[Happening], last: ContractSignal) -> None:
    witness = Witness()
    witness.step(ContractSignal.TIME)
    witness.step(Leased(7, 3.0))
    for number, each in enumerate(flat(happening)):
        if isinstance(each, float):
            witness.now_s += each
        elif isinstance(each, UnloadWanted):
            witness.step(replace(each, number=number))
        elif (
            not isinstance(each, (TopicClosed, NotClosed))
            or phase_of(witness.contract, each.topic) is TopicPhase.CLOSING
        ):
            witness.step(each)
    witness.step(last)
    # In the end all that has to be closed is, and everybody who waits is answered.
    for topic in list(witness.contract.opening):
        witness.step(OwnershipAnswered(topic, is_owned=False, incarnation=7))
    for topic in list(witness.contract._held):
        witness.step(unload(topic, number=-1))
        witness.step(TopicClosed(topic))
    for topic in list(witness.contract.opening):
        witness.step(OwnershipUnanswered(topic))
    assert list(witness.contract._held) == []
    assert witness.unloads == {}
