"""Moves under way: unloads that are wanted, prepared, begun, asked for, and seen through to their end.

A passive machine: `step(event, now_s)` takes what has happened and gives what is to be done; `wake_s` is when it wants
to be stepped by itself, with `TIME`. A driver does what it is told, in its own way of waiting, and comes back with what
came of it. The record is the truth at every phase, so that whoever leads next finishes what it finds released.

    phase       event                       if                              then
    -----       -----                       --                              ----
    WAITING     its turn comes              its destination prepares        Prepare                   ─▶ PREPARING
                                            else                            Commit its release        ─▶ RELEASING
                CallOff                                                     Ended: CalledOff
    PREPARING   Prepared                                                    Commit its release        ─▶ RELEASING
                MEMBERSHIP                  one of the two is not           StopAsking, Commit its
                                            registered                      release                   ─▶ RELEASING
                CallOff                                                     StopAsking, Ended: CalledOff
    RELEASING   Committed                   the owner is registered         AskOwner                  ─▶ ASKED
                                            it is not                       Commit the destination    ─▶ COMPLETING
                NotCommitted                                                Ended: Failed
    (Resume)                                as RELEASING when Committed
    ASKED       OwnerAnswered: released                                     Commit the destination    ─▶ COMPLETING
                OwnerAnswered: refused      for good                        Commit that it is kept    ─▶ KEEPING
                                            the owner is not registered     Commit the destination    ─▶ COMPLETING
                                            no pause fits the deadline      Commit that it is kept    ─▶ KEEPING
                                            else                            (a pause, each time twice
                                                                             as long)                 ─▶ PAUSED
    PAUSED      TIME                        the pause is over               AskOwner                  ─▶ ASKED
    ASKED,      MEMBERSHIP                  the owner is not registered     StopAsking, Commit the
    PAUSED                                                                  destination               ─▶ COMPLETING
                Cancel                      the owner is registered         StopAsking, Commit that
                                                                            it is kept                ─▶ KEEPING
                                            it is not                       as MEMBERSHIP
    COMPLETING  Committed                                                   Ended: Moved
    KEEPING     Committed                                                   Ended: Kept
    both        NotCommitted                                                Ended: Failed
    RELEASING,  Unanswered, and the         is what was to be written       as Committed
    COMPLETING, record, read again,         is the release as it was        Commit the same again
    KEEPING                                 is another                      Ended: Failed

A destination prepares while the owner serves on: what can be done before the release keeps nobody waiting. It may be
slow, or fail, or not know how, and the move goes on all the same; of one that is called off it hears nothing.

A move that ended with Failed may have left its bundle released: whoever looks at the records resumes it. A turn is had
from PREPARING to the end, also while nobody knows what became of a write; what is resumed has one, whatever the limits.
An owner refuses for good where it is not the leader here who places bundles, and this one has gone to another broker
than it was meant for: what is committed then is what is true, and the move has failed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    abandon,
    complete,
    release,
    retarget,
)
from loadmanager.core.domain.reasons import OwnershipReason, Reason
from loadmanager.core.protocol.concurrency_limiter import ConcurrencyLimiter
from loadmanager.core.protocol.signals import Signal

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class Phase(enum.Enum):
    WAITING = enum.auto()
    PREPARING = enum.auto()
    RELEASING = enum.auto()
    ASKED = enum.auto()
    PAUSED = enum.auto()
    COMPLETING = enum.auto()
    KEEPING = enum.auto()
    ENDED = enum.auto()


class StaleStepError(IllegalTransitionError):
    """The bundle is no longer as whoever planned the step took it to be."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a step was planned on: who owns the bundle, and at which version unless that does not matter."""

    owner: Registration
    version: int | None = None

    def check(self, current: Ownership) -> None:
        """Raise `StaleStepError` unless it still is so."""
        if current.state is not OwnershipState.OWNED or current.owner != self.owner:
            raise StaleStepError(f"it is {current}, and not owned by {self.owner}")
        if self.version not in (None, current.version):
            raise StaleStepError(f"it is at version {current.version}, and not at {self.version}")


@dataclass(slots=True, eq=False)
class Move:
    """One unload of one bundle. `check` is given the ownership as the release is written, and may refuse it; `released`
    is the ownership while it is released, `refusal` what its owner last said instead of letting go.
    """

    bundle: str
    owner: Registration | None
    destination: Registration | None
    reason: str
    check: Callable[[Ownership], None] | None = None
    phase: Phase = Phase.WAITING
    released: Ownership | None = None
    refusal: str = ""
    deadline_s: float = 0.0
    refusals: int = 0
    wake_s: float = 0.0
    is_cancelled: bool = False

    @property
    def brokers(self) -> frozenset[BrokerId]:
        """Whom it concerns."""
        return frozenset(each.broker for each in (self.owner, self.destination) if each is not None)

    @property
    def why_kept(self) -> Reason:
        """Why its owner keeps the bundle, if it does."""
        return OwnershipReason.UNLOAD_CANCELLED if self.is_cancelled else OwnershipReason.UNLOAD_FAILED

    def get_released(self) -> Ownership:
        """The ownership while it is released, of a move that has begun."""
        assert self.released is not None, "it has not begun"
        return self.released


@dataclass(frozen=True, slots=True)
class Moved:
    """The owner has let go; the bundle is `done` now."""

    done: Ownership


@dataclass(frozen=True, slots=True)
class Kept:
    """The owner keeps the bundle: it did not let go in time, or somebody cancelled it (`refusal`)."""

    kept: Ownership
    reason: Reason
    refusal: str


@dataclass(frozen=True, slots=True)
class CalledOff:
    """It never began."""

    why: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A write was refused, or its outcome is not known; `error` is what the driver was told."""

    error: Exception


Outcome = Moved | Kept | CalledOff | Failed

# Events


@dataclass(frozen=True, slots=True)
class Want:
    """A move is to be made when its turn has come."""

    move: Move


@dataclass(frozen=True, slots=True)
class Resume:
    """A release that was found in the records is to be seen through."""

    move: Move


@dataclass(frozen=True, slots=True)
class CallOff:
    """Moves that have not begun are not to be, for this reason: all that `is_meant` says."""

    is_meant: Callable[[Move], bool]
    why: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """The owner is to keep the bundle of a move that has begun."""

    move: Move


@dataclass(frozen=True, slots=True)
class Prepared:
    """The destination is as ready as it gets."""

    move: Move


@dataclass(frozen=True, slots=True)
class Committed:
    move: Move
    stored: Ownership


@dataclass(frozen=True, slots=True)
class NotCommitted:
    move: Move
    error: Exception


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A write may have happened or not; `stored` is the bundle's ownership as read since, None if it is no more."""

    move: Move
    stored: Ownership | None
    error: Exception


@dataclass(frozen=True, slots=True)
class OwnerAnswered:
    """None: the owner has let go; else why it did not, or that it did not answer. `is_final`: it is not asked again."""

    move: Move
    refusal: str | None
    is_final: bool = False


Event = Want | Resume | CallOff | Cancel | Prepared | Committed | NotCommitted | Unanswered | OwnerAnswered | Signal

# Instructions


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have the destination prepare, for `patience_s` at most, and come back with Prepared whatever it says."""

    move: Move
    patience_s: float


@dataclass(frozen=True, slots=True)
class Commit:
    """Write what `transition` makes of the bundle's ownership, and come back with Committed or NotCommitted."""

    move: Move
    transition: Callable[[Ownership, Stamp], Ownership]
    reason: str


@dataclass(frozen=True, slots=True)
class AskOwner:
    """Ask the owner to let go, for `patience_s` at most, and come back with OwnerAnswered."""

    move: Move
    patience_s: float


@dataclass(frozen=True, slots=True)
class StopAsking:
    """What the owner, or the destination, answers does not matter any more: do not come back with it."""

    move: Move


@dataclass(frozen=True, slots=True)
class Ended:
    move: Move
    outcome: Outcome


Instruction = Prepare | Commit | AskOwner | StopAsking | Ended


@dataclass(slots=True)
class MoveMachine:
    """The moves of one leader. `limits` are how many have a turn at a time, in all and per broker; `deadline_s` is how
    long an owner may take to let go, `prepare_s` how long a destination may prepare, 0 for one that is not to; all are
    asked anew each time. `is_registered` is of this moment.
    """

    limits: Callable[[], tuple[int, int]]
    deadline_s: Callable[[], float]
    is_registered: Callable[[Registration | None], bool]
    prepare_s: Callable[[Registration], float] = lambda _: 0.0
    _turns: ConcurrencyLimiter[Move] = field(init=False)
    _waiting: dict[Move, None] = field(default_factory=dict)
    _begun: dict[Move, None] = field(default_factory=dict)
    _by_version: dict[tuple[str, int], Move] = field(default_factory=dict)
    _to_do: list[Instruction] = field(default_factory=list)
    _now_s: float = 0.0

    def __post_init__(self) -> None:
        self._turns = ConcurrencyLimiter(self.limits)

    @property
    def known(self) -> list[Move]:
        """All there are: first those that have released nothing, in the order in which they came."""
        return [*self._waiting, *self._begun]

    def is_waiting(self, bundle: str) -> bool:
        """Whether a move of the bundle has not begun."""
        return any(move.bundle == bundle for move in self._waiting)

    @property
    def wake_s(self) -> float | None:
        """When the next pause is over."""
        return min((move.wake_s for move in self._begun if move.phase is Phase.PAUSED), default=None)

    def find(self, bundle: str, version: int) -> Move | None:
        """The move that follows the release of a bundle at this version."""
        return self._by_version.get((bundle, version))

    def step(self, event: Event, now_s: float) -> list[Instruction]:
        """What there is to do now that this has happened; a move that has ended hears of nothing more."""
        self._now_s = now_s
        match event:
            case Want(move):
                self._wait(move)
            case Resume(move):
                self._turns.have(move, move.brokers)
                self._follow(move, move.get_released())
            case CallOff(is_meant, why):
                self._call_off([move for move in self._waiting if is_meant(move)], why)
            case Cancel(move):
                self._cancel(move)
            case Prepared(move):
                self._prepared(move)
            case Committed(move, stored):
                self._committed(move, stored)
            case NotCommitted(move, error):
                self._end(move, Failed(error))
            case Unanswered(move, stored, error):
                self._unanswered(move, stored, error)
            case OwnerAnswered(move, refusal, is_final):
                self._answered(move, refusal, is_final=is_final)
            case _:
                self._look()
        self._give_turns()
        to_do, self._to_do = self._to_do, []
        return to_do

    def forget(self) -> list[Move]:
        """The term is over: what has begun is the next leader's to finish. All there were."""
        ended = self.known
        for move in ended:
            move.phase = Phase.ENDED
        self._turns = ConcurrencyLimiter(self.limits)
        self._waiting.clear()
        self._begun.clear()
        self._by_version.clear()
        return ended

    def restore(self, known: Iterable[Move]) -> None:
        """Where there are none yet: go on with these, which another had, each in its phase."""
        for move in known:
            if move.phase is Phase.WAITING:
                self._wait(move)
                continue
            self._turns.have(move, move.brokers)
            if move.phase is Phase.PREPARING:
                self._waiting[move] = None
            else:
                self._have(move)

    def _wait(self, move: Move) -> None:
        self._waiting[move] = None
        self._turns.wait(move, move.brokers)

    def _have(self, move: Move) -> None:
        self._begun[move] = None
        if move.released is not None:
            self._by_version[move.bundle, move.released.version] = move

    def _give_turns(self) -> None:
        for move in self._turns.give():
            self._prepare(move)

    def _prepare(self, move: Move) -> None:
        """Before anything is released; at once where nobody is to prepare."""
        destination = move.destination
        patience_s = self.prepare_s(destination) if destination is not None else 0.0
        if patience_s > 0 and self.is_registered(destination):
            move.phase = Phase.PREPARING
            self._to_do.append(Prepare(move, patience_s))
        else:
            self._release(move)

    def _prepared(self, move: Move) -> None:
        if move.phase is Phase.PREPARING:
            self._release(move)

    def _call_off(self, moves: Iterable[Move], why: str) -> None:
        for move in moves:
            self._stop_asking(move)
            self._end(move, CalledOff(why))

    def _release(self, move: Move) -> None:
        del self._waiting[move]
        self._begun[move] = None
        move.phase = Phase.RELEASING
        self._to_do.append(Commit(move, self._releasing(move), move.reason))

    def _releasing(self, move: Move) -> Callable[[Ownership, Stamp], Ownership]:
        def begin(current: Ownership, stamp: Stamp) -> Ownership:
            destination = move.destination
            if destination is not None and not self.is_registered(destination):
                raise IllegalTransitionError(f"{destination} left while {move.bundle} waited to be moved to it")
            if destination is not None and destination == current.owner:
                raise IllegalTransitionError(f"{move.bundle} belongs to {destination} already")
            if move.check is not None:
                move.check(current)
            return release(current, destination, stamp)

        return begin

    def _committed(self, move: Move, stored: Ownership) -> None:
        if move.phase is Phase.RELEASING:
            self._follow(move, stored)
        elif move.phase is Phase.COMPLETING:
            self._end(move, Moved(stored))
        else:
            self._end(move, Kept(stored, move.why_kept, move.refusal))

    def _unanswered(self, move: Move, stored: Ownership | None, error: Exception) -> None:
        """The record tells whether the write happened; if it did not, an end is written again."""
        before = move.released
        if stored is None:
            self._end(move, Failed(error))
        elif before is None:
            is_ours = stored.state is OwnershipState.RELEASING and stored.owner == move.owner
            if is_ours and stored.destination == move.destination:
                self._committed(move, stored)
            else:
                self._end(move, Failed(error))
        elif stored.version == before.version:
            if move.phase is Phase.KEEPING:
                self._keep(move)
            else:
                self._complete(move)
        elif stored.version == before.version + 1 and stored.epoch >= before.epoch:
            self._committed(move, stored)
        else:
            self._end(move, Failed(error))

    def _follow(self, move: Move, released: Ownership) -> None:
        """The bundle is released: from now on its owner has so long to let go."""
        move.released = released
        move.deadline_s = self._now_s + self.deadline_s()
        self._have(move)
        self._ask(move)

    def _ask(self, move: Move) -> None:
        if not self.is_registered(move.get_released().owner):
            self._complete(move)
            return
        move.phase = Phase.ASKED
        self._to_do.append(AskOwner(move, move.deadline_s - self._now_s))

    def _answered(self, move: Move, refusal: str | None, *, is_final: bool) -> None:
        if move.phase is not Phase.ASKED:
            return
        if refusal is None or not (is_final or self.is_registered(move.get_released().owner)):
            self._complete(move)
            return
        move.refusal, move.refusals = refusal, move.refusals + 1
        wake_s = self._now_s + min(_FIRST_PAUSE_S * 2 ** (move.refusals - 1), _LONGEST_PAUSE_S)
        if is_final or wake_s > move.deadline_s:
            self._keep(move)
        else:
            move.phase, move.wake_s = Phase.PAUSED, wake_s

    def _look(self) -> None:
        """At pauses that are over, and brokers that are gone."""
        for move in list(self._waiting):
            if move.phase is Phase.PREPARING and not (
                self.is_registered(move.owner) and self.is_registered(move.destination)
            ):
                self._stop_asking(move)
                self._release(move)
        for move in list(self._begun):
            if move.phase not in {Phase.ASKED, Phase.PAUSED}:
                continue
            if not self.is_registered(move.get_released().owner):
                self._stop_asking(move)
                self._complete(move)
            elif move.phase is Phase.PAUSED and move.wake_s <= self._now_s:
                self._ask(move)

    def _cancel(self, move: Move) -> None:
        if move.phase not in {Phase.ASKED, Phase.PAUSED}:
            return
        self._stop_asking(move)
        if self.is_registered(move.get_released().owner):
            move.is_cancelled, move.refusal = True, "cancelled by an operator"
            self._keep(move)
        else:
            self._complete(move)

    def _stop_asking(self, move: Move) -> None:
        if move.phase in {Phase.PREPARING, Phase.ASKED}:
            self._to_do.append(StopAsking(move))

    def _complete(self, move: Move) -> None:
        """Nobody serves the bundle: its destination gets it if it is still there, else nobody does until it is asked
        for.
        """
        released = move.get_released()
        destination = released.destination if self.is_registered(released.destination) else None
        move.phase = Phase.COMPLETING
        transition = _of_release(released, lambda current, stamp: complete(retarget(current, destination), stamp))
        self._to_do.append(Commit(move, transition, released.reason))

    def _keep(self, move: Move) -> None:
        """The owner keeps the bundle, at a higher version than it was asked to release."""
        move.phase = Phase.KEEPING
        self._to_do.append(Commit(move, _of_release(move.get_released(), abandon), move.why_kept.value))

    def _end(self, move: Move, outcome: Outcome) -> None:
        move.phase = Phase.ENDED
        self._waiting.pop(move, None)
        self._begun.pop(move, None)
        self._turns.end(move)
        if move.released is not None:
            self._by_version.pop((move.bundle, move.released.version), None)
        self._to_do.append(Ended(move, outcome))


def _of_release(
    released: Ownership, transition: Callable[[Ownership, Stamp], Ownership]
) -> Callable[[Ownership, Stamp], Ownership]:
    """The transition, of that very release: a later one of the same bundle is another move's."""

    def of_it(current: Ownership, stamp: Stamp) -> Ownership:
        if current.version != released.version:
            raise IllegalTransitionError(f"the release at version {released.version} is over: the bundle is {current}")
        return transition(current, stamp)

    return of_it
