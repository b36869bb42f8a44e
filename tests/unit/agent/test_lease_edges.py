"""The last millisecond of a lease, and the first sign of life."""

from __future__ import annotations

import pytest
from support.clock import ManualClock

from loadmanager.agent.lease import Leases


def test_without_a_lease_there_was_no_sign_of_life() -> None:
    clock = ManualClock()
    leases = Leases(3000, clock)
    assert leases.last_granted_at_s is None
    assert leases.grant(clock()) == 0
    assert leases.last_granted_at_s is None
    assert leases.lapsed_at_s == clock()


@pytest.mark.parametrize("lease_length_ms", [1, 3000])
def test_every_lease_is_a_sign_of_life_and_lapses_a_hundredth_late(lease_length_ms: int) -> None:
    clock = ManualClock()
    leases = Leases(lease_length_ms, clock)
    clock.advance(5)
    assert leases.grant(clock() + 10) == lease_length_ms
    assert leases.last_granted_at_s == clock()
    assert leases.lapsed_at_s - clock() == pytest.approx(lease_length_ms / 1000 * 1.01)


def test_the_lease_of_a_former_life_lapses_a_hundredth_late() -> None:
    clock = ManualClock()
    leases = Leases(3000, clock)
    leases.assume_granted_by_predecessor(3000)
    assert leases.lapsed_at_s - clock() == pytest.approx(3.03)
