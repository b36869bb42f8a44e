from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem
from loadmanager.core.planning.certificate.bounds import (
    SAFE,
    Heaviest,
    Pigeonhole,
    Prices,
    Volume,
    find_bounds,
)
from loadmanager.core.planning.certificate.minimum_moves import MinimumMoves

AMOUNTS = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 0.1, 1e-7, 1e9])
CAPACITIES = st.sampled_from([1.0, 1.0, 1.0, 2.0, 0.5, 0.0])
COSTS = st.sampled_from([0.0, 0.05, 0.1, 0.1, 0.3])


def instance_of(
    need: list[list[float]],
    per_need: list[list[float]],
    owner: list[int],
    classes: list[int] | None = None,
    may_own: list[list[bool]] | None = None,
    cost: list[float] | None = None,
) -> BalancingProblem:
    bundles, brokers = len(need), len(per_need)
    return BalancingProblem(
        np.array(need, dtype=np.float64).reshape(bundles, -1),
        np.array(per_need, dtype=np.float64),
        np.array(owner, dtype=np.int64),
        np.array(classes or [0] * bundles, dtype=np.int64),
        np.array(may_own or [[True] * brokers], dtype=bool),
        np.array(cost or [1 / max(bundles, 1)] * bundles, dtype=np.float64),
    )


@st.composite
def instances(draw: st.DrawFn) -> BalancingProblem:
    """Up to 5 bundles, 3 brokers and 2 resources, so that there are at most 243 assignments."""
    bundles, brokers, resources = (draw(st.integers(1, most)) for most in (5, 3, 2))
    kinds = draw(st.integers(1, 3))
    some = st.lists(st.booleans(), min_size=brokers, max_size=brokers).filter(any)
    return instance_of(
        draw(rows(AMOUNTS, bundles, resources)),
        draw(rows(CAPACITIES, brokers, resources)),
        draw(st.lists(st.integers(-1, brokers - 1), min_size=bundles, max_size=bundles)),
        draw(st.lists(st.integers(0, kinds - 1), min_size=bundles, max_size=bundles)),
        draw(st.lists(some, min_size=kinds, max_size=kinds)),
        draw(st.lists(COSTS, min_size=bundles, max_size=bundles)),
    )


def near(peak: float, rel: float | None = None) -> Any:  # noqa: ANN401 - beside a float
    """The peak of a bound that equals this one up to rounding."""
    return pytest.approx(peak, rel=rel)


def rows(each: st.SearchStrategy[float], count: int, width: int) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(each, min_size=width, max_size=width), min_size=count, max_size=count)


def assignments(instance: BalancingProblem) -> list[np.ndarray]:
    """All allowed assignments; bundles without an owner get none."""
    choices = [
        np.flatnonzero(instance.may_own[kind]) if owner >= 0 else [-1]
        for kind, owner in zip(instance.classes, instance.owner, strict=True)
    ]
    return [np.array(each, dtype=np.int64) for each in product(*choices)]


@given(instance=instances())
def test_no_assignment_is_below_a_bound(instance: BalancingProblem) -> None:
    least = min(instance.peak(each) for each in assignments(instance))
    assert all(bound.peak <= least for bound in find_bounds(instance))


@given(instance=instances())
def test_assignments_at_a_peak_moved_at_least_the_least_load(instance: BalancingProblem) -> None:
    for after in assignments(instance):
        peak, moved = instance.peak(after), after != instance.owner
        load, count = float(instance.cost[moved].sum()), int(moved.sum())
        assert MinimumMoves(instance, peak).least_load(peak) <= load + 1e-15
        assert MinimumMoves(instance, peak, in_moves=True).least_moves(peak) <= count


@given(instance=instances(), budget=COSTS)
def test_assignments_within_a_budget_stay_above_its_peak(instance: BalancingProblem, budget: float) -> None:
    least = MinimumMoves(instance, 0.0).least_peak(budget)
    for after in assignments(instance):
        if instance.cost[after != instance.owner].sum() <= budget:
            assert instance.peak(after) > least or least == 0


def test_volume_bound_counts_confined_bundles_over_their_brokers() -> None:
    rich, poor = [True, True, True], [True, False, False]
    given_two = instance_of([[1.0], [1.0], [1.0]], [[1.0]] * 3, [0, 0, 1], [1, 1, 0], [rich, poor])
    bound = find_bounds(given_two)[0]
    assert bound == Volume(near(2.0), 0, 1, of_all=False)


def test_heaviest_bundle_bounds_by_its_least_usage() -> None:
    large = instance_of([[1.0, 6.0], [1.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [0.5, 0.5]], [0, 1, 1])
    assert find_bounds(large)[0] == Heaviest(near(3.0), 0)


def test_heaviest_bundle_is_found_among_many_that_seem_larger() -> None:
    """By the largest capacity of each resource 600 bundles need a usage of 18 at least; the true value is 12."""
    shapes = [[1.0, 1.0], [0.5, 0.9], [0.9, 0.5], [0.6, 0.6]]
    everywhere, small = [True] * 4, [True, False, False, False]
    sizes = [[20.0, 20.0]] * 600 + [[11.0, 11.0], [13.0, 13.0]]
    for classes, found in (([0] * 602, (12.0, 0)), ([0] * 600 + [0, 1], (13.0, 601))):
        many = instance_of(sizes, shapes, [0] * 602, classes, [everywhere, small])
        assert Heaviest(near(found[0] * SAFE), found[1]) in find_bounds(many)


def test_bundle_with_smaller_needs_may_have_the_higher_usage() -> None:
    """By the largest capacity of each resource the first bundle is larger; one broker has both capacities."""
    shapes = [[0.1, 1.0], [1.0, 0.1], [0.3, 0.3]]
    bounds = find_bounds(instance_of([[20.0, 1.0], [8.0, 8.0]], shapes, [0, 0]))
    assert Heaviest(near(2.4 * SAFE), 1) in bounds


def test_pigeonhole_two_of_four_equal_bundles_share_one_of_three_brokers() -> None:
    bound = find_bounds(instance_of([[1.0]] * 4, [[1.0]] * 3, [0] * 4))[0]
    assert bound == Pigeonhole(near(2.0), 0, 3, 1)


def test_price_bound_distinguishes_brokers_of_two_shapes() -> None:
    """Over all brokers each resource is at 1/2; brokers with much of one resource have little of the other."""
    shapes = [[1 / 3, 1.0]] * 2 + [[1.0, 1 / 3]] * 2
    assert find_bounds(instance_of([[0.1, 0.1]] * 40, shapes, [0] * 40))[0] == Prices(near(1.0, rel=0.02))
    many = find_bounds(instance_of([[0.001, 0.001]] * 4000, shapes, [0] * 4000))
    assert many[0].peak == pytest.approx(1.0, rel=0.02)
    alike = find_bounds(instance_of([[0.1, 0.1]] * 40, [[0.5, 0.5]] * 4, [0] * 40))
    assert alike[0].peak == pytest.approx(0.5)


def test_unowned_bundles_have_no_bound() -> None:
    assert find_bounds(instance_of([[1.0]], [[1.0]], [-1])) == []


def test_volume_bound_finds_the_fullest_of_many_broker_sets() -> None:
    brokers = 1200
    own = np.eye(brokers, dtype=bool)
    many = BalancingProblem(
        np.where(np.arange(brokers) == 77, 9.0, 1.0)[:, None],
        np.ones((brokers, 1)),
        np.arange(brokers),
        np.arange(brokers),
        own,
        np.full(brokers, 1 / brokers),
    )
    assert find_bounds(many)[0].peak == pytest.approx(9.0)


def test_least_load_is_the_cheapest_that_covers_the_excess() -> None:
    """Two of four units must leave the first broker; the cheap bundle is one of them."""
    hot = instance_of([[1.0], [3.0], [1.0]], [[1.0], [1.0]], [0, 0, 1], cost=[0.1, 0.6, 0.3])
    assert MinimumMoves(hot, 2.0).least_load(2.0) == pytest.approx(0.1 + 0.6 / 3)
    assert MinimumMoves(hot, 2.0, in_moves=True).least_moves(2.0) == 1


def test_nearly_cancelling_amounts_do_not_raise_the_least_load() -> None:
    """A large bundle relieves 1e9 at the price of a small one, and costs a tenth."""
    needs, costs = [[0.0], [1.0], [1e9]], [0.0, 0.0, 0.1]
    hot = instance_of(needs, [[1.0], [1.0], [0.0]], [0, 0, 0], may_own=[[True, False, True]], cost=costs)
    assert MinimumMoves(hot, 0.0).least_load(0.0) <= 0.1


def test_bundle_not_allowed_on_its_broker_counts_as_moved() -> None:
    leaving = instance_of([[1.0], [1.0]], [[1.0], [1.0]], [0, 1], [0, 0], [[False, True]], [0.4, 0.6])
    assert MinimumMoves(leaving, 2.0).least_load(2.0) == pytest.approx(0.4)
    assert MinimumMoves(leaving, 2.0, in_moves=True).least_moves(2.0) == 1


def test_small_budget_keeps_the_peak_high() -> None:
    """A budget of a quarter of all load moves one of four units."""
    hot = instance_of([[1.0]] * 4, [[1.0], [1.0]], [0] * 4)
    assert MinimumMoves(hot, 0.0).least_peak(0.25) == pytest.approx(3.0, rel=1e-5)
