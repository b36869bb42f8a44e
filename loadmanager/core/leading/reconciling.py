"""Reconciling: what the records say is unfinished, and who finishes it. Level-triggered: nothing is missed for good.

A passive machine, as `loadmanager.core.leading.moves` is. It has all records looked at, and finishes what they show.

    phase     event                       if                                then
    -----     -----                       --                                ----
    RESTING   TIME                        the next look is due              Look                             ─▶ LOOKING
    LOOKING   Looked                                                        what follows                     ─▶ RESTING

The next look is due at once when a term begins, and when something has changed by which a bundle may have come to be
unfinished (MEMBERSHIP), also while one is under way; but not sooner than `least_pause_s` after the last one, so that
brokers that restart together are looked at together. Else it is due when the next broker's time to return is over, and
after 30 s at the latest. This is what is finished:

    a bundle is                           if                                then
    -----------                           --                                ----
    Releasing                                                               SeeThrough, unless somebody does
    Owned by a broker that has gone       it is held off, and back          Place: it gets it back (see assignments)
                                          it is held off, and away          (it waits until the time is over)
                                          it is not held off, that is
                                          wanted, and there is a broker     Place
                                          else                              (it waits until it is asked for)

The record of a bundle whose owner has gone is left as it is until somebody else gets it: that life of the broker never
comes back, so nobody serves the bundle, and whoever gets it is given it in one step. So each bundle is written once,
also when everything restarts, and what nobody asks for is not written at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from loadmanager.core.leading.picture import Picture
from loadmanager.core.leading.signal import Signal
from loadmanager.core.ownership import Registration

_LONGEST_PAUSE_S = 30.0
_SOON_S = 0.05

# Events


@dataclass(frozen=True, slots=True)
class Looked:
    """All records were looked at: the bundles that are Releasing, and the owners of others that are not registered."""

    releasing: Sequence[str]
    gone: Iterable[Registration]


Event = Looked | Signal

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
    """Have owners found for all bundles that these own, for which nobody waits."""

    owners: Sequence[Registration]


Instruction = Look | SeeThrough | Place


@dataclass(slots=True)
class Reconciling:
    """What one leader finds unfinished. `places_at_once`: bundles of brokers that have gone are to have other owners
    without being asked for; it is asked anew each time.
    """

    picture: Picture
    places_at_once: Callable[[], bool]
    least_pause_s: float = 0.05
    _due_s: float = -math.inf
    _soonest_s: float = -math.inf
    _is_looking: bool = False
    _to_do: list[Instruction] = field(default_factory=list)

    @property
    def wake_s(self) -> float | None:
        """When the next look is due, unless one is under way."""
        return None if self._is_looking else max(self._due_s, self._soonest_s)

    def step(self, event: Event, now_s: float) -> list[Instruction]:
        """What there is to do now that this has happened; what nobody waits for any more is passed over."""
        match event:
            case Looked(releasing, gone) if self._is_looking:
                self._is_looking = False
                self._to_do += map(SeeThrough, releasing)
                self._place(gone)
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
        self._is_looking, self._due_s, self._soonest_s = False, -math.inf, -math.inf

    def _place(self, gone: Iterable[Registration]) -> None:
        """Without a broker all of them wait for one."""
        there, holds, places_at_once = self.picture.registrations, self.picture.holds(), self.places_at_once()
        wanted = [owner for owner in gone if (owner.broker in there if owner.broker in holds else places_at_once)]
        if wanted and there:
            self._to_do.append(Place(wanted))

    def _rest(self, now_s: float) -> None:
        """Look again soon enough, and not too soon."""
        pause_s = min([_LONGEST_PAUSE_S, *(left_s + _SOON_S for left_s in self.picture.holds().values())])
        self._due_s, self._soonest_s = min(self._due_s, now_s + pause_s), now_s + self.least_pause_s
