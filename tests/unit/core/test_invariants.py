from __future__ import annotations

import pytest
from support.builders import averages, broker, bundle, owned, releasing, report, snapshot
from support.invariants import ownership_violations, partition_violations, plan_violations

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BundleRange, NamespaceName
from loadmanager.core.domain.ownership import (
    FREE,
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    inherit,
    owner_gone,
    release,
    succession_violations,
    transition_violations,
)
from loadmanager.core.domain.plan import Assign, Plan, Unload
from loadmanager.core.domain.reasons import OwnershipReason

A, B, GONE = broker("a"), broker("b"), broker("b", incarnation=9)
X, Y, UNKNOWN = bundle(1), bundle(2), bundle(9)
WHY = OwnershipReason.LOOKUP


def found(*steps: Assign | Unload, revision: int = 0, recent: tuple[str, ...] = ()) -> list[str]:
    given = snapshot({"a": report([X]), "b": report([Y])}, recently_unloaded=recent)
    return plan_violations(Plan(revision, 0.0, steps, ()), given)


def test_a_sound_plan_violates_nothing() -> None:
    assert found(Unload(X, A, B, WHY), Unload(Y, B, None, WHY), Assign(UNKNOWN, A, WHY)) == []


@pytest.mark.parametrize(
    ("steps", "violation"),
    [
        ([Unload(X, A, B, WHY), Unload(X, A, B, WHY)], "more than one step"),
        ([Assign(X, B, WHY)], "assigned although it is not free"),
        ([Unload(UNKNOWN, A, B, WHY)], "unloaded although nobody knows it"),
        ([Unload(X, B, A, WHY)], "unloaded from b:8080 (incarnation 1), which does not own it"),
        ([Unload(X, A, A, WHY)], "the destination is the source"),
        ([Unload(X, A, GONE, WHY)], "destination b:8080 (incarnation 9) is not registered"),
    ],
)
def test_an_unsound_step_is_named(steps: list[Assign | Unload], violation: str) -> None:
    violations = found(*steps)
    assert len(violations) == 1
    assert violations[0].endswith(violation)


def test_a_plan_for_another_revision_is_named() -> None:
    assert found(revision=3) == ["the plan is for revision 3, the snapshot is revision 0"]


def test_a_step_for_a_bundle_that_must_stay_is_named() -> None:
    assert found(Unload(X, A, B, WHY), recent=(X,)) == [f"{X}: unloaded although it was unloaded recently"]
    given = snapshot({"a": report([X])}, {Y: averages((1, 1, 1, 1))})
    assert plan_violations(Plan(0, 0.0, (Assign(Y, A, WHY),), ()), given) == [], "it is known, and nobody's"
    plan = Plan(0, 0.0, (Unload(Y, A, None, WHY),), ())
    assert plan_violations(plan, given) == [f"{Y}: unloaded although it may not move"]


RANGES = NamespaceBundles(equal_boundaries(2)).ranges()


def test_a_sound_record_violates_nothing() -> None:
    assert ownership_violations(RANGES, [FREE, releasing(A, B)]) == []


@pytest.mark.parametrize(
    ("ranges", "violation"),
    [
        ([], "there is no bundle"),
        ([BundleRange(5, 0xFFFFFFFF)], "hashes below 0x00000005 have no bundle"),
        ([BundleRange(0, 5)], "hashes from 0x00000005 have no bundle"),
        (
            [BundleRange(0, 5), BundleRange(6, 0xFFFFFFFF)],
            "0x00000000_0x00000005 is not followed by its neighbour but by 0x00000006_0xffffffff",
        ),
    ],
)
def test_a_hash_without_exactly_one_bundle_is_named(ranges: list[BundleRange], violation: str) -> None:
    assert partition_violations(ranges) == [violation]


@pytest.mark.parametrize(
    ("ownership", "violation"),
    [
        (Ownership(OwnershipState.OWNED, None, None, 1), "Owned with owner nobody"),
        (Ownership(OwnershipState.FREE, A, None, 1), "Free with owner a:8080 (incarnation 1)"),
        (Ownership(OwnershipState.OWNED, A, B, 1), "Owned with destination b:8080 (incarnation 1)"),
        (releasing(A, A), "on its way to its own owner"),
        (owned(A, version=0), "Owned at version 0"),
    ],
)
def test_an_unsound_ownership_is_named(ownership: Ownership, violation: str) -> None:
    assert ownership_violations(RANGES, [FREE, ownership]) == [f"0x80000000_0xffffffff: {violation}"]


def test_a_missing_ownership_is_named() -> None:
    assert ownership_violations(RANGES, [FREE]) == ["2 bundles have 1 ownership entries"]


def test_succession_without_a_falling_version_violates_nothing() -> None:
    before = NamespaceState(NamespaceName("t", "ns"), NamespaceBundles(equal_boundaries(2)), (owned(A, 3), owned(A, 5)))
    stamp = Stamp(1, 0, "test")
    assert succession_violations(before, before) == []
    assert succession_violations(before, before.split(0, [7], stamp)) == []
    assert succession_violations(before, before.merge(0, stamp)) == []


def test_falling_or_unchanged_version_after_a_change_is_named() -> None:
    name, halves = NamespaceName("t", "ns"), NamespaceBundles(equal_boundaries(2))
    before = NamespaceState(name, halves, (owned(A, 3), owned(A, 5)))
    whole = NamespaceState(name, NamespaceBundles(equal_boundaries(1)), (owned(A, 4),))
    other_owner = NamespaceState(name, halves, (owned(A, 3), owned(B, 5)))
    assert succession_violations(before, whole) == ["0x80000000: version 4 follows version 5"]
    assert succession_violations(before, other_owner) == ["0x80000000: version 5 follows version 5"]
    split = NamespaceState(name, halves, (owned(A, 4), owned(A, 4)))
    assert succession_violations(whole, split) == [
        "0x00000000: version 4 follows version 4",
        "0x80000000: version 4 follows version 4",
    ]


STAMP = Stamp(1, 0, "a test")
OWNED = Ownership(OwnershipState.OWNED, A, None, 4)


def registered(each: Registration | None) -> bool:
    return each in {A, B}


def test_a_legal_transition_violates_nothing() -> None:
    released = release(OWNED, B, STAMP)
    assert transition_violations(OWNED, released, registered) == []
    assert transition_violations(released, Ownership(OwnershipState.OWNED, B, None, 6), registered) == []
    of_a_lost_owner = Ownership(OwnershipState.OWNED, GONE, None, 4)
    assert transition_violations(of_a_lost_owner, inherit(of_a_lost_owner, B, STAMP), registered) == []
    assert transition_violations(of_a_lost_owner, owner_gone(of_a_lost_owner, STAMP), registered) == []


@pytest.mark.parametrize(
    ("after", "violation"),
    [
        (Ownership(OwnershipState.RELEASING, A, B, 4), "version 4 follows version 4"),
        (Ownership(OwnershipState.FREE, None, None, 5), "taken from a:8080 (incarnation 1), which is registered"),
        (Ownership(OwnershipState.OWNED, B, None, 5), "taken from a:8080 (incarnation 1), which is registered"),
        (Ownership(OwnershipState.OWNED, A, B, 5), "Owned with destination b:8080"),
    ],
)
def test_illegal_transition_is_named(after: Ownership, violation: str) -> None:
    (found,) = transition_violations(OWNED, after, registered)
    assert violation in found
