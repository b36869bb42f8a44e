"""Nodes that push a namespace, as far as a client sees them: their real encoding, and how far each of them has come."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from support.registrations import a_record

from loadmanager.client.pushed import EventReader, StreamEvent
from loadmanager.core.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.hashing import HashFunction
from loadmanager.core.names import BrokerId, NamespaceName
from loadmanager.core.ownership import (
    IllegalTransitionError,
    NamespaceState,
    OwnershipState,
    Registration,
    Stamp,
    abandon,
    assign,
    complete,
    owner_gone,
    release,
)
from loadmanager.http.watch_sheet import Sheet
from loadmanager.leader.picture.view import BrokerEntry, NamespaceEntry, lookup_answer

NAMESPACE = "t/ns"
STAMP = Stamp(1, 1, "test")
BROKERS = tuple(Registration(BrokerId(f"b{number}:8080"), number) for number in range(1, 4))


def an_entry(registration: Registration) -> BrokerEntry:
    record = a_record(registration.broker)
    answer = lookup_answer(registration.broker, record)
    assert answer is not None
    return BrokerEntry(registration, 0, record, b"", answer.to_json())


ENTRIES = {registration.broker: an_entry(registration) for registration in BROKERS}


def unowned(bundles: int = 4, function: HashFunction = HashFunction.MURMUR3_32) -> NamespaceState:
    name = NamespaceName.parse(NAMESPACE)
    return NamespaceState.unowned(name, NamespaceBundles(equal_boundaries(bundles), function))


def assigned(state: NamespaceState, index: int, broker: Registration = BROKERS[0]) -> NamespaceState:
    return state.with_ownerships({index: assign(state.ownerships[index], broker, STAMP)})


def moved_on(state: NamespaceState, chance: random.Random) -> NamespaceState:
    """One legal transition of any bundle, or another shape."""
    index = chance.randrange(len(state.bundles))
    now = state.ownerships[index]
    if chance.random() < 0.25 and now.state is not OwnershipState.RELEASING:
        bundle_range = state.bundles.range_at(index)
        middle = (bundle_range.lower + bundle_range.upper) // 2
        try:
            return (
                state.split(index, [middle], STAMP)
                if chance.random() < 0.5 and middle > bundle_range.lower and len(state.bundles) < 12
                else state.merge(index, STAMP)
            )
        except (IllegalTransitionError, ValueError):
            return state
    choices = {
        OwnershipState.FREE: [assign(now, chance.choice(BROKERS), STAMP)] if now.state is OwnershipState.FREE else [],
    }
    if now.state is OwnershipState.OWNED:
        destination = chance.choice([None, *BROKERS])
        choices[now.state] = [release(now, destination, STAMP), owner_gone(now, STAMP)]
    if now.state is OwnershipState.RELEASING:
        choices[now.state] = [complete(now, STAMP), abandon(now, STAMP)]
    return state.with_ownerships({index: chance.choice(choices[now.state])})


@dataclass
class PushingNode:
    """A node that has read `history` up to `at`."""

    history: Sequence[NamespaceState]
    at: int = 0
    brokers: Mapping[BrokerId, BrokerEntry] = field(default_factory=lambda: ENTRIES)
    sheet: Sheet = field(default_factory=lambda: Sheet(NAMESPACE))

    def __post_init__(self) -> None:
        self.look(self.at)

    def look(self, at: int) -> None:
        self.at = at
        self.sheet.look(NamespaceEntry(self.history[at], at, 1, 1), self.brokers)

    def event(self, mark: str = "") -> StreamEvent | None:
        """What takes a client with this mark to where the node is; None when it is there."""
        place = self.sheet.place_of(mark)
        return None if place == self.sheet.place else event_of(self.sheet.since(place))


def event_of(chunk: bytes) -> StreamEvent:
    """The event in a chunk of HTTP."""
    (event,) = EventReader().feed(chunk.partition(b"\r\n")[2])
    return event
