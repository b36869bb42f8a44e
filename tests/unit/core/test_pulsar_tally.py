from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import report, snapshot

from loadmanager.core.diagnosis.pulsar_comparison import ComparisonEntry
from loadmanager.core.diagnosis.pulsar_tally import Tally, UsageLevel, level_of
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import ComparisonReason
from loadmanager.core.domain.resources import ResourceWeights


def level(max_over_mean: float, highest: float = 0.5) -> UsageLevel:
    return UsageLevel(3, BrokerId("a:8080"), highest, highest / max_over_mean)


def entry(reason: ComparisonReason, load: float = 0.0, at_ms: int = 0) -> ComparisonEntry:
    return ComparisonEntry(at_ms, Verdict("x", reason, acted=True), (), load)


def test_level_compares_the_most_used_resource_of_each_broker() -> None:
    given = snapshot({"a": report(cpu=60, bandwidth_in=10), "b": report(cpu=10, bandwidth_in=20), "c": report(cpu=10)})
    found = level_of(given, ResourceWeights())
    assert found is not None
    assert (found.brokers, found.busiest) == (3, "a:8080")
    assert (found.max_over_mean, found.highest, found.mean) == pytest.approx((2.0, 0.6, 0.3))


def test_idle_brokers_are_level_and_no_brokers_have_no_level() -> None:
    idle = level_of(snapshot({"a": report()}), ResourceWeights())
    assert idle is not None
    assert idle.max_over_mean == 1.0
    assert level_of(snapshot({}), ResourceWeights()) is None


def test_mean_level_is_weighted_by_known_time() -> None:
    tally = Tally(0)
    tally.see(10_000, level(2.0))
    tally.see(20_000, level(1.0, 0.9))
    tally.see(50_000, None)
    found = tally.measure(60_000)
    assert (found.known_ms, found.max_over_mean, found.worst_usage) == pytest.approx((40_000, 1.25, 0.9))
    assert (found.from_ms, found.to_ms) == (0, 60_000)


def test_max_over_mean_without_a_level_is_1() -> None:
    assert Tally(0).measure(1_000).max_over_mean == 1.0


def test_moves_and_their_load_are_counted_by_initiator() -> None:
    tally = Tally(0)
    tally.count(
        [
            entry(ComparisonReason.MOVED_AS_WE_WOULD, 1.0),
            entry(ComparisonReason.MOVED_ELSEWHERE, 2.0),
            entry(ComparisonReason.CAME_BACK, 4.0),
            entry(ComparisonReason.MOVED_BY_US, 8.0),
            entry(ComparisonReason.WE_ALONE_STAYS, 16.0),
            entry(ComparisonReason.NO_LONGER_WANTED, 32.0),
            entry(ComparisonReason.OWNER_LEFT, 64.0),
        ]
    )
    found = tally.measure(1)
    assert (found.moves, found.moved_load, found.agreed) == (3, 7.0, 2)
    assert (found.our_moves, found.our_moved_load, found.alone, found.alone_load) == (1, 8.0, 1, 16.0)


def test_stall_time_continues_in_the_next_tally() -> None:
    tally = Tally(0)
    tally.count([entry(ComparisonReason.STALLED_ON_OWNER, at_ms=10_000)])
    assert tally.measure(60_000).stalled_ms == 50_000
    tally = tally.follow(60_000)
    tally.count([entry(ComparisonReason.STALL_OVER, at_ms=90_000)])
    assert tally.measure(120_000).stalled_ms == 30_000


def test_next_tally_starts_with_the_last_level() -> None:
    tally = Tally(0)
    tally.see(0, level(2.0, 0.7))
    followed = tally.follow(60_000)
    found = followed.measure(90_000)
    assert followed.from_ms == 60_000
    assert (found.max_over_mean, found.worst_usage, found.moves) == pytest.approx((2.0, 0.7, 0))


def test_clock_set_back_subtracts_nothing() -> None:
    tally = Tally(0)
    tally.see(10_000, level(2.0))
    tally.see(5_000, level(4.0))
    assert tally.measure(20_000).max_over_mean == pytest.approx(4.0)


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(1.0, 10.0)), max_size=10), st.integers(0, 10_000))
def test_mean_lies_between_extremes_and_adds_up(seen: list[tuple[int, float]], cut_ms: int) -> None:
    """Also compares one tally with two consecutive ones."""
    whole, first, at_ms = Tally(0), Tally(0), 0
    second: Tally | None = None
    for later_ms, ratio in seen:
        at_ms += later_ms
        if second is None and at_ms > cut_ms:
            second = first.follow(cut_ms)
        whole.see(at_ms, level(ratio))
        (second or first).see(at_ms, level(ratio))
    end_ms = max(at_ms, cut_ms) + 1
    found = whole.measure(end_ms)
    if seen:
        assert min(r for _, r in seen) - 1e-9 <= found.max_over_mean <= max(r for _, r in seen) + 1e-9
    parts = [first.measure(cut_ms), (second or first.follow(cut_ms)).measure(end_ms)]
    assert sum(part.known_ms for part in parts) == found.known_ms
    area = sum(part.known_ms * part.max_over_mean for part in parts)
    assert area == pytest.approx(found.known_ms * found.max_over_mean)


def a_move(
    at_ms: int, source: str, destination: str, reason: ComparisonReason = ComparisonReason.MOVED_UNSELECTED
) -> ComparisonEntry:
    why: dict[str, Figure] = {"source": source, "destination": destination}
    return ComparisonEntry(at_ms, Verdict("x", reason, acted=True, why=why), (), 8.0)


def test_load_moved_again_or_back_counts_across_tallies() -> None:
    tally = Tally(0)
    tally.count([a_move(0, "a", "b"), a_move(1_000, "b", "c", ComparisonReason.MOVED_BY_US)])
    first = tally.measure(3_600_000)
    assert (first.again_load, first.back_load) == (8.0, 0.0)
    tally = tally.follow(3_600_000)
    tally.count([a_move(7_000_000, "c", "a"), entry(ComparisonReason.LEFT_WITHOUT_OWNER, 8.0)])
    second = tally.measure(7_200_000)
    assert (second.again_load, second.back_load) == (8.0, 8.0)
