"""State machine of the broker's side of the contract (docs/broker-contract.md): lease, questions, open topics.

Passive: `step(event, now_s)` returns the actions for one event, `wake_s` is when the next `TIME` event is due, and
`serves(topic, now_s)` is the check for the code path that serves.

    lease       event                   condition                      actions                           next
    -----       -----                   ---------                      -------                           ----
    any         TIME                    the next question is due       AskLease, one at a time
                Leased                  this incarnation               valid from the time of the question
                                        asked too early after a lapse  AskLease again, if topics have outlasted it
                                        another one, or topics have    Close all, LAPSED; valid once that is done
                                        outlasted the last lease
                UNLEASED                                               (the current lease lapses by itself)
                any event               the lease has lapsed           Close all, LAPSED, except open topics of
                                                                       available namespaces
    Closing all also voids all pending ownership questions.

    topic       event                   condition                      actions                           next
    -----       -----                   ---------                      -------                           ----
    unknown     TopicWanted             the lease is valid             AskOwnership                      ─▶ ASKED
    ASKED       OwnershipAnswered       the lease is not valid         Refuse                            ─▶ unknown
                                        void                           AskOwnership; the fifth time Refuse  ─▶ unknown
                                        owned, in this incarnation     Open                              ─▶ OPENING
                                        else                           Refuse                            ─▶ unknown
                UnloadWanted                                           (the pending question is void)
    OPENING     Opened                                                 Serve                             ─▶ OPEN
                NotOpened                                                                                ─▶ unknown
                UnloadWanted, Leave, END                               Refuse, Close                     ─▶ CLOSING
    OPEN        TopicWanted                                            Serve, also without a lease if it is available
                UnloadWanted, Leave, END                               Close                             ─▶ CLOSING
    CLOSING     TopicWanted                                            Refuse
                TopicClosed                                            Confirm unloads that are done     ─▶ unknown
                NotClosed                                              Deny its unloads                  ─▶ NOT_CLOSED
                the lease lapses        it is not LAPSED yet           Close once more, LAPSED
    NOT_CLOSED  UnloadWanted, or a second has passed                   Close                             ─▶ CLOSING

Order within one step: the rows of `TopicClosed`, `NotClosed` and `NotOpened` come first, then the lapse of the lease.
For all other events the lapse comes first. A broker that was stopped may notice both at once, and must not close a
topic twice.

An open topic of an available namespace stays open without a lease, until an unload or the next lease; then the agent is
asked for it again. The answer to the last lease question names these namespaces.

In OPENING the broker loads the topic, in CLOSING it releases it. Neither is served.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

TRIES_TO_ASK = 5
"""Attempts to ask about a topic that is unloaded meanwhile; then it is refused and the client may retry."""

_ASK_AGAIN_S = 0.1
"""Short, because a newly registered broker may own bundles at once, and nobody serves them until it has a lease."""
_SHORTEST_PAUSE_S = 0.02
"""Minimum pause between lease questions: from question to question without a lease, and from every answer."""

_SHORTEST_TIMEOUT_S = 0.25
_LONGEST_TIMEOUT_S = 2.0
_TRY_TO_CLOSE_AGAIN_S = 1.0


class TopicPhase(enum.Enum):
    OPENING = enum.auto()
    OPEN = enum.auto()
    CLOSING = enum.auto()
    NOT_CLOSED = enum.auto()


class CloseReason(enum.StrEnum):
    """Reason for closing a topic."""

    UNLOADED = "unloaded"
    """The bundle moves to another broker."""
    LAPSED = "lapsed"
    """The lease has lapsed, or belongs to another incarnation: another broker may serve the topic already."""
    LEFT = "left"
    """The broker itself no longer needs the topic."""
    ENDED = "ended"
    """The broker is about to stop."""


class Refusal(enum.StrEnum):
    """Reason for refusing a topic."""

    NO_LEASE = "no lease"
    NOT_OWNER = "not the owner"
    NO_ANSWER = "the agent gave no answer"
    CLOSING = "being closed"
    ENDING = "the broker is about to end"


# Events


@dataclass(frozen=True, slots=True)
class Leased:
    """The answer to the last lease question. `available` are the namespaces (tenant/namespace) whose open topics
    outlast the lease.
    """

    incarnation: int
    valid_for_s: float
    available: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicWanted:
    """A client wants to use the topic here."""

    topic: str


@dataclass(frozen=True, slots=True)
class OwnershipAnswered:
    """The answer to the topic's last ownership question; `owner` is the other owner, if known."""

    topic: str
    is_owned: bool
    incarnation: int
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class OwnershipUnanswered:
    """The ownership question failed."""

    topic: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """The topic is loaded."""

    topic: str


@dataclass(frozen=True, slots=True)
class NotOpened:
    """The topic could not be loaded; nothing of it is held."""

    topic: str


@dataclass(frozen=True, slots=True)
class UnloadWanted:
    """The agent wants these topics of a bundle closed. `destination` is the bundle's next owner, if known. The unload
    is confirmed or denied by its `number`.
    """

    number: int
    bundle: str
    topics: tuple[str, ...]
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """The broker no longer needs the topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicClosed:
    """The topic is closed; nothing of it is held."""

    topic: str


@dataclass(frozen=True, slots=True)
class NotClosed:
    """Closing failed; the topic may still be held."""

    topic: str
    why: str


class ContractSignal(enum.Enum):
    """Events without data."""

    TIME = enum.auto()
    UNLEASED = enum.auto()
    """The last lease question brought no lease."""
    END = enum.auto()
    """The broker is about to stop."""


Event = (
    Leased
    | TopicWanted
    | OwnershipAnswered
    | OwnershipUnanswered
    | Opened
    | NotOpened
    | UnloadWanted
    | Leave
    | TopicClosed
    | NotClosed
    | ContractSignal
)

# Actions


@dataclass(frozen=True, slots=True)
class AskLease:
    """Ask the agent for a lease. Answered by Leased or UNLEASED; by UNLEASED after `timeout_s`."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class AskOwnership:
    """Ask the agent whether this broker owns the topic. Answered by OwnershipAnswered or OwnershipUnanswered."""

    topic: str


@dataclass(frozen=True, slots=True)
class Open:
    """Load the topic. Answered by Opened or NotOpened."""

    topic: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Let the waiting clients use the topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Refuse the waiting clients. `owner` is a hint, `why` is for people."""

    topic: str
    refusal: Refusal
    owner: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Close:
    """Release the topic. Answered once, by TopicClosed or NotClosed.

    The action is repeated if the lease lapses meanwhile. Then cancel the first attempt; if that has closed the topic
    anyway, the answer is TopicClosed without a second attempt.
    """

    topic: str
    reason: CloseReason
    unload: UnloadWanted | None = None


@dataclass(frozen=True, slots=True)
class Confirm:
    """All topics of this unload are closed."""

    number: int


@dataclass(frozen=True, slots=True)
class Deny:
    """A topic of this unload could not be closed."""

    number: int
    why: str


Action = AskLease | AskOwnership | Open | Serve | Refuse | Close | Confirm | Deny


@dataclass(slots=True)
class _Question:
    """Pending ownership question; if `is_void`, its answer is ignored."""

    is_void: bool = False
    tries: int = 1


@dataclass(slots=True)
class _Held:
    """A topic that is, or may be, held."""

    phase: TopicPhase = TopicPhase.OPENING
    reason: CloseReason | None = None
    unload: UnloadWanted | None = None


@dataclass(slots=True)
class Contract:
    """Lease and held topics of one broker process."""

    incarnation: int | None = None
    lease_until_s: float = -math.inf
    """End of the lease. Afterwards only open topics of available namespaces are served."""
    available: frozenset[str] = frozenset()
    """Namespaces whose open topics outlast the lease."""
    opened: int = 0
    """Number of topics opened by this process."""
    _next_until_s: float = -math.inf
    """End of the latest lease. While `_is_clearing`, it is not used until all topics of before are closed."""
    _is_clearing: bool = False
    _asked_s: float | None = None
    """Time of the outstanding lease question."""
    _ask_s: float = -math.inf
    """Due time of the next lease question."""
    _timeout_s: float = _LONGEST_TIMEOUT_S
    _has_lapsed: bool = True
    """True if all topics were closed after the lease lapsed."""
    _is_ending: bool = False
    _questions: dict[str, _Question] = field(default_factory=dict)
    _held: dict[str, _Held] = field(default_factory=dict)
    _unloads: dict[int, set[str]] = field(default_factory=dict)
    """By number, the topics that each unload still waits for."""
    _close_again_s: dict[str, float] = field(default_factory=dict)
    """Times at which to retry failed closes."""
    _to_do: list[Action] = field(default_factory=list)

    def has_lease(self, now_s: float) -> bool:
        return now_s < self.lease_until_s

    def serves(self, topic: str, now_s: float) -> bool:
        """Tell if the topic may be served now."""
        held = self._held.get(topic)
        return held is not None and held.phase is TopicPhase.OPEN and (self.has_lease(now_s) or self._outlasts(topic))

    @property
    def opening(self) -> list[str]:
        """Topics with a pending ownership question, which may still open them."""
        return list(self._questions)

    @property
    def wake_s(self) -> float:
        """Time of the next TIME event."""
        ask_s = self._ask_s if self._asked_s is None else math.inf
        lapse_s = math.inf if self._has_lapsed else self.lease_until_s
        return min(ask_s, lapse_s, *self._close_again_s.values())

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Return the actions for an event; the module documents the order within a step."""
        if isinstance(event, (TopicClosed, NotClosed, NotOpened)):
            self._on_topic_ended(event, now_s)
            self._close_without_lease(now_s)
        else:
            self._close_without_lease(now_s)
            self._handle(event, now_s)
        to_do, self._to_do = self._to_do, []
        return to_do

    def _on_topic_ended(self, event: TopicClosed | NotClosed | NotOpened, now_s: float) -> None:
        held = self._held.get(event.topic)
        if held is None or held.phase is not (
            TopicPhase.OPENING if isinstance(event, NotOpened) else TopicPhase.CLOSING
        ):
            return
        if isinstance(event, NotClosed):
            self._not_closed(event, held, now_s)
        else:
            self._forget(event.topic)

    def _handle(self, event: Event, now_s: float) -> None:
        match event:
            case ContractSignal():
                self._on_signal(event, now_s)
            case Leased():
                self._on_lease_granted(event, now_s)
            case UnloadWanted():
                self._unload(event)
            case TopicWanted(topic):
                self._want(topic, now_s)
            case OwnershipAnswered() | OwnershipUnanswered():
                self._on_answer(event, now_s)
            case Opened(topic):
                self._on_opened(topic)
            case Leave(topic) if topic in self._held:
                self._begin_to_close(topic, self._held[topic], CloseReason.LEFT)

    # The lease

    def _on_signal(self, signal: ContractSignal, now_s: float) -> None:
        match signal:
            case ContractSignal.TIME:
                self._pass_time(now_s)
            case ContractSignal.UNLEASED:
                self._ask_again(_ASK_AGAIN_S, now_s)
            case _:
                self._is_ending = True
                self._stop(self._held, CloseReason.ENDED)

    def _pass_time(self, now_s: float) -> None:
        if self._asked_s is None and now_s >= self._ask_s:
            self._asked_s = now_s
            self._to_do.append(AskLease(self._timeout_s))
        for topic in [topic for topic, retry_s in self._close_again_s.items() if now_s >= retry_s]:
            self._close(topic, self._held[topic])

    def _on_lease_granted(self, lease: Leased, now_s: float) -> None:
        """Use a lease. It counts from before the question was sent, because this process may have been stopped since. A
        shorter lease does not shorten the current one.
        """
        asked_s = now_s if self._asked_s is None else self._asked_s
        if self._may_be_the_lapsed(lease, asked_s):
            self._ask_again(_ASK_AGAIN_S, now_s)
            return
        self._timeout_s = min(max(lease.valid_for_s / 2, _SHORTEST_TIMEOUT_S), _LONGEST_TIMEOUT_S)
        self._ask_again(lease.valid_for_s / 3, now_s)
        self.available = lease.available
        if lease.incarnation != self.incarnation or self._has_kept_topics():
            self._close_former(lease.incarnation, now_s)
        self._next_until_s = max(self._next_until_s, asked_s + lease.valid_for_s)
        self._use_lease()

    def _may_be_the_lapsed(self, lease: Leased, asked_s: float) -> bool:
        """Tell if the answer may be the rest of the lapsed lease: here the lease lapses a request's latency earlier
        than at the agent. Topics that outlast a lease would be closed for it, while nobody could open them again.
        """
        is_too_early = asked_s < self.lease_until_s + _ASK_AGAIN_S
        return is_too_early and lease.incarnation == self.incarnation and self._has_kept_topics()

    def _ask_again(self, pause_s: float, now_s: float) -> None:
        asked_s = now_s if self._asked_s is None else self._asked_s
        self._asked_s, self._ask_s = None, max(asked_s + pause_s, now_s + _SHORTEST_PAUSE_S)

    def _has_kept_topics(self) -> bool:
        """Tell if topics outlasted a lease. The incarnation cannot prove that they are still ours: after a data loss
        ZooKeeper may assign the same number again.
        """
        return self._has_lapsed and any(held.phase is TopicPhase.OPEN for held in self._held.values())

    def _close_former(self, incarnation: int, now_s: float) -> None:
        """Close all topics of the previous incarnation before the new lease is used."""
        self.lease_until_s = min(self.lease_until_s, now_s)
        self._has_lapsed = True
        self._stop(self._held, CloseReason.LAPSED)
        self.incarnation, self._is_clearing, self._next_until_s = incarnation, True, -math.inf

    def _use_lease(self) -> None:
        """Use the new lease once no topic of the previous incarnation is held."""
        if not self._held or not self._is_clearing:
            self.lease_until_s, self._is_clearing, self._has_lapsed = self._next_until_s, False, False

    def _close_without_lease(self, now_s: float) -> None:
        if not self.has_lease(now_s) and not self._has_lapsed:
            self._has_lapsed = True
            lapsing = [
                topic
                for topic, held in self._held.items()
                if held.phase is not TopicPhase.OPEN or not self._outlasts(topic)
            ]
            self._stop(lapsing, CloseReason.LAPSED)

    def _outlasts(self, topic: str) -> bool:
        """Tell if the topic, if open, is served without a lease."""
        return bool(self.available) and "/".join(topic.partition("://")[2].split("/", 2)[:2]) in self.available

    def _stop(self, topics: Iterable[str], reason: CloseReason) -> None:
        self._make_void(self._questions)
        for topic in topics:
            self._begin_to_close(topic, self._held[topic], reason)

    # Topics

    def _want(self, topic: str, now_s: float) -> None:
        held = self._held.get(topic)
        if self._is_ending:
            self._to_do.append(Refuse(topic, Refusal.ENDING))
        elif held is not None and held.phase in (TopicPhase.CLOSING, TopicPhase.NOT_CLOSED):
            self._to_do.append(Refuse(topic, Refusal.CLOSING))
        elif self.serves(topic, now_s):
            self._to_do.append(Serve(topic))
        elif not self.has_lease(now_s):
            self._to_do.append(Refuse(topic, Refusal.NO_LEASE))
        elif held is None and topic not in self._questions:
            self._questions[topic] = _Question()
            self._to_do.append(AskOwnership(topic))

    def _on_answer(self, event: OwnershipAnswered | OwnershipUnanswered, now_s: float) -> None:
        topic = event.topic
        question = self._questions.pop(topic, None)
        if question is None:
            return
        refused = Refuse(topic, Refusal.NO_ANSWER, why=event.why if isinstance(event, OwnershipUnanswered) else "")
        if not self.has_lease(now_s) or self._is_ending:
            refused = Refuse(topic, Refusal.ENDING if self._is_ending else Refusal.NO_LEASE)
        elif question.is_void and question.tries < TRIES_TO_ASK:
            self._questions[topic] = _Question(tries=question.tries + 1)
            self._to_do.append(AskOwnership(topic))
            return
        elif isinstance(event, OwnershipAnswered) and not question.is_void:
            if event.is_owned and event.incarnation == self.incarnation:
                self._held[topic] = _Held()
                self._to_do.append(Open(topic, event.incarnation))
                return
            refused = Refuse(topic, Refusal.NOT_OWNER, event.owner)
        self._to_do.append(refused)

    def _on_opened(self, topic: str) -> None:
        held = self._held.get(topic)
        if held is not None and held.phase is TopicPhase.OPENING:
            held.phase = TopicPhase.OPEN
            self.opened += 1
            self._to_do.append(Serve(topic))

    def _make_void(self, topics: Iterable[str]) -> None:
        for topic in topics:
            if topic in self._questions:
                self._questions[topic].is_void = True

    def _unload(self, unload: UnloadWanted) -> None:
        self._make_void(unload.topics)
        waiting = {topic for topic in unload.topics if topic in self._held}
        if not waiting:
            self._to_do.append(Confirm(unload.number))
            return
        self._unloads[unload.number] = waiting
        for topic in unload.topics:
            held = self._held.get(topic)
            if held is not None:
                self._begin_to_close(topic, held, CloseReason.UNLOADED, unload)

    def _begin_to_close(self, topic: str, held: _Held, reason: CloseReason, unload: UnloadWanted | None = None) -> None:
        """Start closing a topic. One that is closing is closed again only after a failure, or if the lease lapses."""
        is_closing = held.phase is TopicPhase.CLOSING
        if is_closing and (reason is not CloseReason.LAPSED or held.reason is CloseReason.LAPSED):
            return
        if held.phase is TopicPhase.OPENING:
            self._to_do.append(Refuse(topic, Refusal.CLOSING))
        if held.reason is not CloseReason.LAPSED:
            held.reason, held.unload = reason, unload
        self._close(topic, held)

    def _close(self, topic: str, held: _Held) -> None:
        assert held.reason is not None, "a closing has a reason"
        held.phase = TopicPhase.CLOSING
        self._close_again_s.pop(topic, None)
        self._to_do.append(Close(topic, held.reason, held.unload))

    def _not_closed(self, event: NotClosed, held: _Held, now_s: float) -> None:
        held.phase = TopicPhase.NOT_CLOSED
        self._close_again_s[event.topic] = now_s + _TRY_TO_CLOSE_AGAIN_S
        for number in [number for number, waiting in self._unloads.items() if event.topic in waiting]:
            del self._unloads[number]
            self._to_do.append(Deny(number, event.why))

    def _forget(self, topic: str) -> None:
        """Drop a topic that is no longer held, and confirm the unloads that waited for it."""
        del self._held[topic]
        for number, waiting in list(self._unloads.items()):
            waiting.discard(topic)
            if not waiting:
                del self._unloads[number]
                self._to_do.append(Confirm(number))
        if self._is_clearing:
            self._use_lease()
