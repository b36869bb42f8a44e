"""The life of one bundle's ownership."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.builders import broker, owned, releasing

from loadmanager.core.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.names import NamespaceName
from loadmanager.core.ownership import (
    FREE,
    IllegalTransitionError,
    NamespaceState,
    Ownership,
    OwnershipState,
    Stamp,
    abandon,
    assign,
    complete,
    owner_gone,
    release,
    retarget,
)

A, B = broker("a"), broker("b")
STAMP = Stamp(epoch=7, now_ms=1000, reason="test")


def test_a_free_bundle_is_assigned() -> None:
    assert assign(FREE, A, STAMP) == Ownership(OwnershipState.OWNED, A, None, 1, 7, 1000, "test")


def test_a_release_keeps_the_owner_until_it_is_complete() -> None:
    leaving = release(owned(A), B, STAMP)
    assert (leaving.state, leaving.owner, leaving.destination, leaving.version) == (OwnershipState.RELEASING, A, B, 2)
    done = complete(leaving, STAMP)
    assert (done.state, done.owner, done.destination, done.version) == (OwnershipState.OWNED, B, None, 3)


def test_a_release_without_a_destination_leaves_the_bundle_free() -> None:
    done = complete(releasing(A), STAMP)
    assert (done.state, done.owner, done.destination, done.version) == (OwnershipState.FREE, None, None, 3)


def test_a_release_can_end_at_another_destination_than_it_began_with() -> None:
    assert complete(retarget(releasing(A), B), STAMP).owner == B


def test_an_abandoned_release_leaves_the_source_as_owner_at_a_higher_version() -> None:
    kept = abandon(releasing(A, B), STAMP)
    assert (kept.state, kept.owner, kept.destination, kept.version) == (OwnershipState.OWNED, A, None, 3)


@pytest.mark.parametrize("current", [owned(A), releasing(A, B)])
def test_a_bundle_whose_owner_is_gone_is_free(current: Ownership) -> None:
    gone = owner_gone(current, STAMP)
    assert (gone.state, gone.owner, gone.version) == (OwnershipState.FREE, None, current.version + 1)


@pytest.mark.parametrize(
    "step",
    [
        lambda: assign(owned(A), B, STAMP),
        lambda: assign(releasing(A), B, STAMP),
        lambda: release(FREE, B, STAMP),
        lambda: release(releasing(A), B, STAMP),
        lambda: complete(owned(A), STAMP),
        lambda: abandon(owned(A), STAMP),
        lambda: owner_gone(FREE, STAMP),
    ],
)
def test_an_illegal_transition_raises_with_the_bundles_story(step: Callable[[], Ownership]) -> None:
    with pytest.raises(IllegalTransitionError, match="Ownership"):
        step()


def test_a_namespace_begins_with_free_bundles_and_changes_by_position() -> None:
    namespace = NamespaceState.unowned(NamespaceName("tenant", "ns"), NamespaceBundles(equal_boundaries(2)))
    assert namespace.bundle_names() == ["tenant/ns/0x00000000_0x80000000", "tenant/ns/0x80000000_0xffffffff"]
    assert namespace.ownerships == (FREE, FREE)
    assert namespace.with_ownerships({1: owned(A)}).ownerships == (FREE, owned(A))


def test_each_bundle_of_a_namespace_has_one_ownership() -> None:
    with pytest.raises(AssertionError, match="one ownership per bundle"):
        NamespaceState(NamespaceName("tenant", "ns"), NamespaceBundles(equal_boundaries(2)), (FREE,))
