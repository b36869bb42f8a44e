"""Pushed bundles of a namespace, with the owner of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadmanager.client.push_events import NamespaceUpdate, Owner, PushedBundle
from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles
from loadmanager.core.domain.names import HASH_SPACE_END, BundleRange, InvalidNameError

_ENDED = PushedBundle(BundleRange(0, HASH_SPACE_END))


@dataclass(slots=True, eq=False)
class Place:
    """Owner of the topics of one bundle. All of them share one object, so a move is one assignment.

    In a namespace that is not followed each topic has a place of its own. Nothing is pushed to it, so every lookup asks
    a node.
    """

    pushed: PushedBundle | None = None
    owner: Owner | None = None
    """Owner that a lookup returns without a request."""
    known: Owner | None = None
    """Last known owner, returned when no node can be reached."""
    known_until_s: float = math.inf
    was_named: bool = True
    """True if the owner was named since its last refusal. So refusals of several topics of one place count once."""
    refusals: int = 0
    """Consecutive refusals by the last known owner; at most one for each time it was named."""

    @property
    def is_moving(self) -> bool:
        return self.pushed is not None and self.pushed.is_moving

    @property
    def named(self) -> Owner | None:
        """Owner whose refusal counts: the one that clients use, else the last known one."""
        return self.owner or self.known

    def settle(self, owner: Owner | None) -> None:
        """Set the pushed owner, or the announced next one; None: no owner."""
        self.owner = owner
        self.known = self.known if self.is_moving else owner or self.known
        self.was_named, self.refusals = True, 0

    def end(self) -> None:
        """Mark the place as outdated: the bundle no longer exists or is unknown, so its topics need a new place."""
        self.pushed, self.owner, self.known = _ENDED, None, None


@dataclass(frozen=True, slots=True, eq=False)
class PushedBundles:
    """Bundles of a namespace between two splits or merges. A change of owner updates its place."""

    shape: NamespaceBundles
    places: tuple[Place, ...]
    brokers: dict[str, Owner | None]
    """Every current owner or destination by broker id, and some former ones."""

    @classmethod
    def of(cls, function: HashFunction, places: Iterable[Place], brokers: dict[str, Owner | None]) -> PushedBundles:
        """Build it; raises `InvalidNameError` unless the places cover each hash exactly once."""
        ascending = tuple(sorted(places, key=lambda place: _get_pushed(place).range))
        boundaries = [0]
        for each in map(_get_pushed, ascending):
            if each.range.lower != boundaries[-1]:
                raise InvalidNameError(f"bundle {each.range}: the one before ends at 0x{boundaries[-1]:08x}")
            boundaries.append(each.range.upper)
        return cls(NamespaceBundles(tuple(boundaries), function), ascending, brokers)

    @classmethod
    def of_snapshot(cls, update: NamespaceUpdate, function: HashFunction) -> PushedBundles:
        """Build it from a snapshot. Raises as `of` does."""
        brokers = dict(update.brokers)
        return cls.of(function, _places(update.bundles, brokers), brokers)

    def take(self, update: NamespaceUpdate) -> PushedBundles:
        """Apply a change: return this object, or a new one if bundles were split or merged. Raises as `of` does."""
        self._take_brokers(update.brokers)
        places = [self._place_of(each) for each in update.bundles]
        if any(place is None for place in places):
            return self._apply_reshaping(update.bundles)
        for place, pushed in zip(places, update.bundles, strict=True):
            assert place is not None, "looked at above"
            place.pushed = pushed
            place.settle(_owner_of(pushed, self.brokers))
        return self

    def is_older_than(self, other: PushedBundles) -> bool:
        """Tell if any bundle has a higher version in `other`. Versions of a hash only grow."""
        return any(
            _get_pushed(other.place_of_hash(_get_pushed(place).range.lower)).version > _get_pushed(place).version
            for place in self.places
        )

    def place_of_hash(self, value: int) -> Place:
        return self.places[self.shape.index_of_hash(value)]

    def _place_of(self, pushed: PushedBundle) -> Place | None:
        """Return the place of this bundle; None if its range is new here, or its known version is higher."""
        index = self.shape.find_index(pushed.range)
        if index is None or _get_pushed(self.places[index]).version > pushed.version:
            return None
        return self.places[index]

    def _take_brokers(self, brokers: Mapping[str, Owner | None]) -> None:
        altered = {name for name, owner in brokers.items() if self.brokers.get(name, owner) != owner}
        self.brokers.update(brokers)
        for place in self.places if altered else ():
            if not altered.isdisjoint((_get_pushed(place).owner, _get_pushed(place).destination)):
                place.settle(_owner_of(_get_pushed(place), self.brokers))
        if len(self.brokers) > 2 * len(self.places) + len(brokers):
            named = {
                name for place in self.places for name in (_get_pushed(place).owner, _get_pushed(place).destination)
            }
            for name in self.brokers.keys() - named - brokers.keys():
                del self.brokers[name]

    def _apply_reshaping(self, bundles: Iterable[PushedBundle]) -> PushedBundles:
        replaced: set[int] = set()
        for each in bundles:
            first, last = (self.shape.index_of_hash(value) for value in (each.range.lower, each.range.upper - 1))
            replaced.update(range(first, last + 1))
        kept = [place for index, place in enumerate(self.places) if index not in replaced]
        return PushedBundles.of(self.shape.hash_function, [*kept, *_places(bundles, self.brokers)], self.brokers)


def _places(bundles: Iterable[PushedBundle], brokers: Mapping[str, Owner | None]) -> list[Place]:
    owners = ((pushed, _owner_of(pushed, brokers)) for pushed in bundles)
    return [Place(pushed, owner, owner) for pushed, owner in owners]


def _owner_of(pushed: PushedBundle, brokers: Mapping[str, Owner | None]) -> Owner | None:
    """Return the owner, or the announced next one: that broker makes clients wait until it owns the bundle."""
    name = pushed.owner if pushed.is_owned else pushed.destination if pushed.is_moving else None
    return None if name is None else brokers.get(name)


def _get_pushed(place: Place) -> PushedBundle:
    assert place.pushed is not None, "the place of a bundle has what was pushed of it"
    return place.pushed
