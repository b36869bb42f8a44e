"""Invariants of plans and namespace records. Each function returns the violations as sentences; empty if none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from loadmanager.core.domain.names import HASH_SPACE_END, BundleRange
from loadmanager.core.domain.ownership import Ownership, entry_violations
from loadmanager.core.domain.plan import Assign, Plan, Unload
from loadmanager.core.model.snapshot import Snapshot


def plan_violations(plan: Plan, snapshot: Snapshot) -> list[str]:
    """Check a plan made from this snapshot: steps concern distinct bundles that may be assigned or moved, and each
    destination is registered and is not the source.
    """
    violations = []
    if plan.revision != snapshot.revision:
        violations.append(f"the plan is for revision {plan.revision}, the snapshot is revision {snapshot.revision}")
    registered = set(snapshot.brokers.registrations)
    seen: set[str] = set()
    for step in plan.steps:
        if step.bundle in seen:
            violations.append(f"{step.bundle}: more than one step")
        seen.add(step.bundle)
        found = _assign_violations(step, snapshot) if isinstance(step, Assign) else _unload_violations(step, snapshot)
        violations += [f"{step.bundle}: {text}" for text in found]
        if step.destination is not None and step.destination not in registered:
            violations.append(f"{step.bundle}: destination {step.destination} is not registered")
    return violations


def _assign_violations(step: Assign, snapshot: Snapshot) -> Iterator[str]:
    row = snapshot.bundles.find_row(step.bundle)
    if row is not None and not snapshot.bundles.free[row]:
        yield "assigned although it is not free"


def _unload_violations(step: Unload, snapshot: Snapshot) -> Iterator[str]:
    row = snapshot.bundles.find_row(step.bundle)
    if row is None:
        yield "unloaded although nobody knows it"
        return
    if not snapshot.bundles.movable[row]:
        yield "unloaded although it may not move"
    elif snapshot.brokers.registrations[snapshot.bundles.broker[row]] != step.source:
        yield f"unloaded from {step.source}, which does not own it"
    if snapshot.bundles.recently_unloaded[row]:
        yield "unloaded although it was unloaded recently"
    if step.destination == step.source:
        yield "the destination is the source"


def partition_violations(ranges: Sequence[BundleRange]) -> list[str]:
    """Check that the ordered bundle ranges of a namespace contain each hash exactly once."""
    if not ranges:
        return ["there is no bundle"]
    violations = []
    if ranges[0].lower != 0:
        violations.append(f"hashes below 0x{ranges[0].lower:08x} have no bundle")
    for left, right in pairwise(ranges):
        if left.upper != right.lower:
            violations.append(f"{left} is not followed by its neighbour but by {right}")
    if ranges[-1].upper != HASH_SPACE_END:
        violations.append(f"hashes from 0x{ranges[-1].upper:08x} have no bundle")
    return violations


def ownership_violations(ranges: Sequence[BundleRange], ownerships: Sequence[Ownership]) -> list[str]:
    """Check a namespace record: its ranges, and one ownership per range."""
    violations = partition_violations(ranges)
    if len(ranges) != len(ownerships):
        violations.append(f"{len(ranges)} bundles have {len(ownerships)} ownership entries")
    for bundle_range, ownership in zip(ranges, ownerships, strict=False):
        violations += [f"{bundle_range}: {text}" for text in entry_violations(ownership)]
    return violations
