"""The agent's grants against a leader, a broker and a network that do everything the protocol allows them to.

A random walk rather than rules for Hypothesis to choose from: what goes wrong takes some ten events in the right order,
and only walks of hundreds of thousands of steps meet all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.agent.grants import Claim, Grants, GrantVerdict, Revocation, TopicQuestion
from loadmanager.core.domain.bundles import HashFunction, topic_hash
from loadmanager.core.domain.names import (
    HASH_SPACE_END,
    BrokerId,
    BundleName,
    BundleRange,
    NamespaceName,
    TopicName,
)
from loadmanager.core.domain.ownership import OwnershipState, Registration

T = TypeVar("T")

NAMESPACE = NamespaceName("t", "ns")
ME, OTHER = BrokerId("a:1"), Registration(BrokerId("b:1"), 1)
POINTS = 4
WIDTH = (HASH_SPACE_END + 1) // POINTS
FUNCTION = HashFunction.MURMUR3_32
NEWEST = 6
"""Things under way that are older than this many others of their kind are not chosen any more."""


@dataclass(frozen=True)
class Truth:
    """Stored ownership of the bundle of points from `first` up to, without, `last`."""

    first: int
    last: int
    state: OwnershipState = OwnershipState.FREE
    owner: Registration | None = None
    version: int = 0

    @property
    def bundle(self) -> BundleName:
        upper = HASH_SPACE_END if self.last == POINTS else self.last * WIDTH
        return BundleName(NAMESPACE, BundleRange(self.first * WIDTH, upper))


@dataclass
class BrokerAnswer:
    """A granted answer on its way to the broker, which voids it when an unload names the topic before it arrives."""

    topic: str
    incarnation: int
    void: bool = False


class HandOverWalk:
    """One broker (`ME`) with its agent, and a leader that hands bundles between it and `OTHER` as the protocol says.

    Nothing under way is ever lost for good: calls, answers and acknowledgements arrive late, in any order, repeatedly.
    Only questions come to an end.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.history: list[tuple[Truth, ...]] = [(Truth(0, POINTS),)]
        self.incarnation = 1
        self.grants = Grants(ME)
        self.grants.register(1)
        self.open: set[str] = set()
        self.unload_calls: list[tuple[BundleName, int]] = []
        self.claims: list[tuple[TopicQuestion, Claim]] = []
        self.answers: list[BrokerAnswer] = []
        self.broker_unloads: list[tuple[int, Revocation]] = []
        self.acknowledgements: list[tuple[int, Revocation]] = []
        self.acknowledged: set[tuple[int, BundleName, int]] = set()
        self.stats: frozenset[str] | None = None
        self.story: list[str] = []

    @property
    def me(self) -> Registration:
        return Registration(ME, self.incarnation)

    def walk(self, steps: int, topics_come_and_go: int) -> None:
        moves: list[Callable[[], None]] = [
            self.assign,
            self.release,
            self.abandon,
            self.complete,
            self.unload_call_arrives,
            self.unload_arrives_at_the_broker,
            self.acknowledgement_arrives,
        ]
        topics = [
            self.broker_asks_and_a_node_answers,
            self.claim_arrives,
            self.answer_arrives_at_the_broker,
            self.idle_topic_is_closed,
            self.question_is_given_up,
            self.broker_answers_with_statistics,
            self.statistics_arrive,
        ]
        seldom = [self.inherit, self.owner_gone, self.split, self.merge]
        for _ in range(steps):
            often = moves * 3 + topics * topics_come_and_go
            action = self.chance.choice(often + seldom + [self.new_registration] * (self.chance.random() < 0.2))
            action()
            self.check()

    def check(self) -> None:
        for point in range(POINTS):
            topic = str(topic_at(point))
            if topic in self.open:
                owner = self.entry_at(self.history[-1], point).owner
                assert owner == self.me, f"{topic} is open at {self.me} while it is {owner}'s:\n" + "\n".join(
                    self.story
                )
                assert self.grants.find_bundle(topic) is not None, "no unload would name it:\n" + "\n".join(self.story)

    # The leader

    def assign(self) -> None:
        for entry in self.pick([e for e in self.history[-1] if e.state is OwnershipState.FREE]):
            self.step(entry, OwnershipState.OWNED, self.chance.choice([self.me, self.me, OTHER]))

    def release(self) -> None:
        for entry in self.pick([e for e in self.history[-1] if e.state is OwnershipState.OWNED]):
            self.step(entry, OwnershipState.RELEASING, entry.owner)
            if entry.owner == self.me:
                self.unload_calls.append((entry.bundle, entry.version + 1))

    def abandon(self) -> None:
        for entry in self.pick([e for e in self.history[-1] if e.state is OwnershipState.RELEASING]):
            self.step(entry, OwnershipState.OWNED, entry.owner)

    def complete(self) -> None:
        releasing = [e for e in self.history[-1] if e.state is OwnershipState.RELEASING]
        for entry in self.pick([e for e in releasing if e.owner != self.me or self.is_acknowledged(e)]):
            owner = self.chance.choice([None, OTHER if entry.owner == self.me else self.me])
            self.step(entry, OwnershipState.OWNED if owner else OwnershipState.FREE, owner)

    def is_acknowledged(self, entry: Truth) -> bool:
        return (self.incarnation, entry.bundle, entry.version) in self.acknowledged

    def inherit(self) -> None:
        gone = [e for e in self.history[-1] if e.owner not in (None, self.me, OTHER)]
        for entry in self.pick([e for e in gone if e.state is OwnershipState.OWNED]):
            self.step(entry, OwnershipState.OWNED, self.chance.choice([self.me, OTHER]))

    def owner_gone(self) -> None:
        for entry in self.pick([e for e in self.history[-1] if e.owner not in (None, self.me, OTHER)]):
            self.step(entry, OwnershipState.FREE, None)

    def split(self) -> None:
        settled = [e for e in self.history[-1] if e.state is not OwnershipState.RELEASING]
        for entry in self.pick([e for e in settled if e.last - e.first > 1]):
            middle = (entry.first + entry.last) // 2
            parts = (replace(entry, last=middle), replace(entry, first=middle))
            self.commit((entry,), *(replace(part, version=entry.version + 1) for part in parts))

    def merge(self) -> None:
        settled = [e for e in self.history[-1] if e.state is not OwnershipState.RELEASING]
        pairs = [(left, right) for left, right in pairwise(settled) if left.last == right.first]
        for left, right in self.pick([p for p in pairs if (p[0].state, p[0].owner) == (p[1].state, p[1].owner)]):
            version = max(left.version, right.version) + 1
            self.commit((left, right), replace(left, last=right.last, version=version))

    # The agent, and what reaches it

    def unload_call_arrives(self) -> None:
        for bundle, version in self.pick(self.unload_calls):
            function = self.chance.choice([FUNCTION, None])
            outcome = self.grants.revoke(bundle, self.me, 1, version, function)
            self.tell(f"unload call {bundle.range} {version}: {outcome}")
            if isinstance(outcome, Revocation):
                self.broker_unloads.append((self.incarnation, outcome))

    def broker_asks_and_a_node_answers(self) -> None:
        """The node lags behind by up to seven commits; its answer is on its way."""
        point = self.chance.randrange(POINTS)
        question = self.grants.ask(topic_at(point))
        assert question is not None
        entry = self.entry_at(self.history[-1 - self.chance.randrange(min(8, len(self.history)))], point)
        self.tell(f"asked k{point}: {entry}")
        self.claims.append((question, Claim(entry.bundle, entry.state, entry.owner, entry.version)))

    def claim_arrives(self) -> None:
        for question, claim in self.pick(self.claims):
            if self.chance.random() < 0.5:
                self.claims.remove((question, claim))
            verdict = self.grants.answer(question, claim)
            self.tell(f"{verdict}: {question.topic} in {claim.bundle.range} {claim.version}")
            if verdict is GrantVerdict.GRANTED:
                self.answers.append(BrokerAnswer(str(question.topic), question.incarnation))

    def statistics_arrive(self) -> None:
        if self.stats is not None:
            self.tell(f"seen {sorted(self.stats)}")
            self.grants.saw(self.stats)
            self.stats = None

    def acknowledgement_arrives(self) -> None:
        for incarnation, revocation in self.pick(self.acknowledgements):
            if incarnation == self.incarnation:
                self.tell(f"204: {revocation}")
                self.grants.closed(revocation)
                self.acknowledged.add((incarnation, revocation.bundle, revocation.version))

    # The broker

    def answer_arrives_at_the_broker(self) -> None:
        for answer in self.pick(self.answers):
            self.tell(f"broker reads {answer}")
            self.answers.remove(answer)
            if not answer.void and answer.incarnation == self.incarnation:
                self.open.add(answer.topic)

    def unload_arrives_at_the_broker(self) -> None:
        for incarnation, revocation in self.pick(self.broker_unloads):
            self.tell(f"broker closes {revocation}")
            for answer in self.answers:
                answer.void |= answer.topic in revocation.topics
            self.open -= revocation.topics
            self.acknowledgements.append((incarnation, revocation))

    def broker_answers_with_statistics(self) -> None:
        """Report open and requested topics; question or answer may be under way."""
        if self.stats is None:
            asked = {str(question.topic) for question, _ in self.claims}
            self.stats = frozenset(self.open.union(asked, (answer.topic for answer in self.answers)))

    def question_is_given_up(self) -> None:
        """No answer to it, on its way or still to come, opens the topic any more."""
        topic = str(topic_at(self.chance.randrange(POINTS)))
        self.claims = [claim for claim in self.claims if str(claim[0].topic) != topic]
        self.answers = [answer for answer in self.answers if answer.topic != topic]

    def idle_topic_is_closed(self) -> None:
        self.open.discard(str(topic_at(self.chance.randrange(POINTS))))

    def new_registration(self) -> None:
        """Only after every lease has lapsed: the broker then has nothing open, and closes it before it goes on."""
        self.incarnation += 1
        self.tell(f"registration {self.incarnation}")
        self.grants.register(self.incarnation)
        self.open.clear()

    # What the above is made of

    def step(self, entry: Truth, state: OwnershipState, owner: Registration | None) -> None:
        self.commit((entry,), replace(entry, state=state, owner=owner, version=entry.version + 1))

    def commit(self, old: tuple[Truth, ...], *new: Truth) -> None:
        kept = [entry for entry in self.history[-1] if entry not in old]
        self.history.append(tuple(sorted([*kept, *new], key=lambda entry: entry.first)))
        self.tell(f"committed {new}")

    def entry_at(self, seen: tuple[Truth, ...], point: int) -> Truth:
        (entry,) = (entry for entry in seen if entry.first <= point < entry.last)
        return entry

    def pick(self, things: Sequence[T]) -> list[T]:
        """One of the newest of the things, in a list; an empty one when there is none."""
        return [self.chance.choice(things[-NEWEST:])] if things else []

    def tell(self, event: str) -> None:
        self.story.append(event)


def topic_at(point: int) -> TopicName:
    """A topic that hashes to the point."""
    return TOPICS[point]


def _topic_in(quarter: BundleRange) -> TopicName:
    names = (TopicName("persistent", NAMESPACE, f"k{number}") for number in count())
    return next(name for name in names if topic_hash(str(name), FUNCTION) in quarter)


TOPICS = [_topic_in(Truth(point, point + 1).bundle.range) for point in range(POINTS)]


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 600), topics_come_and_go=st.sampled_from([3, 15]))
def test_topic_is_open_only_while_granted(seed: int, steps: int, topics_come_and_go: int) -> None:
    HandOverWalk(seed).walk(steps, topics_come_and_go)
