"""Events of the timeline, derived from records: moves, splits and leader changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState


class MoveMoment(NamedTuple):
    """A bundle left a broker, for another or for none."""

    at_ms: int
    bundle: str
    source: str
    destination: str | None
    reason: str


class SplitMoment(NamedTuple):
    at_ms: int
    bundle: str


class LeaderMoment(NamedTuple):
    at_ms: int
    node: str
    epoch: int


@dataclass(slots=True, eq=False)
class Moments:
    """Bounded history of events of each kind, in order of arrival."""

    kept: int
    moves: deque[MoveMoment] = field(init=False)
    splits: deque[SplitMoment] = field(init=False)
    leaders: deque[LeaderMoment] = field(init=False)

    def __post_init__(self) -> None:
        self.moves, self.splits, self.leaders = (deque(maxlen=self.kept) for _ in range(3))

    def changed(self, before: NamespaceState, after: NamespaceState, now_ms: int) -> None:
        """Add the events between two states of a record."""
        if before.bundles.boundaries == after.bundles.boundaries:
            self.moves.extend(_moves(before, after, now_ms))
        else:
            self.splits.extend(_splits(before, after, now_ms))

    def leads(self, node: str, epoch: int, at_ms: int) -> None:
        """Add a leader change, once per epoch."""
        if all(each.epoch != epoch for each in self.leaders):
            self.leaders.append(LeaderMoment(at_ms, node, epoch))

    def recall(
        self, moves: Iterable[MoveMoment], splits: Iterable[SplitMoment], leaders: Iterable[LeaderMoment]
    ) -> None:
        """Prepend recorded events from before the first one here, as far as they fit."""
        self.moves = deque((*moves, *self.moves), self.kept)
        self.splits = deque((*splits, *self.splits), self.kept)
        known = {each.epoch for each in self.leaders}
        self.leaders = deque((*(each for each in leaders if each.epoch not in known), *self.leaders), self.kept)


def _moves(before: NamespaceState, after: NamespaceState, now_ms: int) -> Iterator[MoveMoment]:
    pairs = zip(before.ownerships, after.ownerships, strict=True)
    for index, (former, owned) in enumerate(pairs):
        if former is owned or former.owner is None or former.owner == owned.owner:
            continue
        destination = None if owned.owner is None else owned.owner.broker
        bundle, source = after.bundle_name(index), former.owner.broker
        yield MoveMoment(owned.since_ms or now_ms, bundle, source, destination, _reason(former, owned))


def _reason(former: Ownership, owned: Ownership) -> str:
    """Return the reason of the release, if it was observed."""
    return former.reason if former.state is OwnershipState.RELEASING else owned.reason


def _splits(before: NamespaceState, after: NamespaceState, now_ms: int) -> Iterator[SplitMoment]:
    """Yield each former bundle with new boundaries inside."""
    new = sorted(set(after.bundles.boundaries) - set(before.bundles.boundaries))
    for index in dict.fromkeys(map(before.bundles.index_of_hash, new)):
        part = after.ownerships[after.bundles.index_of_hash(before.bundles.boundaries[index])]
        yield SplitMoment(part.since_ms or now_ms, before.bundle_name(index))
