"""State machine of ownership grants: topics that the broker may open, and bundles that were revoked. This is the
agent's side of "never two owners".

A passive machine: events in, verdicts out, no clock and no I/O.

    event                condition, the first that holds                    verdict          what it remembers
    -----                -------------------------------                    -------          -----------------
    register(i)          -                                                  -                incarnation i, nothing else
    forget               -                                                  -                nothing: not registered
    ask(topic)           not registered                                     no question      -
                         else                                               a question       -
    answer(question,     another registration since the question            VOID             -
           claim)        the claim's bundle lies in another namespace       FOREIGN_BUNDLE   -
                         an overlapping unload arrived since the question   VOID             -
                         not Owned by this very registration                NOT_OWNER        -
                         version <= an overlapping fence                    STALE            -
                         else                                               GRANTED          topic: bundle, version
    revoke(bundle,       not registered                                     NOT_REGISTERED   -
           epoch,        epoch < the highest seen                           STALE_EPOCH      -
           version)      an overlapping grant at a higher version           STALE_VERSION    epoch
                         else                                               a revocation     epoch; fence at version
    closed(revocation)   -                                                  -                its topics are forgotten,
                                                                                             unless granted since
    saw(topics)          -                                                  -                without grants that are
                                                                                             missing twice in a row,
                                                                                             unless granted since

A revocation has the topics granted in overlapping bundles. If the caller gives the namespace's hash function, topics
with a hash outside the revoked range are left out: half of a split bundle is closed without the other half.

Fences cover all *overlapping* bundles, not only the named one, because splits and merges change boundaries. At each
point of the hash space the version only grows, whichever bundle holds the point. So an answer about a bundle is out of
date once any point of it was revoked at its version or a later one, under any bundle's name.

`saw` drops a grant only when two reports in a row lack the topic: the first may have been made before the grant. The
broker must ask for such a topic again before it opens it, so an unload need not name it.

Versions alone would order answers and unloads; VOID keeps the rule simple for agent and broker. Every question that
was asked before an unload arrived is asked again.

`Leases` grants leases to the broker and records when the last one lapses.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Container, Hashable, Iterator
from dataclasses import dataclass, field

from loadmanager.core.domain.bundles import HashFunction, topic_hash
from loadmanager.core.domain.names import BrokerId, BundleName, BundleRange, NamespaceName, TopicName
from loadmanager.core.domain.ownership import OwnershipState, Registration


class GrantVerdict(enum.StrEnum):
    """Outcome of an ownership answer."""

    GRANTED = "granted"
    VOID = "void"
    FOREIGN_BUNDLE = "foreign_bundle"
    NOT_OWNER = "not_owner"
    STALE = "stale"


class UnloadRefusal(enum.StrEnum):
    """Reason for refusing an unload."""

    NOT_REGISTERED = "not_registered"
    OTHER_BROKER = "other_broker"
    STALE_EPOCH = "stale_epoch"
    UNKNOWN_EPOCH = "unknown_epoch"
    STALE_VERSION = "stale_version"


@dataclass(frozen=True, slots=True)
class TopicQuestion:
    """Question about one topic. `asked_after` is the number of unloads that had arrived before it."""

    topic: TopicName
    incarnation: int
    asked_after: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Ownership of a bundle according to a node."""

    bundle: BundleName
    state: OwnershipState
    owner: Registration | None
    version: int


@dataclass(frozen=True, slots=True)
class Revocation:
    """An accepted unload, the `number`-th to arrive; `topics` are those granted so far, in no order."""

    bundle: BundleName
    version: int
    number: int
    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Grant:
    """A topic granted at `version` of its bundle, after `after` unloads had arrived.

    `after` orders a grant relative to unloads. Versions cannot: the versions of two bundles, such as the halves of a
    split bundle, are unrelated.
    """

    version: int
    after: int


@dataclass(frozen=True, slots=True)
class _Fence:
    """A range revoked at `version` by the `number`-th unload."""

    range: BundleRange
    version: int
    number: int


@dataclass(slots=True)
class _Namespace:
    fences: list[_Fence] = field(default_factory=list)
    grants: dict[BundleRange, dict[str, _Grant]] = field(default_factory=dict)

    def fences_over(self, bundle_range: BundleRange) -> Iterator[_Fence]:
        return (fence for fence in self.fences if _overlap(fence.range, bundle_range))

    def grants_over(self, bundle_range: BundleRange) -> Iterator[tuple[BundleRange, dict[str, _Grant]]]:
        return ((held, grants) for held, grants in self.grants.items() if _overlap(held, bundle_range))


class Grants:
    """Grants of one broker; see the table of the module."""

    def __init__(self, broker: BrokerId) -> None:
        self.broker = broker
        self.registration: Registration | None = None
        self.highest_epoch = 0
        self._unloads = 0
        self._unseen: set[str] = set()
        self._namespaces: dict[NamespaceName, _Namespace] = {}
        self._bundle_of: dict[str, BundleName] = {}
        self.granted = 0
        """Number of topics granted since the agent started."""

    @property
    def incarnation(self) -> int | None:
        """Incarnation of the registration that the grants belong to; None if not registered."""
        return self.registration.incarnation if self.registration else None

    @property
    def namespaces(self) -> set[NamespaceName]:
        """Namespaces with granted topics."""
        return {name for name, namespace in self._namespaces.items() if namespace.grants}

    def __len__(self) -> int:
        return len(self._bundle_of)

    def register(self, incarnation: int) -> None:
        self.forget()
        self.registration = Registration(self.broker, incarnation)

    def forget(self) -> None:
        self.registration = None
        self.highest_epoch = 0
        self._namespaces.clear()
        self._bundle_of.clear()
        self._unseen.clear()

    def highest_fence(self, bundle: BundleName) -> int:
        """The highest version at which any part of the bundle was revoked; 0 if none was."""
        return max((fence.version for fence in self._fences_over(bundle)), default=0)

    def ask(self, topic: TopicName) -> TopicQuestion | None:
        """Start a question, to be passed to `answer`; None if not registered."""
        if self.registration is None:
            return None
        return TopicQuestion(topic, self.registration.incarnation, self._unloads)

    def answer(self, question: TopicQuestion, claim: Claim) -> GrantVerdict:
        if question.incarnation != self.incarnation:
            return GrantVerdict.VOID
        if claim.bundle.namespace != question.topic.namespace:
            return GrantVerdict.FOREIGN_BUNDLE
        fences = self._fences_over(claim.bundle)
        if any(fence.number > question.asked_after for fence in fences):
            return GrantVerdict.VOID
        if claim.state is not OwnershipState.OWNED or claim.owner != self.registration:
            return GrantVerdict.NOT_OWNER
        if claim.version <= self.highest_fence(claim.bundle):
            return GrantVerdict.STALE
        self._grant(str(question.topic), claim)
        self.granted += 1
        return GrantVerdict.GRANTED

    def revoke(
        self,
        bundle: BundleName,
        owner: Registration,
        epoch: int,
        version: int,
        hash_function: HashFunction | None = None,
    ) -> Revocation | UnloadRefusal:
        """Revoke the bundle from `owner`: from now on nothing in it is granted at `version` or below.

        Refuse a call for another broker or for another incarnation of this one. It was misrouted, and confirming it
        would give the bundle a second owner.
        """
        if self.registration is None:
            return UnloadRefusal.NOT_REGISTERED
        if owner != self.registration:
            return UnloadRefusal.OTHER_BROKER
        if epoch < self.highest_epoch:
            return UnloadRefusal.STALE_EPOCH
        self.highest_epoch = epoch
        namespace = self._namespaces.setdefault(bundle.namespace, _Namespace())
        overlapping = list(namespace.grants_over(bundle.range))
        if any(grant.version > version for _, grants in overlapping for grant in grants.values()):
            return UnloadRefusal.STALE_VERSION
        self._unloads += 1
        self._raise_fence(namespace, bundle.range, version)
        topics = frozenset(
            topic
            for held, grants in overlapping
            for topic in grants
            if hash_function is None or _concerns(bundle.range, held, topic_hash(topic, hash_function))
        )
        return Revocation(bundle, version, self._unloads, topics)

    def closed(self, revocation: Revocation) -> None:
        """Drop the topics of the revocation, which the broker has closed."""
        for topic in revocation.topics:
            bundle = self._bundle_of.get(topic)
            if bundle is not None and self._get(topic, bundle).after < revocation.number:
                self._drop(topic, bundle)

    def saw(self, topics: Container[str]) -> None:
        """Drop grants that are missing twice in a row in `topics`: all topics that the broker has open, asks for or is
        about to open.

        The reports must not overlap: the second is requested after the first was answered.
        """
        missing = {topic for topic in self._bundle_of if topic not in topics}
        for topic in missing & self._unseen:
            self._drop(topic, self._bundle_of[topic])
        self._unseen = missing - self._unseen

    def find_bundle(self, topic: str) -> BundleName | None:
        """Return the bundle in which the topic was granted."""
        return self._bundle_of.get(topic)

    def topics_by_bundle(self) -> dict[BundleName, list[str]]:
        return {
            BundleName(name, held): sorted(topics)
            for name, namespace in self._namespaces.items()
            for held, topics in namespace.grants.items()
        }

    def _fences_over(self, bundle: BundleName) -> list[_Fence]:
        namespace = self._namespaces.get(bundle.namespace)
        return list(namespace.fences_over(bundle.range)) if namespace else []

    def _grant(self, topic: str, claim: Claim) -> None:
        bundle, version = claim.bundle, claim.version
        held = self._bundle_of.get(topic)
        if held is not None:
            known = self._get(topic, held).version
            if known > version:  # an outdated answer, though not revoked: keep the newer bundle
                bundle, version = held, known
            self._drop(topic, held)
        namespace = self._namespaces.setdefault(bundle.namespace, _Namespace())
        namespace.grants.setdefault(bundle.range, {})[topic] = _Grant(version, self._unloads)
        self._bundle_of[topic] = bundle
        self._unseen.discard(topic)

    def _get(self, topic: str, bundle: BundleName) -> _Grant:
        return self._namespaces[bundle.namespace].grants[bundle.range][topic]

    def _drop(self, topic: str, bundle: BundleName) -> None:
        grants = self._namespaces[bundle.namespace].grants
        del grants[bundle.range][topic]
        if not grants[bundle.range]:
            del grants[bundle.range]
        del self._bundle_of[topic]

    def _raise_fence(self, namespace: _Namespace, bundle_range: BundleRange, version: int) -> None:
        raised = _Fence(bundle_range, version, self._unloads)
        # Drop fences inside the new one that are at no higher version.
        namespace.fences = [f for f in namespace.fences if not _covers(raised, f)] + [raised]


def _overlap(one: BundleRange, other: BundleRange) -> bool:
    """Tell if the ranges share a hash. The inclusive end 0xffffffff belongs to the highest range only."""
    return one.lower < other.upper and other.lower < one.upper


def _concerns(revoked: BundleRange, held: BundleRange, value: int) -> bool:
    """Tell if a topic granted in `held` is revoked. One whose hash lies outside `held` was hashed wrongly: revoked."""
    return value in revoked or value not in held


def _covers(fence: _Fence, other: _Fence) -> bool:
    inside = fence.range.lower <= other.range.lower and other.range.upper <= fence.range.upper
    return inside and other.version <= fence.version


_CLOCK_DRIFT_RATIO = 0.01
"""Maximum rate at which the broker's clock may lag behind the agent's. Time daemons slew a clock by 0.05 % at most."""


def lease_ms(now_s: float, session_valid_until_s: float, broker_lease_ms: int) -> int:
    """Return the lease to grant at `now_s`; 0 if none. It ends before the agent's own session could expire.

    Both times are seconds on the same monotonic clock.
    """
    certain_ms = (session_valid_until_s - now_s) * 1000
    return int(max(0.0, min(broker_lease_ms, certain_ms)))


class Leases:
    """Grants leases, and knows when the last one has lapsed, even if the broker no longer answers.

    A holder is a process that certainly asked for the lease itself and shares it with no other: its leases end when it
    exits. All other leases (None) end when they lapse. Times are seconds on the agent's monotonic clock.

    The broker measures a lease from the time *before* it asked. So an answer that waited in a socket while the broker
    was stopped has lapsed by the broker's own clock, and no two clocks are ever compared.
    """

    def __init__(self, broker_lease_ms: int) -> None:
        self._broker_lease_ms = broker_lease_ms
        self._lapse_at_s: dict[Hashable | None, float] = {}
        self.last_granted_at_s: float | None = None
        """Time of the last granted lease; serves as the broker's heartbeat."""

    @property
    def lapsed_at_s(self) -> float:
        """Time at which all leases granted so far have lapsed."""
        return max(self._lapse_at_s.values(), default=-math.inf)

    def grant(self, now_s: float, session_valid_until_s: float, holder: Hashable | None = None) -> int:
        """Return the lease in milliseconds, counted from when the broker asked; 0 refuses it."""
        granted_ms = lease_ms(now_s, session_valid_until_s, self._broker_lease_ms)
        if granted_ms > 0:
            self._note(now_s, granted_ms, holder)
            self.last_granted_at_s = now_s
        return granted_ms

    def ended(self, holder: Hashable) -> None:
        """End the leases of this holder, whose process has exited."""
        self._lapse_at_s.pop(holder, None)

    def assume_granted_by_predecessor(self, now_s: float, longest_lease_ms: int) -> None:
        """Assume that an earlier process of this agent granted its longest lease just now."""
        self._note(now_s, longest_lease_ms, None)

    def _note(self, granted_at_s: float, granted_ms: int, holder: Hashable | None) -> None:
        lapse_at_s = granted_at_s + granted_ms / 1000 * (1 + _CLOCK_DRIFT_RATIO)
        self._lapse_at_s[holder] = max(self._lapse_at_s.get(holder, -math.inf), lapse_at_s)
