from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.builders import broker, owned, releasing

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import NamespaceName
from loadmanager.core.domain.ownership import (
    FREE,
    IllegalTransitionError,
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
    retarget,
)

A, B = broker("a"), broker("b")
STAMP = Stamp(epoch=7, now_ms=1000, reason="test")


def test_only_different_ownerships_count_as_changed() -> None:
    bundles = NamespaceBundles(equal_boundaries(3))
    before = NamespaceState(NamespaceName("t", "ns"), bundles, (owned(A), owned(A), FREE))
    after = replace(before, ownerships=(owned(A), owned(B), FREE))
    assert after.owners_changed_since(before) == {after.bundle_name(1): owned(B)}
    assert after.owners_changed_since(after) == {}


@pytest.mark.parametrize(
    ("after", "state", "owner", "destination", "version"),
    [
        pytest.param(assign(FREE, A, STAMP), OwnershipState.OWNED, A, None, 1, id="assign"),
        pytest.param(release(owned(A), B, STAMP), OwnershipState.RELEASING, A, B, 2, id="release"),
        pytest.param(complete(releasing(A, B), STAMP), OwnershipState.OWNED, B, None, 3, id="complete"),
        pytest.param(
            complete(releasing(A), STAMP), OwnershipState.FREE, None, None, 3, id="complete without destination"
        ),
        pytest.param(complete(retarget(releasing(A), B), STAMP), OwnershipState.OWNED, B, None, 3, id="retarget"),
        pytest.param(abandon(releasing(A, B), STAMP), OwnershipState.OWNED, A, None, 3, id="abandon"),
        pytest.param(inherit(owned(A, version=4), B, STAMP), OwnershipState.OWNED, B, None, 5, id="inherit"),
        pytest.param(owner_gone(owned(A, version=4), STAMP), OwnershipState.FREE, None, None, 5, id="owner gone"),
    ],
)
def test_a_transition_sets_every_field(
    after: Ownership,
    state: OwnershipState,
    owner: Registration | None,
    destination: Registration | None,
    version: int,
) -> None:
    assert after == Ownership(state, owner, destination, version, 7, 1000, "test")


@pytest.mark.parametrize(
    "step",
    [
        lambda: assign(owned(A), B, STAMP),
        lambda: assign(releasing(A), B, STAMP),
        lambda: release(FREE, B, STAMP),
        lambda: release(releasing(A), B, STAMP),
        lambda: complete(owned(A), STAMP),
        lambda: abandon(owned(A), STAMP),
        lambda: inherit(FREE, B, STAMP),
        lambda: inherit(releasing(A, B), B, STAMP),
        lambda: owner_gone(FREE, STAMP),
        lambda: owner_gone(releasing(A, B), STAMP),
    ],
)
def test_illegal_transition_error_describes_the_ownership(step: Callable[[], Ownership]) -> None:
    with pytest.raises(IllegalTransitionError, match=r"a bundle that is .* at version"):
        step()


def test_new_namespace_has_free_bundles_and_changes_by_index() -> None:
    namespace = NamespaceState.unowned(NamespaceName("tenant", "ns"), NamespaceBundles(equal_boundaries(2)))
    assert namespace.bundle_names() == ["tenant/ns/0x00000000_0x80000000", "tenant/ns/0x80000000_0xffffffff"]
    assert namespace.ownerships == (FREE, FREE)
    assert namespace.with_ownerships({1: owned(A)}).ownerships == (FREE, owned(A))


def test_namespace_needs_one_ownership_per_bundle() -> None:
    with pytest.raises(AssertionError, match="one ownership per bundle"):
        NamespaceState(NamespaceName("tenant", "ns"), NamespaceBundles(equal_boundaries(2)), (FREE,))


def a_namespace(*ownerships: Ownership) -> NamespaceState:
    return NamespaceState(NamespaceName("t", "ns"), NamespaceBundles(equal_boundaries(len(ownerships))), ownerships)


@pytest.mark.parametrize("parent", [FREE, owned(A, version=4)])
def test_split_keeps_the_owner_and_increases_the_version(parent: Ownership) -> None:
    after = a_namespace(owned(B), parent).split(1, [0x90000000, 0xA0000000], STAMP)
    assert after.bundle_names()[1:] == [
        "t/ns/0x80000000_0x90000000",
        "t/ns/0x90000000_0xa0000000",
        "t/ns/0xa0000000_0xffffffff",
    ]
    assert after.ownerships[0] == owned(B)
    assert set(after.ownerships[1:]) == {
        Ownership(parent.state, parent.owner, None, parent.version + 1, 7, 1000, "test")
    }


def test_releasing_bundle_is_neither_split_nor_merged() -> None:
    leaving = a_namespace(releasing(A, B), owned(A))
    with pytest.raises(IllegalTransitionError, match=r"cannot split bundle t/ns/0x00000000_0x80000000, .*Releasing"):
        leaving.split(0, [1], STAMP)
    with pytest.raises(IllegalTransitionError, match="cannot merge bundle t/ns/0x00000000_0x80000000"):
        leaving.merge(0, STAMP)


def test_text_of_an_ownership() -> None:
    assert str(FREE) == "Free at version 0"
    assert str(owned(A, 3)) == f"Owned by {A} at version 3"
    assert str(releasing(A, B)._replace(version=4)) == f"Releasing by {A} for {B} at version 4"


@pytest.mark.parametrize(
    ("lower", "upper", "version"), [(FREE, FREE, 1), (owned(A, 3), owned(A, 8), 9), (owned(A, 5), owned(A, 2), 6)]
)
def test_merge_follows_on_the_higher_version(lower: Ownership, upper: Ownership, version: int) -> None:
    after = a_namespace(owned(B), lower, upper, owned(B)).merge(1, STAMP)
    assert after.bundle_names()[1] == "t/ns/0x40000000_0xc0000000"
    assert after.ownerships == (
        owned(B),
        Ownership(lower.state, lower.owner, None, version, 7, 1000, "test"),
        owned(B),
    )


@pytest.mark.parametrize("upper", [owned(B), FREE, owned(broker("a", incarnation=2)), releasing(A, B)])
def test_bundles_of_two_owners_are_not_merged(upper: Ownership) -> None:
    with pytest.raises(IllegalTransitionError, match=r"which is .* and bundle t/ns/0x80000000_0xffffffff, which is"):
        a_namespace(owned(A), upper).merge(0, STAMP)


def test_from_version_raises_lower_versions() -> None:
    state = a_namespace(FREE, owned(A, 3), owned(B, 8))
    assert state.highest_version == 8
    assert [each.version for each in state.from_version(5).ownerships] == [5, 5, 8]
    assert state.from_version(0) == state
