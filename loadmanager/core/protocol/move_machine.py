"""State machine for moves: unloads that are queued, prepared, released, and completed or kept.

A passive state machine: `step(event, now_s)` returns actions, a driver executes them and reports results as events. At
`wake_s` the machine needs a step with `TIME`. The record is valid in every phase, so the next leader can complete any
release that it finds.

    phase       event                       if                              then
    -----       -----                       --                              ----
    (Want)                                                                                            ─▶ WAITING
    WAITING     it gets a permit            its destination prepares        Prepare                   ─▶ PREPARING
                                            else                            Commit its release        ─▶ RELEASING
                CancelWaiting                                               Ended: Cancelled
    PREPARING   Prepared                                                    Commit its release        ─▶ RELEASING
                MEMBERSHIP                  one of the two is not           StopAsking, Commit its
                                            registered                      release                   ─▶ RELEASING
                CancelWaiting                                               StopAsking, Ended: Cancelled
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
    KEEPING     Committed                   another broker has it           Ended: Moved
                                            else                            Ended: Kept
    both        NotCommitted                                                Ended: Failed
    RELEASING,  Unanswered, and the         is what was to be written       as Committed
    COMPLETING, record, read again,         is the release as it was        Commit the same again
    KEEPING                                 is another                      Ended: Failed

A destination prepares while the owner still serves, so preparation adds no downtime. The move continues if the
destination is slow, fails, or cannot prepare. Nobody notifies the destination of a cancelled move.

A move that ended with Failed may leave its bundle released: the reconciler resumes it. A move holds a permit from
PREPARING to the end, also while the outcome of a write is unknown; a resumed move takes one regardless of the limits.
Where another system places bundles (a real Pulsar), a commit records the actual owner, whatever was to be written.
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
from loadmanager.core.protocol.state_machine import Signal

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
    """The bundle has changed since the step was planned."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Precondition of a step: the owner of the bundle, and its version unless that does not matter."""

    owner: Registration
    version: int | None = None

    def check(self, current: Ownership) -> None:
        """Raise `StaleStepError` unless the precondition holds."""
        if current.state is not OwnershipState.OWNED or current.owner != self.owner:
            raise StaleStepError(f"it is {current}, and not owned by {self.owner}")
        if self.version not in (None, current.version):
            raise StaleStepError(f"it is at version {current.version}, and not at {self.version}")


@dataclass(slots=True, eq=False)
class Move:
    """One unload of one bundle. `check` may reject the current ownership when the release is written; `released` is the
    ownership while released, `refusal` the owner's last refusal.
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
        """Return the source and the destination, where known."""
        return frozenset(each.broker for each in (self.owner, self.destination) if each is not None)

    @property
    def reason_to_keep(self) -> Reason:
        """Return the reason that is recorded if the owner keeps the bundle."""
        return OwnershipReason.UNLOAD_CANCELLED if self.is_cancelled else OwnershipReason.UNLOAD_FAILED

    def get_released(self) -> Ownership:
        """Return the released ownership of a move that has begun."""
        assert self.released is not None, "it has not begun"
        return self.released


@dataclass(frozen=True, slots=True)
class Moved:
    """The owner released the bundle; `done` is its ownership now."""

    done: Ownership


@dataclass(frozen=True, slots=True)
class Kept:
    """The owner keeps the bundle: the deadline passed, or an operator cancelled the move (`refusal`)."""

    kept: Ownership
    reason: Reason
    refusal: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The move was cancelled before it began."""

    why: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A write was refused, or its outcome is unknown; `error` is the driver's."""

    error: Exception


Outcome = Moved | Kept | Cancelled | Failed

# Events


@dataclass(frozen=True, slots=True)
class Want:
    """Queue a move."""

    move: Move


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue a release that was found in the records."""

    move: Move


@dataclass(frozen=True, slots=True)
class CancelWaiting:
    """Cancel the queued moves for which `is_meant` is true."""

    is_meant: Callable[[Move], bool]
    why: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a move that has begun: the owner keeps the bundle."""

    move: Move


@dataclass(frozen=True, slots=True)
class Prepared:
    """The destination has finished preparing, or failed to."""

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
    """A write has an unknown outcome; `stored` is the ownership read afterwards, None if the bundle is gone."""

    move: Move
    stored: Ownership | None
    error: Exception


@dataclass(frozen=True, slots=True)
class OwnerAnswered:
    """Answer of the owner: None if it released the bundle, else its refusal or an error; `is_final`: do not retry."""

    move: Move
    refusal: str | None
    is_final: bool = False


Event = (
    Want | Resume | CancelWaiting | Cancel | Prepared | Committed | NotCommitted | Unanswered | OwnerAnswered | Signal
)

# Actions


@dataclass(frozen=True, slots=True)
class Prepare:
    """Ask the destination to prepare, for at most `timeout_s`; always answered by Prepared."""

    move: Move
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Commit:
    """Write the `transition` of the bundle's ownership; answered by Committed, NotCommitted or Unanswered."""

    move: Move
    transition: Callable[[Ownership, Stamp], Ownership]
    reason: str


@dataclass(frozen=True, slots=True)
class AskOwner:
    """Ask the owner to release the bundle within `timeout_s`; answered by OwnerAnswered."""

    move: Move
    timeout_s: float


@dataclass(frozen=True, slots=True)
class StopAsking:
    """Cancel the request to the owner or destination; its answer is no longer wanted."""

    move: Move


@dataclass(frozen=True, slots=True)
class Ended:
    move: Move
    outcome: Outcome


Action = Prepare | Commit | AskOwner | StopAsking | Ended


@dataclass(frozen=True, slots=True)
class WithdrawMove:
    """Action of the machines that order moves: cancel the move of the bundle if it is still queued."""

    bundle: str


@dataclass(slots=True)
class MoveMachine:
    """State machine for the moves of one leader. Callables return current values: `limits` the global and the
    per-broker limit, `deadline_s` the time an owner has to release, `prepare_s` the time a destination has to prepare
    (0: none).
    """

    limits: Callable[[], tuple[int, int]]
    deadline_s: Callable[[], float]
    is_registered: Callable[[Registration | None], bool]
    prepare_s: Callable[[Registration], float] = lambda _: 0.0
    _limiter: ConcurrencyLimiter[Move] = field(init=False)
    _waiting: dict[Move, None] = field(default_factory=dict)
    _begun: dict[Move, None] = field(default_factory=dict)
    _by_version: dict[tuple[str, int], Move] = field(default_factory=dict)
    _actions: list[Action] = field(default_factory=list)
    _now_s: float = 0.0

    def __post_init__(self) -> None:
        self._limiter = ConcurrencyLimiter(self.limits)

    @property
    def known(self) -> list[Move]:
        """Return all moves: first the unreleased ones, in order of arrival."""
        return [*self._waiting, *self._begun]

    def is_waiting(self, bundle: str) -> bool:
        """Return True if a move of the bundle is queued or preparing."""
        return any(move.bundle == bundle for move in self._waiting)

    @property
    def wake_s(self) -> float | None:
        """Return the time when the next back-off ends."""
        return min((move.wake_s for move in self._begun if move.phase is Phase.PAUSED), default=None)

    def find(self, bundle: str, version: int) -> Move | None:
        """Find the move that released the bundle at this version."""
        return self._by_version.get((bundle, version))

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Process an event and return the actions that follow. Events of ended moves are ignored."""
        self._now_s = now_s
        match event:
            case Want(move):
                self._waiting[move] = None
                self._limiter.enqueue(move, move.brokers)
            case Resume(move):
                self._limiter.acquire(move, move.brokers)
                self._follow(move, move.get_released())
            case CancelWaiting(is_meant, why):
                self._cancel_waiting([move for move in self._waiting if is_meant(move)], why)
            case Cancel(move):
                self._cancel(move)
            case Prepared(move):
                self._on_prepared(move)
            case Committed(move, stored):
                self._on_committed(move, stored)
            case NotCommitted(move, error):
                self._end(move, Failed(error))
            case Unanswered(move, stored, error):
                self._on_unanswered(move, stored, error)
            case OwnerAnswered(move, refusal, is_final):
                self._on_answered(move, refusal, is_final=is_final)
            case _:
                self._look()
        self._grant_permits()
        actions, self._actions = self._actions, []
        return actions

    def forget(self) -> list[Move]:
        """Drop all moves at the end of the term, and return them. The next leader finishes released ones."""
        ended = self.known
        for move in ended:
            move.phase = Phase.ENDED
        self._limiter = ConcurrencyLimiter(self.limits)
        self._waiting.clear()
        self._begun.clear()
        self._by_version.clear()
        return ended

    def _grant_permits(self) -> None:
        for move in self._limiter.grant():
            self._prepare(move)

    def _prepare(self, move: Move) -> None:
        """Let the destination prepare before the release, or release at once if it has nothing to prepare."""
        destination = move.destination
        timeout_s = self.prepare_s(destination) if destination is not None else 0.0
        if timeout_s > 0 and self.is_registered(destination):
            move.phase = Phase.PREPARING
            self._actions.append(Prepare(move, timeout_s))
        else:
            self._release(move)

    def _on_prepared(self, move: Move) -> None:
        if move.phase is Phase.PREPARING:
            self._release(move)

    def _cancel_waiting(self, moves: Iterable[Move], why: str) -> None:
        for move in moves:
            self._stop_asking(move)
            self._end(move, Cancelled(why))

    def _release(self, move: Move) -> None:
        del self._waiting[move]
        self._begun[move] = None
        move.phase = Phase.RELEASING
        self._actions.append(Commit(move, self._releasing(move), move.reason))

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

    def _on_committed(self, move: Move, stored: Ownership) -> None:
        if move.phase is Phase.RELEASING:
            self._follow(move, stored)
        elif move.phase is Phase.COMPLETING or stored.owner not in (None, move.get_released().owner):
            self._end(move, Moved(stored))
        else:
            self._end(move, Kept(stored, move.reason_to_keep, move.refusal))

    def _on_unanswered(self, move: Move, stored: Ownership | None, error: Exception) -> None:
        """Resolve a write of unknown outcome from the stored record; repeat a final write that did not happen."""
        before = move.released
        if stored is None:
            self._end(move, Failed(error))
        elif before is None:
            is_ours = stored.state is OwnershipState.RELEASING and stored.owner == move.owner
            if is_ours and stored.destination == move.destination:
                self._on_committed(move, stored)
            else:
                self._end(move, Failed(error))
        elif stored.version == before.version:
            if move.phase is Phase.KEEPING:
                self._keep(move)
            else:
                self._complete(move)
        elif stored.version == before.version + 1 and stored.epoch >= before.epoch:
            self._on_committed(move, stored)
        else:
            self._end(move, Failed(error))

    def _follow(self, move: Move, released: Ownership) -> None:
        """Start the release deadline and ask the owner."""
        move.released = released
        move.deadline_s = self._now_s + self.deadline_s()
        self._begun[move] = None
        self._by_version[move.bundle, released.version] = move
        self._ask(move)

    def _ask(self, move: Move) -> None:
        if not self.is_registered(move.get_released().owner):
            self._complete(move)
            return
        move.phase = Phase.ASKED
        self._actions.append(AskOwner(move, move.deadline_s - self._now_s))

    def _on_answered(self, move: Move, refusal: str | None, *, is_final: bool) -> None:
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
        """Handle ended back-offs and brokers that have left."""
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
            self._actions.append(StopAsking(move))

    def _complete(self, move: Move) -> None:
        """Give the released bundle to its destination if that is registered, else free it."""
        released = move.get_released()
        destination = released.destination if self.is_registered(released.destination) else None
        move.phase = Phase.COMPLETING
        transition = _of_release(released, lambda current, stamp: complete(retarget(current, destination), stamp))
        self._actions.append(Commit(move, transition, released.reason))

    def _keep(self, move: Move) -> None:
        """Return the bundle to its owner, at a higher version than that of the release."""
        move.phase = Phase.KEEPING
        self._actions.append(Commit(move, _of_release(move.get_released(), abandon), move.reason_to_keep.value))

    def _end(self, move: Move, outcome: Outcome) -> None:
        move.phase = Phase.ENDED
        self._waiting.pop(move, None)
        self._begun.pop(move, None)
        self._limiter.release(move)
        if move.released is not None:
            self._by_version.pop((move.bundle, move.released.version), None)
        self._actions.append(Ended(move, outcome))


def _of_release(
    released: Ownership, transition: Callable[[Ownership, Stamp], Ownership]
) -> Callable[[Ownership, Stamp], Ownership]:
    """Restrict a transition to this release of the bundle."""

    def of_it(current: Ownership, stamp: Stamp) -> Ownership:
        if current.version != released.version:
            raise IllegalTransitionError(f"the release at version {released.version} is over: the bundle is {current}")
        return transition(current, stamp)

    return of_it
