"""What happened when, as far as records say it: bundles that moved or were split, and who began to lead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState


class MoveMoment(NamedTuple):
    """A bundle left a broker, for another or for nobody."""

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
    """The last so many of each kind, in the order in which they were heard of."""

    kept: int
    moves: deque[MoveMoment] = field(init=False)
    splits: deque[SplitMoment] = field(init=False)
    leaders: deque[LeaderMoment] = field(init=False)

    def __post_init__(self) -> None:
        self.moves, self.splits, self.leaders = (deque(maxlen=self.kept) for _ in range(3))

    def changed(self, before: NamespaceState, after: NamespaceState, now_ms: int) -> None:
        """A record took the place of another."""
        if before.bundles.boundaries == after.bundles.boundaries:
            self.moves.extend(_moves(before, after, now_ms))
        else:
            self.splits.extend(_splits(before, after, now_ms))

    def leads(self, node: str, epoch: int, at_ms: int) -> None:
        """Somebody leads; it is noted once for each epoch."""
        if all(each.epoch != epoch for each in self.leaders):
            self.leaders.append(LeaderMoment(at_ms, node, epoch))

    def recall(
        self, moves: Iterable[MoveMoment], splits: Iterable[SplitMoment], leaders: Iterable[LeaderMoment]
    ) -> None:
        """Put what was recorded before anything here was heard of in front of it, as far as there is room."""
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
    """Why it was released, if that was seen."""
    return former.reason if former.state is OwnershipState.RELEASING else owned.reason


def _splits(before: NamespaceState, after: NamespaceState, now_ms: int) -> Iterator[SplitMoment]:
    """Each bundle with a boundary within that it did not have."""
    new = sorted(set(after.bundles.boundaries) - set(before.bundles.boundaries))
    for index in dict.fromkeys(map(before.bundles.index_of_hash, new)):
        part = after.ownerships[after.bundles.index_of_hash(before.bundles.boundaries[index])]
        yield SplitMoment(part.since_ms or now_ms, before.bundle_name(index))
