from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.agent.grants import Leases, lease_ms


def test_lease_has_full_length_while_the_session_outlasts_it() -> None:
    assert lease_ms(100.0, 110.0, 3000) == 3000


def test_lease_ends_with_the_session() -> None:
    assert lease_ms(100.0, 101.2345, 3000) == 1234


def test_no_lease_is_granted_once_the_session_is_in_doubt() -> None:
    assert lease_ms(100.0, 100.0, 3000) == 0
    assert lease_ms(100.0, 90.0, 3000) == 0
    assert lease_ms(100.0, float("-inf"), 3000) == 0


def test_refused_lease_does_not_move_the_lapse_time() -> None:
    leases = Leases(3000)
    leases.grant(100.0, 110.0)
    lapsed_at_s = leases.lapsed_at_s
    assert leases.grant(101.0, 100.0) == 0
    assert leases.lapsed_at_s == lapsed_at_s


def test_predecessor_is_assumed_to_have_granted_its_longest_lease() -> None:
    leases = Leases(100)
    leases.assume_granted_by_predecessor(50.0, 3000)
    assert 53.0 < leases.lapsed_at_s < 53.1


@given(
    grants=st.lists(st.tuples(st.floats(0, 5), st.floats(-1, 20)), min_size=1, max_size=20),
    lease_length_ms=st.integers(100, 60_000),
)
def test_no_lease_outlives_the_session(grants: list[tuple[float, float]], lease_length_ms: int) -> None:
    leases, now_s = Leases(lease_length_ms), 1000.0
    ends = []
    for pause_s, session_s in grants:
        now_s += pause_s
        ends_at_s = now_s + leases.grant(now_s, now_s + session_s) / 1000
        assert ends_at_s <= now_s + max(0.0, session_s) + 1e-6
        ends.append(ends_at_s)
    assert max(ends) <= max(leases.lapsed_at_s, now_s)


def test_refused_lease_sets_neither_grant_time_nor_lapse_time() -> None:
    leases = Leases(3000)
    assert leases.last_granted_at_s is None
    assert leases.grant(100.0, 100.0) == 0
    assert leases.last_granted_at_s is None
    assert leases.lapsed_at_s == -math.inf


@pytest.mark.parametrize("lease_length_ms", [1, 3000])
def test_lease_sets_the_grant_time_and_lapses_one_percent_late(lease_length_ms: int) -> None:
    leases = Leases(lease_length_ms)
    assert leases.grant(105.0, 115.0) == lease_length_ms
    assert leases.last_granted_at_s == 105.0
    assert leases.lapsed_at_s - 105.0 == pytest.approx(lease_length_ms / 1000 * 1.01)


def test_lease_of_a_predecessor_lapses_one_percent_late() -> None:
    leases = Leases(3000)
    leases.assume_granted_by_predecessor(100.0, 3000)
    assert leases.lapsed_at_s - 100.0 == pytest.approx(3.03)


def test_exit_of_a_holder_ends_only_its_own_leases() -> None:
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
