"""Reconciling: what the records say is unfinished, and who finishes it. Level-triggered: nothing is missed for good.

A passive machine, as `loadmanager.core.protocol.move_machine` is. It has all records looked at, and finishes what they
show.

    phase     event                       if                                then
    -----     -----                       --                                ----
    RESTING   TIME                        the next look is due              ReadRecords                      ─▶ LOOKING
    LOOKING   Looked                      bundles are to be freed           Write that they are free         ─▶ FREEING
                                          there are none                    what follows                     ─▶ RESTING
    FREEING   WriteEnded                                                    Freed, or NotFreed
                                          it was the last one                                                ─▶ RESTING

The next look is due at once when a term begins, and when something has changed by which a bundle may have come to be
unfinished (MEMBERSHIP), also while one is under way; but not sooner than `least_pause_s` after the last one, so that
brokers that restart together are looked at together. Else it is due when the next broker's time to return is over, or
what it left is to be freed, and after 30 s at the latest. This is what is finished:

    a bundle is                           if                                then
    -----------                           --                                ----
    Releasing                                                               SeeThrough, unless somebody does
    Owned by a broker that has gone       it is held off, and back          PlaceBundles: it gets it back
                                          it is held off, and away          (it waits until the time is over)
                                          it is not held off, that is
                                          wanted, and there is a broker     PlaceBundles
                                          it was found so FREED_AFTER_S
                                          ago, and nothing is assigned now,
                                          or 25 s longer ago                Write that it is free
                                          else                              (it waits until it is asked for)
    Free since its owner has gone         that is wanted, and there is a
                                          broker                            PlaceBundles

That life of a broker never comes back, so nobody serves the bundle, and whoever asks for it is given it in one step. So
when everything restarts, each bundle is written once. What nobody asks for is freed later, one write a namespace, so
that no record names for long an owner that there is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    Ownership,
    Registration,
    Stamp,
    owner_gone,
)
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.protocol.bundle_writes import Transition, Write, WriteEnded, writes_of
from loadmanager.core.protocol.mirror import Mirror, find_gone_owner
from loadmanager.core.protocol.signals import Signal

FREED_AFTER_S = 5.0
"""Clients that come back at once find their bundles before."""

_LONGEST_PAUSE_S = 30.0
_SOON_S = 0.05
_WHILE_ASSIGNING_S = 0.5
"""Until the next look for what is to be freed: what is being assigned is not held up by looks."""
_AT_MOST_LATER_S = 25.0
"""Clients that are refused again and again have something assigned at every moment."""

# Events


@dataclass(frozen=True, slots=True)
class Looked:
    """All records were looked at: the bundles that are Releasing, the owners of others that are not registered, and the
    bundles that are Free since their owner has gone, which may be left out unless such are to be placed.
    """

    releasing: Sequence[str]
    gone: Sequence[Registration]
    freed: Sequence[str] = ()


Event = Looked | WriteEnded | Signal

# Instructions


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Look at all records, and come back with Looked."""


@dataclass(frozen=True, slots=True)
class SeeThrough:
    """See the release of this bundle through, if nobody does."""

    bundle: str


@dataclass(frozen=True, slots=True)
class PlaceBundles:
    """Have owners found for these bundles, for which nobody waits."""

    bundles: Sequence[str]


@dataclass(frozen=True, slots=True)
class Freed:
    """This bundle of an owner that has gone is `stored` as free."""

    bundle: str
    owner: Registration
    stored: Ownership


@dataclass(frozen=True, slots=True)
class NotFreed:
    """It is not, or nobody knows."""

    bundle: str
    error: Exception


Instruction = ReadRecords | SeeThrough | PlaceBundles | Write | Freed | NotFreed


@dataclass(slots=True)
class ReconcilerMachine:
    """What one leader finds unfinished. `places_at_once`: bundles of brokers that have gone are to have other owners
    without being asked for; `bundles_of`: those that any of these owns, without those that it is to release;
    `is_assigning`: owners are being found for bundles at this time. They are asked anew each time.
    """

    picture: Mirror
    places_at_once: Callable[[], bool]
    bundles_of: Callable[[Iterable[Registration]], Sequence[str]]
    is_assigning: Callable[[float], bool] = lambda _: False
    least_pause_s: float = 0.05
    _due_s: float = -math.inf
    _soonest_s: float = -math.inf
    _is_looking: bool = False
    _free_s: dict[Registration, float] = field(default_factory=dict)
    """From when on what these own is to be freed."""
    _writes: set[Write] = field(default_factory=set)
    _former: dict[str, Registration] = field(default_factory=dict)
    """The owners of the bundles that are free by these."""
    _to_do: list[Instruction] = field(default_factory=list)

    @property
    def wake_s(self) -> float | None:
        """When the next look is due, unless one is under way, or what it found is being written."""
        return None if self._is_looking or self._writes else max(self._due_s, self._soonest_s)

    def step(self, event: Event, now_s: float) -> list[Instruction]:
        """What there is to do now that this has happened; what nobody waits for any more is passed over."""
        match event:
            case Looked() if self._is_looking:
                self._is_looking = False
                self._to_do += map(SeeThrough, event.releasing)
                self._finish(event, now_s)
                self._rest(now_s)
            case WriteEnded() if event.write in self._writes:
                self._written(event)
                self._rest(now_s)
            case Signal.MEMBERSHIP:
                self._due_s = min(self._due_s, now_s)
            case Signal.TIME if self.wake_s is not None and self.wake_s <= now_s:
                self._is_looking, self._due_s = True, math.inf
                self._to_do.append(ReadRecords())
        to_do, self._to_do = self._to_do, []
        return to_do

    def forget(self) -> None:
        """The term is over."""
        self._is_looking, self._due_s, self._soonest_s = False, -math.inf, -math.inf
        self._free_s.clear()
        self._writes.clear()
        self._former = {}

    def _finish(self, looked: Looked, now_s: float) -> None:
        """Without a broker nothing is placed."""
        there, holds = self.picture.registrations, self.picture.holds()
        is_placed = bool(there) and self.places_at_once()
        wanted = [owner for owner in looked.gone if (owner.broker in there if owner.broker in holds else is_placed)]
        bundles = [*(self.bundles_of(wanted) if wanted else ()), *(looked.freed if is_placed else ())]
        if bundles:
            self._to_do.append(PlaceBundles(bundles))
        left = [] if is_placed else [owner for owner in looked.gone if owner.broker not in holds]
        self._free_s = {owner: self._free_s.get(owner, now_s + FREED_AFTER_S) for owner in left}
        later_s = _AT_MOST_LATER_S if self.is_assigning(now_s) else 0.0
        self._free({owner for owner, free_s in self._free_s.items() if free_s + later_s <= now_s})

    def _free(self, owners: set[Registration]) -> None:
        """Whatever comes of it: what they own by the next look has as much time again."""
        for owner in owners:
            del self._free_s[owner]
        self._former = {}
        bundles = self.bundles_of(owners) if owners else ()
        transitions = {bundle: self._freeing(bundle, owners, self._former) for bundle in bundles}
        writes = writes_of(transitions, OwnershipReason.OWNER_GONE.value)
        self._writes.update(writes)
        self._to_do += writes

    def _freeing(self, bundle: str, owners: set[Registration], former: dict[str, Registration]) -> Transition:
        def free(current: Ownership, stamp: Stamp) -> Ownership:
            owner = find_gone_owner(self.picture, current)
            if owner is None or owner not in owners:
                raise IllegalTransitionError(f"{bundle} has moved on: {current}")
            former[bundle] = owner
            return owner_gone(current, stamp)

        return free

    def _written(self, ended: WriteEnded) -> None:
        self._writes.discard(ended.write)
        for bundle, outcome in ended.made.items():
            if isinstance(outcome, Ownership):
                self._to_do.append(Freed(bundle, self._former[bundle], outcome))
            else:
                self._to_do.append(NotFreed(bundle, outcome))

    def _rest(self, now_s: float) -> None:
        """Unless writes are under way: look again soon enough, and not too soon."""
        if not self._writes:
            ends_s = [now_s + left_s + _SOON_S for left_s in self.picture.holds().values()]
            free_s = [max(free_s, now_s + _WHILE_ASSIGNING_S) for free_s in self._free_s.values()]
            self._due_s = min([self._due_s, now_s + _LONGEST_PAUSE_S, *ends_s, *free_s])
            self._soonest_s = now_s + self.least_pause_s
