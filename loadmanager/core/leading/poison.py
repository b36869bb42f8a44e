"""Poison: bundles whose last owners died soon after they got them. They are given to nobody until an operator lifts it.

A passive machine, as `loadmanager.core.leading.moves` is. A death is a registration that has ended while it owned the
bundle. So many in a row (`Rules.deaths`), of different registrations, each soon after it got the bundle, are too many.

    a bundle is   event                         if                                          then
    -----------   -----                         --                                          ----
    CLEAN         Died: its owner               soon after it got it                                     ─▶ SUSPECT
    SUSPECT       Died: the next owner          not soon                                                 ─▶ CLEAN
                                                soon, and they are too few yet                           ─▶ SUSPECT
                                                soon, they are too many, and so of no more
                                                than `Rules.most` bundles that this one had  Condemned   ─▶ POISON
                                                the same, of more bundles                    Spared      ─▶ SUSPECT
                  Died: of a later owner        soon: the count begins anew                              ─▶ SUSPECT
    any           Lift                                                                                   ─▶ CLEAN
    any           it is no more                                                                          ─▶ CLEAN

Who dies has many bundles, and most are innocent. They go to many brokers, of which the next one to die had few. Only
those that were with each of the last ones in a row stay suspects; where these are many, something else kills brokers.

The *next* owner is seen by the bundle's version: to be inherited adds one, to be freed and given away two, and whatever
else was done to it, such as a move from an owner that lives, more. The parts of a bundle that was split are others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from loadmanager.core.leading.picture import Picture
from loadmanager.core.ownership import OwnershipState, Registration

_FREED_AND_GIVEN = 2
_FORGET_S = 86_400.0
_LOOK_THROUGH_EVERY_S = 60.0
_MOST_SUSPECTS = 1_000
"""Kept of many, so that a znode holds them: those of which most owners have died, and the latest."""
_MS_PER_S = 1000


class Death(NamedTuple):
    """The end of a registration, seconds since 1970, and how long it had the bundle."""

    broker: str
    incarnation: int
    at_s: float
    held_s: float


class Suspect(NamedTuple):
    """The deaths of its last owners, the latest last; `version` is the bundle's as the last one had it."""

    version: int
    deaths: tuple[Death, ...]

    def after(self, before: Suspect | None) -> Suspect:
        """With the deaths before, if its first owner is the next after those, and another registration."""
        if before is not None and self.version == before.version:
            return before  # it is the same death: nobody has got the bundle since
        if before is None or not 0 < self.version - before.version <= _FREED_AND_GIVEN:
            return self
        known = {death[:2] for death in self.deaths}
        return Suspect(self.version, (*(each for each in before.deaths if each[:2] not in known), *self.deaths))


@dataclass(frozen=True, slots=True)
class Memory:
    """What outlives a leader: suspects, and the bundles that are poison with the deaths that made them so."""

    suspects: Mapping[str, Suspect] = field(default_factory=dict)
    poison: Mapping[str, tuple[Death, ...]] = field(default_factory=dict)

    def joined(self, later: Memory) -> Memory:
        """This, and what was seen later without knowing of it."""
        suspects = dict(self.suspects)
        for bundle, suspect in later.suspects.items():
            suspects[bundle] = suspect.after(suspects.get(bundle))
        return Memory(suspects, {**self.poison, **later.poison})


class Rules(NamedTuple):
    """`deaths` in a row, each within `soon_s` of the bundle's arrival, make poison, 0: none do; `most` at once."""

    deaths: int
    soon_s: float
    most: int


# Events


@dataclass(frozen=True, slots=True)
class Died:
    """This registration has ended, at this time, and owned these bundles."""

    owner: Registration
    bundles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lift:
    """An operator wants this bundle, or all, to be given away again."""

    bundle: str | None


# Instructions


@dataclass(frozen=True, slots=True)
class Condemned:
    """From now on the bundle is poison."""

    bundle: str
    deaths: tuple[Death, ...]


@dataclass(frozen=True, slots=True)
class Spared:
    """So many bundles would be, that none is."""

    owner: Registration
    bundles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remember:
    """The memory is another: it is worth writing down."""


Instruction = Condemned | Spared | Remember


@dataclass(slots=True)
class Poison:
    """`rules` are asked anew each time; `memory` is what it goes by."""

    picture: Picture
    rules: Callable[[], Rules]
    memory: Memory = field(default_factory=Memory)
    _looked_through_s: float = -math.inf

    @property
    def poison(self) -> dict[str, tuple[Death, ...]]:
        """The bundles that are poison now, with the deaths that made them so."""
        there = self.picture.find_ownership
        return {bundle: deaths for bundle, deaths in self.memory.poison.items() if there(bundle) is not None}

    def step(self, event: Died | Lift, now_s: float) -> list[Instruction]:
        """What there is to do now that this has happened, seconds since 1970."""
        before = self.memory
        self._forget(now_s)
        to_do = self._died(event.owner, event.bundles, now_s) if isinstance(event, Died) else self._lift(event.bundle)
        return to_do if self.memory == before else [*to_do, Remember()]

    def _forget(self, now_s: float) -> None:
        """What is of bundles that are no more, or long ago, now and then; and of too many suspects the least."""
        suspects = self.memory.suspects
        if len(suspects) <= 2 * _MOST_SUSPECTS and now_s - self._looked_through_s < _LOOK_THROUGH_EVERY_S:
            return
        self._looked_through_s = now_s
        there = self.picture.find_ownership
        kept = {
            bundle: suspect
            for bundle, suspect in suspects.items()
            if now_s - suspect.deaths[-1].at_s <= _FORGET_S and there(bundle) is not None
        }
        worst = sorted(kept, key=lambda bundle: (len(kept[bundle].deaths), kept[bundle].deaths[-1].at_s))
        self.memory = Memory(
            {bundle: kept[bundle] for bundle in worst[-_MOST_SUSPECTS:]},
            self.poison,
        )

    def _lift(self, bundle: str | None) -> list[Instruction]:
        if bundle is None:
            self.memory = Memory()
            return []
        suspects = {name: each for name, each in self.memory.suspects.items() if name != bundle}
        poison = {name: each for name, each in self.memory.poison.items() if name != bundle}
        self.memory = Memory(suspects, poison)
        return []

    def _died(self, owner: Registration, bundles: tuple[str, ...], now_s: float) -> list[Instruction]:
        rules, suspects, ripe = self.rules(), dict(self.memory.suspects), list[str]()
        for bundle in bundles if rules.deaths else ():
            if bundle in self.memory.poison:
                continue
            suspect = self._suspect(bundle, owner, suspects.pop(bundle, None), now_s)
            if suspect is not None:
                suspects[bundle] = suspect
                ripe += [bundle] if len(suspect.deaths) >= rules.deaths else []
        poison = dict(self.memory.poison)
        condemned = ripe if len(ripe) <= rules.most else []
        for bundle in condemned:
            poison[bundle] = suspects.pop(bundle).deaths
        self.memory = Memory(suspects, poison)
        if len(condemned) < len(ripe):
            return [Spared(owner, tuple(ripe))]
        return [Condemned(bundle, poison[bundle]) for bundle in condemned]

    def _suspect(self, bundle: str, owner: Registration, before: Suspect | None, now_s: float) -> Suspect | None:
        """What the bundle is suspected of now that its owner has died; None: of nothing."""
        held = self.picture.find_ownership(bundle)
        if held is None or held.owner != owner or held.state is not OwnershipState.OWNED:
            return before
        if before is not None and before.version == held.version:
            return before  # this death is known
        death = Death(owner.broker, owner.incarnation, now_s, max(0.0, now_s - held.since_ms / _MS_PER_S))
        if death.held_s > self.rules().soon_s:
            return None
        return Suspect(held.version, (death,)).after(before)
