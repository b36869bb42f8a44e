"""Random walks of a namespace whose bundles change owners and ranges, with the agents of its brokers.

The leader uses the real transitions, the agents are real `Grants`. Claims and unload calls arrive late, out of order
and repeatedly. Invariants: ranges partition the hash space, versions never fall, and no topic is granted at two brokers
at a time. Faults need many events, so these are random walks and not Hypothesis rules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st
from support.invariants import ownership_violations

from loadmanager.agent.grants import Claim, Grants, Revocation, TopicQuestion
from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries, topic_hash
from loadmanager.core.domain.names import BrokerId, BundleName, BundleRange, NamespaceName, TopicName
from loadmanager.core.domain.ownership import (
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    abandon,
    assign,
    complete,
    inherit,
    owner_gone,
    release,
    succession_violations,
)

NAME = NamespaceName("t", "ns")
FUNCTION = HashFunction.MURMUR3_32
BROKERS = (BrokerId("a:1"), BrokerId("b:1"))
EIGHTHS = equal_boundaries(8)


def _topic_in(eighth: BundleRange) -> TopicName:
    names = (TopicName("persistent", NAME, f"k{number}") for number in count())
    return next(name for name in names if topic_hash(str(name), FUNCTION) in eighth)


TOPICS = [_topic_in(eighth) for eighth in NamespaceBundles(EIGHTHS).ranges()]
NEWEST = 6
"""Only the newest calls and answers can still arrive."""

T = TypeVar("T")


@dataclass
class BrokerWithGrants:
    """A registration of a broker with its agent; topics of `revocations` are still to be closed."""

    registration: Registration
    grants: Grants
    revocations: list[Revocation]


def a_life(broker: BrokerId, incarnation: int) -> BrokerWithGrants:
    grants = Grants(broker)
    grants.register(incarnation)
    return BrokerWithGrants(Registration(broker, incarnation), grants, [])


class ReshapedNamespace:
    """The leader's records, newest last, and two brokers."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.states = [NamespaceState.unowned(NAME, NamespaceBundles(equal_boundaries(2), FUNCTION))]
        self.brokers = {broker: a_life(broker, 1) for broker in BROKERS}
        self.calls: list[tuple[BundleName, Registration, int]] = []
        self.acknowledged: set[tuple[Registration, BundleName, int]] = set()
        self.answers: list[tuple[BrokerId, TopicQuestion, Claim]] = []

    def walk(self, steps: int) -> None:
        often = [
            self.assign,
            self.release,
            self.complete,
            self.unload_call_arrives,
            self.broker_has_closed_the_topics,
            self.broker_asks_for_a_topic,
            self.broker_asks_for_a_topic,
            self.answer_arrives,
            self.answer_arrives,
        ]
        seldom = [self.abandon, self.inherit, self.owner_gone, self.split, self.merge]
        for _ in range(steps):
            rare = [self.broker_registers_again] * (self.chance.random() < 0.1)
            self.chance.choice(often * 2 + seldom + rare)()
            self.check()

    def check(self) -> None:
        assert ownership_violations(self.state.bundles.ranges(), self.state.ownerships) == []
        assert succession_violations(*self.states[-2:] if len(self.states) > 1 else self.states * 2) == []
        for topic in TOPICS:
            owner = self.state.ownerships[self.state.bundles.index_of_topic(str(topic))].owner
            holders = [each.registration for each in self.brokers.values() if each.grants.find_bundle(str(topic))]
            assert holders in ([], [owner]), f"{topic} of {owner} is granted at {holders}"

    @property
    def state(self) -> NamespaceState:
        return self.states[-1]

    def stamp(self) -> Stamp:
        return Stamp(1, len(self.states), "test")

    def is_registered(self, owner: Registration | None) -> bool:
        return owner is not None and self.brokers[owner.broker].registration == owner

    def name(self, index: int) -> BundleName:
        return BundleName(NAME, self.state.bundles.range_at(index))

    def pick(self, things: Sequence[T]) -> list[T]:
        """Return a list with one of the newest things, or an empty list."""
        return [self.chance.choice(things[-NEWEST:])] if things else []

    def step(self, fits: Callable[[int, Ownership], bool], transition: Callable[[Ownership], Ownership]) -> list[int]:
        """Apply a transition to one fitting bundle; return its index in a list."""
        fitting = [index for index, ownership in enumerate(self.state.ownerships) if fits(index, ownership)]
        chosen = [self.chance.choice(fitting)] if fitting else []
        for index in chosen:
            self.states.append(self.state.with_ownerships({index: transition(self.state.ownerships[index])}))
        return chosen

    # The leader

    def assign(self) -> None:
        owner = self.brokers[self.chance.choice(BROKERS)].registration
        self.step(lambda _, o: o.owner is None, lambda o: assign(o, owner, self.stamp()))

    def release(self) -> None:
        other = self.brokers[self.chance.choice(BROKERS)].registration
        destination = self.chance.choice([None, other])
        begun = self.step(
            lambda _, o: o.state is OwnershipState.OWNED and o.owner != destination,
            lambda o: release(o, destination, self.stamp()),
        )
        for index in begun:
            ownership = self.state.ownerships[index]
            assert ownership.owner is not None
            self.calls.append((self.name(index), ownership.owner, ownership.version))

    def abandon(self) -> None:
        self.step(lambda _, o: o.state is OwnershipState.RELEASING, lambda o: abandon(o, self.stamp()))

    def complete(self) -> None:
        """End a release if the owner has acknowledged that version or is lost."""

        def has_let_go(index: int, ownership: Ownership) -> bool:
            if ownership.state is not OwnershipState.RELEASING or ownership.owner is None:
                return False
            is_acknowledged = (ownership.owner, self.name(index), ownership.version) in self.acknowledged
            return is_acknowledged or not self.is_registered(ownership.owner)

        def end(current: Ownership) -> Ownership:
            reached = current if self.is_registered(current.destination) else current._replace(destination=None)
            return complete(reached, self.stamp())

        self.step(has_let_go, end)

    def inherit(self) -> None:
        heir = self.chance.choice(list(self.brokers.values())).registration
        self.step(
            lambda _, o: o.state is OwnershipState.OWNED and not self.is_registered(o.owner),
            lambda o: inherit(o, heir, self.stamp()),
        )

    def owner_gone(self) -> None:
        self.step(
            lambda _, o: o.state is OwnershipState.OWNED and not self.is_registered(o.owner),
            lambda o: owner_gone(o, self.stamp()),
        )

    def split(self) -> None:
        """Split a bundle at one or more boundaries of eighths."""
        index = self.chance.randrange(len(self.state.bundles))
        own = self.state.bundles.range_at(index)
        inside = [cut for cut in EIGHTHS if own.lower < cut < own.upper]
        if inside and self.state.ownerships[index].state is not OwnershipState.RELEASING:
            cuts = sorted(self.chance.sample(inside, self.chance.randint(1, min(3, len(inside)))))
            self.states.append(self.state.split(index, cuts, self.stamp()))

    def merge(self) -> None:
        pairs = [
            index
            for index, (lower, upper) in enumerate(pairwise(self.state.ownerships))
            if (lower.state, lower.owner) == (upper.state, upper.owner) and lower.state is not OwnershipState.RELEASING
        ]
        if pairs:
            self.states.append(self.state.merge(self.chance.choice(pairs), self.stamp()))

    # The network and the agents

    def unload_call_arrives(self) -> None:
        for name, owner, version in self.pick(self.calls):
            broker = self.brokers[owner.broker]
            outcome = broker.grants.revoke(name, owner, 1, version, self.chance.choice([FUNCTION, FUNCTION, None]))
            if isinstance(outcome, Revocation):
                broker.revocations.append(outcome)

    def broker_has_closed_the_topics(self) -> None:
        broker = self.brokers[self.chance.choice(BROKERS)]
        for revocation in self.pick(broker.revocations):
            broker.grants.closed(revocation)
            self.acknowledged.add((broker.registration, revocation.bundle, revocation.version))

    def broker_asks_for_a_topic(self) -> None:
        """Have a node with a stale mirror answer a claim later."""
        topic, broker = self.chance.choice(TOPICS), self.chance.choice(BROKERS)
        question = self.brokers[broker].grants.ask(topic)
        assert question is not None
        seen = self.states[-1 - self.chance.randrange(min(8, len(self.states)))]
        index = seen.bundles.index_of_topic(str(topic))
        ownership, name = seen.ownerships[index], BundleName(NAME, seen.bundles.range_at(index))
        self.answers.append((broker, question, Claim(name, ownership.state, ownership.owner, ownership.version)))

    def answer_arrives(self) -> None:
        for broker, question, claim in self.pick(self.answers):
            self.brokers[broker].grants.answer(question, claim)

    def broker_registers_again(self) -> None:
        """Register a broker again; calls for its former registration have no effect."""
        broker = self.chance.choice(BROKERS)
        self.brokers[broker] = a_life(broker, self.brokers[broker].registration.incarnation + 1)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 600))
def test_no_topic_is_granted_at_two_brokers(seed: int, steps: int) -> None:
    ReshapedNamespace(seed).walk(steps)
