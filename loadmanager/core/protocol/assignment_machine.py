"""Assignments: bundles that are to have an owner, asked for by lookups or in the background, and who gets them.

A passive machine, as `loadmanager.core.protocol.move_machine` is. There is one batch at a time, of 1,000 bundles at
most: those that somebody waits for come first, the others take the places that are left. With a bundle come those of
its namespace that are asked for, too: a record is written whole, so many bundles of few namespaces cost less than one
of each. The next batch is decided when each bundle of it has its answer, and so by what it has made. All of a batch are
decided together, and written together in each namespace.

    a bundle     event                       if                                    then
    --------     -----                       --                                    ----
                 AssignmentWanted                                                                           ─▶ ASKED
                 PlaceSoon                                                                                  ─▶ BACKLOG
    BACKLOG      AssignmentWanted                                                                           ─▶ ASKED
    ASKED,       TIME: the last batch is     it waits for its owner, who is back   Write that it returns    ─▶ WRITTEN
    BACKLOG      over, the bundle is in      it waits for one who is away          AnswerWaiters: HeldForBroker
                 the next one                it waits for nobody                                            ─▶ UNDECIDED
    UNDECIDED    TIME: nothing is WRITTEN                                          DecideAssignments        ─▶ DECIDED
    DECIDED      AssignmentsDecided          it is given to somebody               Write that               ─▶ WRITTEN
                                             it is not, and has an owner by now    AnswerWaiters: its ownership
                                             it is not                             AnswerWaiters: the verdict
                 NotDecided                                                        AnswerWaiters: the error
    WRITTEN      WriteEnded                  that is stored                        AnswerWaiters: Given
                                             it is not, or nobody knows            AnswerWaiters: the error

An Ask for a bundle that is in the batch gets the answer that the bundle gets. Whoever is told that nobody knows what
became of a write asks again: the record, read again by then, says whether the bundle has an owner.

A bundle is waited with while its owner has gone and is held off (`Mirror.holds`). It is given away only to a broker
that is registered at the moment of the write, and only if it is free, or inherited: its owner has gone.
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
from loadmanager.core.protocol.bundle_writes import Transition, Write, WriteEnded, writes_of
from loadmanager.core.protocol.mirror import Mirror, find_gone_owner
from loadmanager.core.protocol.signals import Signal

_BATCH = 1_000
"""A lookup waits for the batch under way and is in the next one."""
_COMING_BACK_S = 1.0
"""Since a bundle was inherited: who asks for many has the next ones asked for by then."""


@dataclass(frozen=True, slots=True)
class Given:
    """The step was made: the bundle is `stored` now. `former`: its owner of before, which has gone, if it had any."""

    stored: Ownership
    step: Assign
    because: Verdict
    former: Registration | None = None


@dataclass(frozen=True, slots=True)
class HeldForBroker:
    """It waits for its broker, for so many seconds at most."""

    broker: BrokerId
    left_s: float


Outcome = Given | Ownership | HeldForBroker | Verdict | Exception
"""The owner that it was given, one that it has got otherwise, or why it has none: an error if something failed."""

# Events


@dataclass(frozen=True, slots=True)
class AssignmentWanted:
    """Somebody waits for an owner of the bundle; `non_persistent`: for a topic that not every broker serves."""

    bundle: str
    non_persistent: bool = False


@dataclass(frozen=True, slots=True)
class PlaceSoon:
    """Bundles are to have an owner, and nobody waits for that."""

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


Event = AssignmentWanted | PlaceSoon | AssignmentsDecided | NotDecided | WriteEnded | Signal

# Instructions


@dataclass(frozen=True, slots=True, eq=False)
class DecideAssignments:
    """Have owners found for these bundles, and come back with Decided or NotDecided."""

    bundles: list[str]
    non_persistent: frozenset[str]


@dataclass(frozen=True, slots=True)
class AnswerWaiters:
    """Tell whoever waits for the bundle."""

    bundle: str
    outcome: Outcome


Instruction = DecideAssignments | Write | AnswerWaiters


@dataclass(slots=True)
class AssignmentMachine:
    """The assignments of one leader."""

    picture: Mirror
    _asked: dict[str, dict[str, bool]] = field(default_factory=dict)
    """By namespace and bundle whether for a non-persistent topic."""
    _backlog: dict[str, None] = field(default_factory=dict)
    _batch: set[str] = field(default_factory=set)
    """Those of it that have no answer yet."""
    _undecided: DecideAssignments | None = None
    _deciding: DecideAssignments | None = None
    _writes: set[Write] = field(default_factory=set)
    _giving: dict[str, tuple[Assign, Verdict]] = field(default_factory=dict)
    _former: dict[str, Registration] = field(default_factory=dict)
    """The owners, which have gone, of those that are being given away."""
    _to_do: list[Instruction] = field(default_factory=list)
    _now_s: float = 0.0
    _inherited_s: float = -math.inf
    """When a bundle was inherited last."""

    @property
    def wake_s(self) -> float | None:
        """At once, when something comes next: what is asked for in one moment is in one batch."""
        is_busy = self._deciding is not None or self._writes
        return None if is_busy or not (self._undecided or self._asked or self._backlog) else self._now_s

    def is_assigning(self, now_s: float) -> bool:
        """Whether there are bundles that have no answer yet, or clients are coming back for those of a lost owner."""
        return bool(self._asked or self._backlog or self._batch) or now_s < self._inherited_s + _COMING_BACK_S

    def step(self, event: Event, now_s: float) -> list[Instruction]:
        """What there is to do now that this has happened; what nobody waits for any more is passed over."""
        self._now_s = now_s
        match event:
            case AssignmentWanted(bundle, non_persistent):
                self._ask(bundle, non_persistent=non_persistent)
            case PlaceSoon(bundles):
                self._backlog.update((bundle, None) for bundle in bundles if not self._is_under_way(bundle))
            case AssignmentsDecided(decide, plan) if decide is self._deciding:
                self._decided(decide.bundles, plan)
            case NotDecided(decide, error) if decide is self._deciding:
                self._deciding = None
                for bundle in decide.bundles:
                    self._answer(bundle, error)
            case WriteEnded(write, made) if write in self._writes:
                self._written(write, made)
            case Signal.TIME:
                self._go_on()
        to_do, self._to_do = self._to_do, []
        return to_do

    def forget(self) -> None:
        """The term is over: those who wait are told by the driver."""
        for kept in (self._asked, self._backlog, self._batch, self._writes, self._giving, self._former):
            kept.clear()
        self._undecided = self._deciding = None
        self._inherited_s = -math.inf

    def _ask(self, bundle: str, *, non_persistent: bool) -> None:
        if bundle not in self._batch:
            self._backlog.pop(bundle, None)
            asked = self._asked.setdefault(namespace_of(bundle), {})
            asked[bundle] = asked.get(bundle, False) or non_persistent

    def _is_under_way(self, bundle: str) -> bool:
        """Whether it is in the batch, or somebody waits for it."""
        return bundle in self._batch or bundle in self._asked.get(namespace_of(bundle), ())

    def _go_on(self) -> None:
        while self.wake_s is not None:
            if self._undecided is not None:
                self._deciding, self._undecided = self._undecided, None
                self._to_do.append(self._deciding)
            else:
                self._begin()

    def _begin(self) -> None:
        """The next batch: those that somebody waits for, then the others, each in their order."""
        asked = self._take_asked()
        others = list(islice(self._backlog, _BATCH - len(asked)))
        for bundle in others:
            del self._backlog[bundle]
        batch = [*asked, *others]
        self._batch.update(batch)
        undecided = self._give_back(batch)
        if undecided:
            self._undecided = DecideAssignments(
                undecided, frozenset(bundle for bundle in undecided if asked.get(bundle))
            )

    def _take_asked(self) -> dict[str, bool]:
        """All that is asked for of the namespaces that were first, while there are places; the rest waits longer."""
        taken: dict[str, bool] = {}
        while self._asked and len(taken) < _BATCH:
            namespace = next(iter(self._asked))
            asked = self._asked.pop(namespace)
            taken.update(islice(asked.items(), _BATCH - len(taken)))
            left = {bundle: each for bundle, each in asked.items() if bundle not in taken}
            if left:
                self._asked[namespace] = left
        return taken

    def _give_back(self, batch: list[str]) -> list[str]:
        """Bundles that wait for their broker go to it if it is back, else to nobody; the others are returned."""
        holds = self.picture.holds()
        if not holds:
            return batch
        others: list[str] = []
        returning: list[tuple[Assign, Verdict]] = []
        for bundle in batch:
            current = self.picture.find_ownership(bundle)
            owner = None if current is None else find_gone_owner(self.picture, current)
            if owner is None or owner.broker not in holds:
                others.append(bundle)
                continue
            back = self.picture.registrations.get(owner.broker)
            if back is None:
                self._answer(bundle, HeldForBroker(owner.broker, holds[owner.broker]))
            else:
                why = Verdict(bundle, PlacementReason.HELD_FOR_OWNER, acted=True, why={"broker": back.broker})
                returning.append((Assign(bundle, back, PlacementReason.HELD_FOR_OWNER), why))
        self._give(returning)
        return others

    def _decided(self, bundles: list[str], plan: Plan) -> None:
        self._deciding = None
        verdicts = {verdict.subject: verdict for verdict in plan.verdicts}
        steps = {step.bundle: step for step in plan.steps if isinstance(step, Assign)}
        self._give([(step, verdicts[bundle]) for bundle, step in steps.items()])
        for bundle in bundles:
            if bundle not in steps:
                self._answer(bundle, self._find_owned(bundle) or verdicts[bundle])

    def _find_owned(self, bundle: str) -> Ownership | None:
        """The ownership of a bundle that somebody serves."""
        current = self.picture.find_ownership(bundle)
        if current is None or current.state is not OwnershipState.OWNED:
            return None
        return current if self.picture.is_registered(current.owner) else None

    def _give(self, steps: list[tuple[Assign, Verdict]]) -> None:
        self._giving.update((step.bundle, (step, why)) for step, why in steps)
        writes = writes_of({step.bundle: self._giving_of(step) for step, _ in steps}, OwnershipReason.LOOKUP.value)
        self._writes.update(writes)
        self._to_do += writes

    def _giving_of(self, step: Assign) -> Transition:
        def give(current: Ownership, stamp: Stamp) -> Ownership:
            if not self.picture.is_registered(step.destination):
                raise IllegalTransitionError(f"{step.destination} left while {step.bundle} was being placed on it")
            former = find_gone_owner(self.picture, current)
            if former is None:
                return assign(current, step.destination, stamp)
            self._former[step.bundle] = former
            return inherit(current, step.destination, stamp)

        return give

    def _written(self, write: Write, made: Mapping[str, Ownership | Exception]) -> None:
        self._writes.discard(write)
        for bundle in write.transitions:
            outcome = made[bundle]
            (step, why), former = self._giving.pop(bundle), self._former.pop(bundle, None)
            if former is not None:
                self._inherited_s = self._now_s
            self._answer(bundle, Given(outcome, step, why, former) if isinstance(outcome, Ownership) else outcome)

    def _answer(self, bundle: str, outcome: Outcome) -> None:
        self._batch.discard(bundle)
        self._to_do.append(AnswerWaiters(bundle, outcome))
