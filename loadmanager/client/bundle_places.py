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

    A topic of a namespace that is not followed has one of its own: nothing is pushed to it, and it is always asked for.
    """

    pushed: PushedBundle | None = None
    owner: Owner | None = None
    """Owner that a lookup returns without a request."""
    known: Owner | None = None
    """Last known owner, returned when no node can be reached."""
    known_until_s: float = math.inf
    was_named: bool = True
    """True if the owner was named since its last refusal. Topics of one place are refused together, and count once."""
    refusals: int = 0
    """Consecutive refusals by the last known owner, at most one each time that it was named."""

    @property
    def is_moving(self) -> bool:
        return self.pushed is not None and self.pushed.is_moving

    @property
    def named(self) -> Owner | None:
        """Owner whose refusal counts: the one that clients are sent to, else the last known one."""
        return self.owner or self.known

    def settle(self, owner: Owner | None) -> None:
        """It was pushed who owns it, or is about to; None: nobody."""
        self.owner = owner
        self.known = self.known if self.is_moving else owner or self.known
        self.was_named, self.refusals = True, 0

    def end(self) -> None:
        """The bundle is no more, or nothing is known of it: its topics are to be looked for elsewhere."""
        self.pushed, self.owner, self.known = _ENDED, None, None


@dataclass(frozen=True, slots=True, eq=False)
class PushedBundles:
    """A namespace of one shape. Owners change in their places."""

    shape: NamespaceBundles
    places: tuple[Place, ...]
    brokers: dict[str, Owner | None]
    """Every current owner or destination by broker id, and some former ones."""

    @classmethod
    def of(cls, function: HashFunction, places: Iterable[Place], brokers: dict[str, Owner | None]) -> PushedBundles:
        """Raises `InvalidNameError` unless each hash has one place."""
        ascending = tuple(sorted(places, key=lambda place: _get_pushed(place).range))
        boundaries = [0]
        for each in map(_get_pushed, ascending):
            if each.range.lower != boundaries[-1]:
                raise InvalidNameError(f"bundle {each.range}: the one before ends at 0x{boundaries[-1]:08x}")
            boundaries.append(each.range.upper)
        return cls(NamespaceBundles(tuple(boundaries), function), ascending, brokers)

    @classmethod
    def of_snapshot(cls, update: NamespaceUpdate, function: HashFunction) -> PushedBundles:
        """Raises as `of` does."""
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
        """Tell if any bundle has a higher version in the other one. Versions of a hash only grow."""
        return any(
            _get_pushed(other.place_of_hash(_get_pushed(place).range.lower)).version > _get_pushed(place).version
            for place in self.places
        )

    def place_of_hash(self, value: int) -> Place:
        return self.places[self.shape.index_of_hash(value)]

    def _place_of(self, pushed: PushedBundle) -> Place | None:
        """The place that goes on with it; None for a bundle that was none, or that goes back in time."""
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
    """Return the owner, or the announced next one: that broker lets clients wait until it owns the bundle."""
    name = pushed.owner if pushed.is_owned else pushed.destination if pushed.is_moving else None
    return None if name is None else brokers.get(name)


def _get_pushed(place: Place) -> PushedBundle:
    assert place.pushed is not None, "the place of a bundle has what was pushed of it"
    return place.pushed
