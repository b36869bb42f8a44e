"""State machine for assignments: finds owners for bundles that lookups or the reconciler ask for.

Bundles are assigned in batches of at most 1,000, one batch at a time. Bundles that lookups wait for come first, the
backlog fills the rest. All waiting bundles of a namespace share a batch, because its record is written as a whole. A
batch is decided together and written once per namespace. The next batch sees the results of the last one. Each state
is the field of this name, `_asked` to `_writing`.

    a bundle     event                       if                                    then
    --------     -----                       --                                    ----
                 AssignmentWanted                                                                           ─▶ ASKED
                 BackgroundAssignmentsWanted                                                                ─▶ BACKLOG
    BACKLOG      AssignmentWanted                                                                           ─▶ ASKED
    ASKED,       TIME: the last batch is     it is held, its owner is back         Write that it returns    ─▶ WRITING
    BACKLOG      over, the bundle is in      it is held, its owner is away         AnswerWaiters: HeldForBroker
                 the next one                it is not held                                                 ─▶ UNDECIDED
    UNDECIDED    TIME: nothing is WRITING                                          DecideAssignments        ─▶ DECIDING
    DECIDING     AssignmentsDecided          it has a destination                  Write that               ─▶ WRITING
                                             it has an owner meanwhile             AnswerWaiters: its ownership
                                             else                                  AnswerWaiters: the verdict
                 NotDecided                                                        AnswerWaiters: the error
    WRITING      WriteEnded                  stored                                AnswerWaiters: AssignmentMade
                                             refused, or the outcome is unknown    AnswerWaiters: the error

A lookup for a bundle in the current batch shares its answer. After a write of unknown outcome the caller retries. The
record is read again by then and shows if the bundle has an owner.

A bundle is held while its lost owner is in `Mirror.holds`. It is assigned only to a broker that is registered when the
write happens, and only if it is free or its owner is lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    assign,
    inherit,
)
from loadmanager.core.domain.plan import Assign, Plan, Verdict
from loadmanager.core.domain.reasons import OwnershipReason, PlacementReason
from loadmanager.core.protocol.state_machine import (
    Mirror,
    OwnerChange,
    Signal,
    Write,
    WriteEnded,
    find_gone_owner,
    group_writes,
)

_BATCH = 1_000
"""Maximum batch size; a lookup waits for the current batch and joins the next one."""
_COMING_BACK_S = 1.0
"""Time after the assignment of a lost owner's bundle in which its client probably sends further lookups."""


@dataclass(frozen=True, slots=True)
class AssignmentMade:
    """Outcome of a committed assignment. `former` is the previous owner, if it has left the cluster."""

    stored: Ownership
    step: Assign
    because: Verdict
    former: Registration | None = None


@dataclass(frozen=True, slots=True)
class HeldForBroker:
    """Outcome for a bundle that is held for its absent owner, for at most `left_s` seconds."""

    broker: BrokerId
    left_s: float


Outcome = AssignmentMade | Ownership | HeldForBroker | Verdict | Exception
"""The assignment, the current owner if it has one by now, or the reason why there is none: an error if it failed."""

# Events


@dataclass(frozen=True, slots=True)
class AssignmentWanted:
    """A lookup waits for an owner of the bundle; `non_persistent`: for a topic that not every broker serves."""

    bundle: str
    non_persistent: bool = False


@dataclass(frozen=True, slots=True)
class BackgroundAssignmentsWanted:
    """Bundles need an owner; no lookup waits for it."""

    bundles: Sequence[str]


@dataclass(frozen=True, slots=True)
class AssignmentsDecided:
    """The plan has a verdict on each bundle."""

    decide: DecideAssignments
    plan: Plan


@dataclass(frozen=True, slots=True)
class NotDecided:
    decide: DecideAssignments
    error: Exception


Event = AssignmentWanted | BackgroundAssignmentsWanted | AssignmentsDecided | NotDecided | WriteEnded | Signal

# Actions


@dataclass(frozen=True, slots=True, eq=False)
class DecideAssignments:
    """Choose owners for these bundles; answered by AssignmentsDecided or NotDecided."""

    bundles: list[str]
    non_persistent: frozenset[str]


@dataclass(frozen=True, slots=True)
class AnswerWaiters:
    """Complete the waiting lookups of the bundle with this outcome."""

    bundle: str
    outcome: Outcome


Action = DecideAssignments | Write | AnswerWaiters


@dataclass(slots=True)
class AssignmentMachine:
    """State machine for the assignments of one leader."""

    mirror: Mirror
    _asked: dict[str, dict[str, bool]] = field(default_factory=dict)
    """Waiting bundles by namespace; True if requested for a non-persistent topic."""
    _backlog: dict[str, None] = field(default_factory=dict)
    _batch: set[str] = field(default_factory=set)
    """Bundles of the current batch without an answer yet."""
    _undecided: DecideAssignments | None = None
    _deciding: DecideAssignments | None = None
    _writing: set[Write] = field(default_factory=set)
    _steps: dict[str, tuple[Assign, Verdict]] = field(default_factory=dict)
    _former: dict[str, Registration] = field(default_factory=dict)
    """Lost owner of each bundle that is being assigned."""
    _actions: list[Action] = field(default_factory=list)
    _now_s: float = 0.0
    _inherited_s: float = -math.inf
    """Time at which a bundle was last inherited."""

    @property
    def wake_s(self) -> float | None:
        """Return the current time if there is work, so that concurrent requests share a batch; None otherwise."""
        is_busy = self._deciding is not None or self._writing
        return None if is_busy or not (self._undecided or self._asked or self._backlog) else self._now_s

    def is_assigning(self, now_s: float) -> bool:
        """Return True while assignments are pending, or clients probably retry lookups of a lost owner's bundles."""
        return bool(self._asked or self._backlog or self._batch) or now_s < self._inherited_s + _COMING_BACK_S

    def step(self, event: Event, now_s: float) -> list[Action]:
        """Process an event and return the actions that follow. Stale events are ignored."""
        self._now_s = now_s
        match event:
            case AssignmentWanted(bundle, non_persistent):
                self._ask(bundle, non_persistent=non_persistent)
            case BackgroundAssignmentsWanted(bundles):
                asked = (each for each in bundles if each not in self._asked.get(namespace_of(each), ()))
                self._backlog.update((bundle, None) for bundle in asked if bundle not in self._batch)
            case AssignmentsDecided(decide, plan) if decide is self._deciding:
                self._on_decided(decide.bundles, plan)
            case NotDecided(decide, error) if decide is self._deciding:
                self._deciding = None
                for bundle in decide.bundles:
                    self._answer(bundle, error)
            case WriteEnded(write, made) if write in self._writing:
                self._on_written(write, made)
            case Signal.TIME:
                self._go_on()
        actions, self._actions = self._actions, []
        return actions

    def forget(self) -> None:
        """Drop all state at the end of the term. The driver answers the waiting lookups."""
        for kept in (self._asked, self._backlog, self._batch, self._writing, self._steps, self._former):
            kept.clear()
        self._undecided = self._deciding = None
        self._inherited_s = -math.inf

    def _ask(self, bundle: str, *, non_persistent: bool) -> None:
        if bundle not in self._batch:
            self._backlog.pop(bundle, None)
            asked = self._asked.setdefault(namespace_of(bundle), {})
            asked[bundle] = asked.get(bundle, False) or non_persistent

    def _go_on(self) -> None:
        while self.wake_s is not None:
            if self._undecided is not None:
                self._deciding, self._undecided = self._undecided, None
                self._actions.append(self._deciding)
            else:
                self._begin()

    def _begin(self) -> None:
        """Start the next batch: bundles that lookups wait for, then the backlog, each in order of arrival."""
        asked = self._take_asked()
        others = list(islice(self._backlog, _BATCH - len(asked)))
        for bundle in others:
            del self._backlog[bundle]
        batch = [*asked, *others]
        self._batch.update(batch)
        undecided = self._return_held(batch)
        if undecided:
            self._undecided = DecideAssignments(
                undecided, frozenset(bundle for bundle in undecided if asked.get(bundle))
            )

    def _take_asked(self) -> dict[str, bool]:
        """Take the bundles of the oldest waiting namespaces, up to the batch size. The rest stays in the queue."""
        taken: dict[str, bool] = {}
        while self._asked and len(taken) < _BATCH:
            namespace = next(iter(self._asked))
            asked = self._asked.pop(namespace)
            taken.update(islice(asked.items(), _BATCH - len(taken)))
            left = {bundle: each for bundle, each in asked.items() if bundle not in taken}
            if left:
                self._asked[namespace] = left
        return taken

    def _return_held(self, batch: list[str]) -> list[str]:
        """Reassign held bundles to their returned broker, or answer that they are held. Return all other bundles."""
        holds = self.mirror.holds()
        if not holds:
            return batch
        others: list[str] = []
        returning: list[tuple[Assign, Verdict]] = []
        for bundle in batch:
            current = self.mirror.find_ownership(bundle)
            owner = None if current is None else find_gone_owner(self.mirror, current)
            if owner is None or owner.broker not in holds:
                others.append(bundle)
                continue
            back = self.mirror.registrations.get(owner.broker)
            if back is None:
                self._answer(bundle, HeldForBroker(owner.broker, holds[owner.broker]))
            else:
                why = Verdict(bundle, PlacementReason.HELD_FOR_OWNER, acted=True, why={"broker": back.broker})
                returning.append((Assign(bundle, back, PlacementReason.HELD_FOR_OWNER), why))
        self._write_owners(returning)
        return others

    def _on_decided(self, bundles: list[str], plan: Plan) -> None:
        self._deciding = None
        verdicts = {verdict.subject: verdict for verdict in plan.verdicts}
        steps = {step.bundle: step for step in plan.steps if isinstance(step, Assign)}
        self._write_owners([(step, verdicts[bundle]) for bundle, step in steps.items()])
        for bundle in bundles:
            if bundle not in steps:
                self._answer(bundle, self._find_owned(bundle) or verdicts[bundle])

    def _find_owned(self, bundle: str) -> Ownership | None:
        """Find the ownership of a bundle whose owner is registered."""
        current = self.mirror.find_ownership(bundle)
        if current is None or current.state is not OwnershipState.OWNED:
            return None
        return current if self.mirror.is_registered(current.owner) else None

    def _write_owners(self, steps: list[tuple[Assign, Verdict]]) -> None:
        self._steps.update((step.bundle, (step, why)) for step, why in steps)
        writes = group_writes({step.bundle: self._assigning(step) for step, _ in steps}, OwnershipReason.LOOKUP.value)
        self._writing.update(writes)
        self._actions += writes

    def _assigning(self, step: Assign) -> OwnerChange:
        def change(current: Ownership, stamp: Stamp) -> Ownership:
            if not self.mirror.is_registered(step.destination):
                raise IllegalTransitionError(f"{step.destination} left while {step.bundle} was being placed on it")
            former = find_gone_owner(self.mirror, current)
            if former is None:
                return assign(current, step.destination, stamp)
            self._former[step.bundle] = former
            return inherit(current, step.destination, stamp)

        return change

    def _on_written(self, write: Write, made: Mapping[str, Ownership | Exception]) -> None:
        self._writing.discard(write)
        for bundle in write.transitions:
            outcome = made[bundle]
            (step, why), former = self._steps.pop(bundle), self._former.pop(bundle, None)
            if former is not None:
                self._inherited_s = self._now_s
            self._answer(
                bundle, AssignmentMade(outcome, step, why, former) if isinstance(outcome, Ownership) else outcome
            )

    def _answer(self, bundle: str, outcome: Outcome) -> None:
        self._batch.discard(bundle)
        self._actions.append(AnswerWaiters(bundle, outcome))
