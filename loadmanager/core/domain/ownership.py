"""Ownership of bundles: states, legal transitions, and invariants of a leader's writes.

    Free ──assign──▶ Owned ──release──▶ Releasing ──complete──▶ Owned by the destination, or Free without one
      ▲              │ ▲ ▲                  │
      └──owner_gone──┤ │ └─────abandon──────┘   (the unload failed: the source stays the owner)
                     └─┘ inherit

Once the registration of its owner has ended, no broker serves a bundle. Another owner inherits it in one step, or it is
freed after a while without a lookup.

Bundles also change their boundaries, by `NamespaceState.split` and `merge`; owners stay the same:

    change   from                                              to
    -----    ----                                              --
    split    a bundle that is Free or Owned                    its parts, each in its state, with its owner, and at
                                                               its version + 1
    merge    two neighbours, both Free or both Owned by        one bundle in their state, with their owner, and at the
             the same registration                             higher of their versions + 1

A bundle that is Releasing keeps its boundaries, because its owner was asked by name to release it.

Every transition, split and merge increments `version`, so the version at each hash only increases. A broker refuses a
bundle that it released at that version or a later one, so a stale answer never gives a bundle a second owner.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import BrokerId, NamespaceName


class OwnershipState(enum.StrEnum):
    FREE = "Free"
    OWNED = "Owned"
    RELEASING = "Releasing"


class IllegalTransitionError(Exception):
    """A transition that the table does not allow; the message has the bundle's current ownership."""


class Registration(NamedTuple):
    """One registration of a broker; a new registration, even under the same id, has another incarnation."""

    broker: BrokerId
    incarnation: int

    def __str__(self) -> str:
        return f"{self.broker} (incarnation {self.incarnation})"


class Ownership(NamedTuple):
    """The ownership of one bundle at one version. A tuple, for speed: a node decodes one for each bundle.

    `owner` is the registration that may serve it (None when free); `destination` gets it once a release is complete
    (None: free until the next lookup). `epoch` is that of the writing leader, `since_ms` the time of the last
    transition in milliseconds since 1970, `reason` its reason.
    """

    state: OwnershipState = OwnershipState.FREE
    owner: Registration | None = None
    destination: Registration | None = None
    version: int = 0
    epoch: int = 0
    since_ms: int = 0
    reason: str = ""

    def __str__(self) -> str:
        owner = f" by {self.owner}" if self.owner else ""
        destination = f" for {self.destination}" if self.destination else ""
        return f"{self.state}{owner}{destination} at version {self.version}"


FREE = Ownership()
"""A bundle that never had an owner."""


@dataclass(frozen=True, slots=True)
class NamespaceState:
    """The bundles of one namespace with their ownerships: `ownerships[i]` belongs to bundle i of `bundles`."""

    name: NamespaceName
    bundles: NamespaceBundles
    ownerships: tuple[Ownership, ...]

    def __post_init__(self) -> None:
        assert len(self.ownerships) == len(self.bundles), "one ownership per bundle"

    @classmethod
    def unowned(cls, name: NamespaceName, bundles: NamespaceBundles) -> NamespaceState:
        return cls(name, bundles, (FREE,) * len(bundles))

    def from_version(self, version: int) -> NamespaceState:
        """Return the same namespace with all versions raised to at least `version`."""
        return replace(
            self, ownerships=tuple(each._replace(version=max(each.version, version)) for each in self.ownerships)
        )

    @property
    def highest_version(self) -> int:
        return max(each.version for each in self.ownerships)

    def bundle_name(self, index: int) -> str:
        return f"{self.name}/{self.bundles.range_at(index)}"

    def bundle_names(self) -> list[str]:
        prefix = f"{self.name}/"
        return [prefix + text for text in self.bundles.range_texts()]

    def owners_changed_since(self, before: NamespaceState) -> dict[str, Ownership]:
        """Return the bundles, by name, whose ownership differs from `before`, which had the same bundles."""
        rows = zip(self.bundles.range_texts(), before.ownerships, self.ownerships, strict=True)
        return {f"{self.name}/{text}": now for text, was, now in rows if now is not was and now != was}

    def with_ownerships(self, changes: Mapping[int, Ownership]) -> NamespaceState:
        """Return the namespace after `changes` (index of the bundle -> its new ownership)."""
        ownerships = tuple(changes.get(i, ownership) for i, ownership in enumerate(self.ownerships))
        return replace(self, ownerships=ownerships)

    def split(self, index: int, boundaries: Sequence[int], stamp: Stamp) -> NamespaceState:
        """Return the namespace after bundle `index` is cut at `boundaries`.

        Raises `IllegalTransitionError` for a bundle that is being released, `BoundariesError` as
        `NamespaceBundles.split`.
        """
        parent = self.ownerships[index]
        if parent.state is OwnershipState.RELEASING:
            raise IllegalTransitionError(f"cannot split bundle {self.bundle_name(index)}, which is {parent}")
        part = _make_reshaped(parent, parent.version, stamp)
        parts = (part,) * (len(boundaries) + 1)
        ownerships = self.ownerships[:index] + parts + self.ownerships[index + 1 :]
        return replace(self, bundles=self.bundles.split(index, boundaries), ownerships=ownerships)

    def merge(self, index: int, stamp: Stamp) -> NamespaceState:
        """Return the namespace after merging bundle `index` with the one above.

        Raises `IllegalTransitionError` unless both are free or have the same owner, `BoundariesError` for the last one.
        """
        bundles = self.bundles.merge(index)
        lower, upper = self.ownerships[index : index + 2]
        if OwnershipState.RELEASING in (lower.state, upper.state) or lower.owner != upper.owner:
            raise IllegalTransitionError(
                f"cannot merge bundle {self.bundle_name(index)}, which is {lower}, and bundle"
                f" {self.bundle_name(index + 1)}, which is {upper}"
            )
        merged = _make_reshaped(lower, max(lower.version, upper.version), stamp)
        ownerships = (*self.ownerships[:index], merged, *self.ownerships[index + 2 :])
        return replace(self, bundles=bundles, ownerships=ownerships)


class Transition(enum.StrEnum):
    ASSIGN = "assign"
    RELEASE = "release"
    COMPLETE = "complete"
    ABANDON = "abandon"
    INHERIT = "inherit"
    OWNER_GONE = "owner_gone"


LEGAL_FROM: dict[Transition, frozenset[OwnershipState]] = {
    Transition.ASSIGN: frozenset({OwnershipState.FREE}),
    Transition.RELEASE: frozenset({OwnershipState.OWNED}),
    Transition.COMPLETE: frozenset({OwnershipState.RELEASING}),
    Transition.ABANDON: frozenset({OwnershipState.RELEASING}),
    Transition.INHERIT: frozenset({OwnershipState.OWNED}),
    Transition.OWNER_GONE: frozenset({OwnershipState.OWNED}),
}


@dataclass(frozen=True, slots=True)
class Stamp:
    """Metadata of a transition: the leader's epoch, the wall clock, and the reason."""

    epoch: int
    now_ms: int
    reason: str


def assign(current: Ownership, owner: Registration, stamp: Stamp) -> Ownership:
    """Give a free bundle to `owner`."""
    return _step(current, Transition.ASSIGN, OwnershipState.OWNED, owner, None, stamp)


def release(current: Ownership, destination: Registration | None, stamp: Stamp) -> Ownership:
    """Begin to take the bundle from its owner; from now on no new topic may be opened."""
    return _step(current, Transition.RELEASE, OwnershipState.RELEASING, current.owner, destination, stamp)


def complete(current: Ownership, stamp: Stamp) -> Ownership:
    """Finish a release: the destination owns the bundle, or it is free."""
    if current.destination is None:
        return _step(current, Transition.COMPLETE, OwnershipState.FREE, None, None, stamp)
    return _step(current, Transition.COMPLETE, OwnershipState.OWNED, current.destination, None, stamp)


def retarget(current: Ownership, destination: Registration | None) -> Ownership:
    """Change the destination of a pending release; not a transition of its own, used only to complete one."""
    return current._replace(destination=destination)


def abandon(current: Ownership, stamp: Stamp) -> Ownership:
    """Keep the bundle at its owner, which did not release it in time, at a higher version."""
    return _step(current, Transition.ABANDON, OwnershipState.OWNED, current.owner, None, stamp)


def inherit(current: Ownership, owner: Registration, stamp: Stamp) -> Ownership:
    """Give the bundle of an ended registration to `owner`."""
    return _step(current, Transition.INHERIT, OwnershipState.OWNED, owner, None, stamp)


def owner_gone(current: Ownership, stamp: Stamp) -> Ownership:
    """Free the bundle of an ended registration."""
    return _step(current, Transition.OWNER_GONE, OwnershipState.FREE, None, None, stamp)


def _make_reshaped(before: Ownership, version: int, stamp: Stamp) -> Ownership:
    """Return the ownership of a bundle that results from a split or merge; its version is `version` + 1."""
    return before._replace(version=version + 1, epoch=stamp.epoch, since_ms=stamp.now_ms, reason=stamp.reason)


def _step(
    current: Ownership,
    transition: Transition,
    state: OwnershipState,
    owner: Registration | None,
    destination: Registration | None,
    stamp: Stamp,
) -> Ownership:
    if current.state not in LEGAL_FROM[transition]:
        raise IllegalTransitionError(f"cannot {transition} a bundle that is {current}")
    return Ownership(state, owner, destination, current.version + 1, stamp.epoch, stamp.now_ms, stamp.reason)


# Invariants: each function returns the violations as sentences, none if there are none


def transition_violations(
    before: Ownership, after: Ownership, is_registered: Callable[[Registration | None], bool]
) -> list[str]:
    """Check a transition of a bundle with unchanged boundaries: it is legal, increases the version, and takes the
    bundle from a registered owner only after a release.
    """
    violations = list(entry_violations(after))
    if after.version <= before.version:
        violations.append(f"version {after.version} follows version {before.version}")
    if before.state is OwnershipState.OWNED and after.owner != before.owner and is_registered(before.owner):
        violations.append(f"taken from {before.owner}, which is registered and was not asked")
    return violations


def succession_violations(before: NamespaceState, after: NamespaceState) -> list[str]:
    """Check successive records: the version at each hash never decreases, and increases wherever the bundle, its state
    or its owner changes.
    """
    violations = []
    for lower in sorted({*before.bundles.boundaries[:-1], *after.bundles.boundaries[:-1]}):
        was, now = before.bundles.index_of_hash(lower), after.bundles.index_of_hash(lower)
        old, new = before.ownerships[was], after.ownerships[now]
        is_same = before.bundles.range_at(was) == after.bundles.range_at(now) and old == new
        if not is_same and new.version <= old.version:
            violations.append(f"0x{lower:08x}: version {new.version} follows version {old.version}")
    return violations


def entry_violations(ownership: Ownership) -> Iterator[str]:
    """Yield the contradictions within one ownership."""
    state = ownership.state
    if (ownership.owner is None) != (state is OwnershipState.FREE):
        yield f"{state} with owner {ownership.owner or 'nobody'}"
    if ownership.destination is not None and state is not OwnershipState.RELEASING:
        yield f"{state} with destination {ownership.destination}"
    if ownership.destination is not None and ownership.destination == ownership.owner:
        yield "on its way to its own owner"
    if state is not OwnershipState.FREE and ownership.version < 1:
        yield f"{state} at version {ownership.version}"
