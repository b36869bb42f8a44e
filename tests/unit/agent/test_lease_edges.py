"""The last millisecond of a lease, and the first sign of life."""

from __future__ import annotations

import math

import pytest

from loadmanager.agent.lease import Leases


def test_without_a_lease_there_was_no_sign_of_life_and_none_to_lapse() -> None:
    leases = Leases(3000)
    assert leases.last_granted_at_s is None
    assert leases.grant(100.0, 100.0) == 0
    assert leases.last_granted_at_s is None
    assert leases.lapsed_at_s == -math.inf


@pytest.mark.parametrize("lease_length_ms", [1, 3000])
def test_every_lease_is_a_sign_of_life_and_lapses_a_hundredth_late(lease_length_ms: int) -> None:
    leases = Leases(lease_length_ms)
    assert leases.grant(105.0, 115.0) == lease_length_ms
    assert leases.last_granted_at_s == 105.0
    assert leases.lapsed_at_s - 105.0 == pytest.approx(lease_length_ms / 1000 * 1.01)


def test_the_lease_of_a_former_life_lapses_a_hundredth_late() -> None:
    leases = Leases(3000)
    leases.assume_granted_by_predecessor(100.0, 3000)
    assert leases.lapsed_at_s - 100.0 == pytest.approx(3.03)


def test_what_a_holder_was_granted_ends_with_it_and_nothing_else_does() -> None:
    leases = Leases(3000)
    leases.grant(100.0, 200.0, "dead")
    leases.grant(100.5, 200.0, "alive")
    leases.grant(101.0, 200.0, "dead")
    leases.ended("dead")
    assert leases.lapsed_at_s == pytest.approx(103.53)
    leases.grant(101.0, 101.5)
    leases.ended("alive")
    assert leases.lapsed_at_s == pytest.approx(101.505), "nobody knows whose it is"
    leases.ended("never heard of")
    assert leases.lapsed_at_s == pytest.approx(101.505)
