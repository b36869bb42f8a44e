"""Invariants. Each function returns the violations as sentences; empty if there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration


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
        violations.append(f"taken from {name_owner(before.owner)}, which is registered and was not asked")
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
        yield f"{state} with owner {name_owner(ownership.owner)}"
    if ownership.destination is not None and state is not OwnershipState.RELEASING:
        yield f"{state} with destination {name_owner(ownership.destination)}"
    if ownership.destination is not None and ownership.destination == ownership.owner:
        yield "on its way to its own owner"
    if state is not OwnershipState.FREE and ownership.version < 1:
        yield f"{state} at version {ownership.version}"


def name_owner(registration: Registration | None) -> str:
    return "nobody" if registration is None else f"{registration.broker} (incarnation {registration.incarnation})"
