"""Reconciling: what the records say is unfinished, and who finishes it. Level-triggered: nothing is missed for good.

A passive machine, as `loadmanager.core.leading.moves` is. It has all records looked at, and finishes what they show.

    phase     event                       if                                then
    -----     -----                       --                                ----
    RESTING   TIME                        the next look is due              Look                             ─▶ LOOKING
    LOOKING   Looked                      bundles are to be freed           Write that they are free         ─▶ FREEING
                                          there are none                                                     ─▶ RESTING
    FREEING   WriteEnded                  bundles are free by it            Freed, and Place if that is wanted
                                          it was the last one                                                ─▶ RESTING

The next look is due at once when a term begins, and when something has changed by which a bundle may have come to be
unfinished (MEMBERSHIP), also while one is under way; else when the next broker's time to return is over, and after 30 s
at the latest. This is what is finished:

    a bundle is                           if                                then
    -----------                           --                                ----
    Releasing                                                               SeeThrough, unless somebody does
    Owned by a broker that has gone       it is held off, and back          Place: it gets it back (see assignments)
                                          it is held off, and away          (it waits until the time is over)
                                          it is not held off                Write that it is free
    Free since its owner has gone         that is wanted                    Place

Bundles of brokers that have gone are placed without being asked for if that is wanted; while there is no broker at all,
they wait for the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadmanager.core.leading.picture import Picture, find_gone_owner
from loadmanager.core.leading.signal import Signal
from loadmanager.core.leading.writing import Transition, Write, WriteEnded, writes_of
from loadmanager.core.ownership import (
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    owner_gone,
)
from loadmanager.core.reasons import OwnershipReason

_LONGEST_PAUSE_S = 30.0
_SOON_S = 0.05

# Events


@dataclass(frozen=True, slots=True)
class Looked:
    """All records were looked at: the bundles in them that may be unfinished, by `Reconciling.is_unfinished`."""

    found: Sequence[tuple[str, Ownership]]


Event = Looked | WriteEnded | Signal

# Instructions


@dataclass(frozen=True, slots=True)
class Look:
    """Look at all records, and come back with Looked."""


@dataclass(frozen=True, slots=True)
class SeeThrough:
    """See the release of this bundle through, if nobody does."""

    bundle: str


@dataclass(frozen=True, slots=True)
class Place:
    """Have owners found for these bundles, for which nobody waits."""

    bundles: Sequence[str]


@dataclass(frozen=True, slots=True)
class Freed:
    """A bundle of this owner is free, or why it is not, or why nobody knows."""

    bundle: str
    owner: Registration
    outcome: Ownership | Exception


Instruction = Look | SeeThrough | Place | Write | Freed


@dataclass(slots=True)
class Reconciling:
    """What one leader finds unfinished. `places_at_once`: bundles of brokers that have gone are to have other owners
    without being asked for; it is asked anew each time.
    """

    picture: Picture
    places_at_once: Callable[[], bool]
    _due_s: float = -math.inf
    _is_looking: bool = False
    _writes: set[Write] = field(default_factory=set)
    _owners: dict[str, Registration] = field(default_factory=dict)
    """Of the bundles that are being freed."""
    _to_do: list[Instruction] = field(default_factory=list)

    @property
    def wake_s(self) -> float | None:
        """When the next look is due, unless one is under way."""
        return None if self._is_looking or self._writes else self._due_s

    def is_unfinished(self, ownership: Ownership) -> bool:
        """Whether there may be something to finish; whoever looks asks it of each bundle that there is."""
        if ownership.state is OwnershipState.FREE:
            return ownership.reason == OwnershipReason.OWNER_GONE.value and self._is_placed()
        return ownership.state is OwnershipState.RELEASING or not self.picture.is_registered(ownership.owner)

    def step(self, event: Event, now_s: float) -> list[Instruction]:
        """What there is to do now that this has happened; what nobody waits for any more is passed over."""
        match event:
            case Looked(found) if self._is_looking:
                self._is_looking = False
                self._finish(found)
                self._rest(now_s)
            case WriteEnded() if event.write in self._writes:
                self._written(event)
                self._rest(now_s)
            case Signal.MEMBERSHIP:
                self._due_s = min(self._due_s, now_s)
            case Signal.TIME if self.wake_s is not None and self.wake_s <= now_s:
                self._is_looking, self._due_s = True, math.inf
                self._to_do.append(Look())
        to_do, self._to_do = self._to_do, []
        return to_do

    def forget(self) -> None:
        """The term is over."""
        self._is_looking, self._due_s = False, -math.inf
        self._writes.clear()
        self._owners.clear()

    def _is_placed(self) -> bool:
        """Whether free bundles of brokers that have gone get other owners now; without a broker they wait for one."""
        return self.places_at_once() and bool(self.picture.registrations)

    def _finish(self, found: Sequence[tuple[str, Ownership]]) -> None:
        holds, wanted = self.picture.holds(), list[str]()
        for bundle, ownership in found:
            owner = find_gone_owner(self.picture, ownership)
            if ownership.state is OwnershipState.RELEASING:
                self._to_do.append(SeeThrough(bundle))
            elif owner is None:
                wanted += [bundle] if self.is_unfinished(ownership) else []
            elif owner.broker not in holds:
                self._owners[bundle] = owner
            elif owner.broker in self.picture.registrations:
                wanted.append(bundle)
        self._place(wanted)
        transitions = {bundle: self._freeing(bundle, owner) for bundle, owner in self._owners.items()}
        writes = writes_of(transitions, OwnershipReason.OWNER_GONE.value)
        self._writes.update(writes)
        self._to_do += writes

    def _freeing(self, bundle: str, owner: Registration) -> Transition:
        def free(current: Ownership, stamp: Stamp) -> Ownership:
            if find_gone_owner(self.picture, current) != owner:
                raise IllegalTransitionError(f"{bundle} has moved on: {current}")
            return owner_gone(current, stamp)

        return free

    def _written(self, ended: WriteEnded) -> None:
        self._writes.discard(ended.write)
        for bundle in ended.write.transitions:
            self._to_do.append(Freed(bundle, self._owners.pop(bundle), ended.made[bundle]))
        freed = [bundle for bundle, outcome in ended.made.items() if isinstance(outcome, Ownership)]
        self._place(freed if self._is_placed() else [])

    def _place(self, bundles: list[str]) -> None:
        if bundles:
            self._to_do.append(Place(bundles))

    def _rest(self, now_s: float) -> None:
        """Nothing is under way, unless writes are: look again soon enough."""
        if not self._writes:
            pause_s = min([_LONGEST_PAUSE_S, *(left_s + _SOON_S for left_s in self.picture.holds().values())])
            self._due_s = min(self._due_s, now_s + pause_s)
