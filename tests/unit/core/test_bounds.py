from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem
from loadmanager.core.planning.certificate.bounds import (
    SAFE,
    Bound,
    Heaviest,
    Pigeonhole,
    Prices,
    Volume,
    find_bounds,
)
from loadmanager.core.planning.certificate.minimum_moves import Relief, Reliefs

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
    for peak, bound in find_bounds(instance):
        assert peak <= least
        assert bound.peak(instance) == peak


@given(instance=instances(), data=st.data())
def test_any_bound_is_at_most_the_least_peak(instance: BalancingProblem, data: st.DataObject) -> None:
    brokers, resources = instance.per_need.shape
    some = np.array(data.draw(st.lists(st.booleans(), min_size=brokers, max_size=brokers)))
    resource, each = data.draw(st.integers(0, resources - 1)), data.draw(st.integers(-1, 6))
    prices = np.array(data.draw(rows(st.sampled_from([-1.0, 0.0, 0.3, 1.0, 1e9]), brokers, resources)))
    bundle = data.draw(st.integers(0, len(instance.need) - 1))
    made: list[Bound] = [Volume(resource, some), Heaviest(bundle), Pigeonhole(resource, some, each), Prices(prices)]
    least = min(instance.peak(each) for each in assignments(instance))
    assert all(bound.peak(instance) <= least for bound in made)


@given(instance=instances(), data=st.data())
def test_assignments_at_a_peak_moved_at_least_the_least_load(instance: BalancingProblem, data: st.DataObject) -> None:
    brokers, resources = instance.per_need.shape
    for after in assignments(instance):
        peak, moved = instance.peak(after), after != instance.owner
        load, count = float(instance.cost[moved].sum()), int(moved.sum())
        for in_moves in (False, True):
            relief = Reliefs(instance, peak, in_moves=in_moves).relief(peak)
            assert relief.least_load(instance) <= load + 1e-15
            assert relief.least_moves(instance) <= count
    resource = np.array(data.draw(st.lists(st.integers(0, resources - 1), min_size=brokers, max_size=brokers)))
    price = np.array(
        data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.1, 1.0, 9.0]), min_size=brokers, max_size=brokers))
    )
    forged = Relief(peak, resource, price)
    assert forged.least_load(instance) <= load + 1e-15
    assert forged.least_moves(instance) <= count


@given(instance=instances(), budget=COSTS)
def test_assignments_within_a_budget_stay_above_its_peak(instance: BalancingProblem, budget: float) -> None:
    proof = Reliefs(instance, 0.0).least_peak(budget)
    if proof.least_load(instance) > budget:
        for after in assignments(instance):
            if instance.cost[after != instance.owner].sum() <= budget:
                assert instance.peak(after) > proof.peak


def test_volume_bound_counts_confined_bundles_over_their_brokers() -> None:
    rich, poor = [True, True, True], [True, False, False]
    given_two = instance_of([[1.0], [1.0], [1.0]], [[1.0]] * 3, [0, 0, 1], [1, 1, 0], [rich, poor])
    peak, bound = find_bounds(given_two)[0]
    assert peak == pytest.approx(2.0)
    assert isinstance(bound, Volume)
    assert bound.brokers.tolist() == poor


def test_heaviest_bundle_bounds_by_its_least_usage() -> None:
    large = instance_of([[1.0, 6.0], [1.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [0.5, 0.5]], [0, 1, 1])
    peak, bound = find_bounds(large)[0]
    assert peak == pytest.approx(3.0)
    assert bound == Heaviest(0)


def test_heaviest_bundle_is_found_among_many_that_seem_larger() -> None:
    """By the largest capacity of each resource 600 bundles need a usage of 18 at least; the true value is 12."""
    shapes = [[1.0, 1.0], [0.5, 0.9], [0.9, 0.5], [0.6, 0.6]]
    everywhere, small = [True] * 4, [True, False, False, False]
    sizes = [[20.0, 20.0]] * 600 + [[11.0, 11.0], [13.0, 13.0]]
    for classes, found in (([0] * 602, (12.0, 0)), ([0] * 600 + [0, 1], (13.0, 601))):
        many = instance_of(sizes, shapes, [0] * 602, classes, [everywhere, small])
        ((peak, bound),) = (each for each in find_bounds(many) if isinstance(each[1], Heaviest))
        assert peak == pytest.approx(found[0] * SAFE)
        assert bound == Heaviest(found[1])


def test_bundle_with_smaller_needs_may_have_the_higher_usage() -> None:
    """By the largest capacity of each resource the first bundle is larger; one broker has both capacities."""
    shapes = [[0.1, 1.0], [1.0, 0.1], [0.3, 0.3]]
    peaks = find_bounds(instance_of([[20.0, 1.0], [8.0, 8.0]], shapes, [0, 0]))
    assert Heaviest(1) in [bound for peak, bound in peaks if peak == pytest.approx(2.4 * SAFE)]


def test_pigeonhole_two_of_four_equal_bundles_share_one_of_three_brokers() -> None:
    peak, bound = find_bounds(instance_of([[1.0]] * 4, [[1.0]] * 3, [0] * 4))[0]
    assert peak == pytest.approx(2.0)
    assert isinstance(bound, Pigeonhole)
    assert bound.each == 1


def test_price_bound_distinguishes_brokers_of_two_shapes() -> None:
    """Over all brokers each resource is at 1/2; brokers with much of one resource have little of the other."""
    shapes = [[1 / 3, 1.0]] * 2 + [[1.0, 1 / 3]] * 2
    peak, bound = find_bounds(instance_of([[0.1, 0.1]] * 40, shapes, [0] * 40))[0]
    assert isinstance(bound, Prices)
    assert peak == pytest.approx(1.0, rel=0.02)
    assert find_bounds(instance_of([[0.001, 0.001]] * 4000, shapes, [0] * 4000))[0][0] == pytest.approx(1.0, rel=0.02)
    assert find_bounds(instance_of([[0.1, 0.1]] * 40, [[0.5, 0.5]] * 4, [0] * 40))[0][0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "bound",
    [
        Pigeonhole(0, np.array([False, False]), 1),
        Pigeonhole(0, np.array([True, True]), 1),
        Prices(np.zeros((2, 1))),
    ],
    ids=["of no brokers", "with fewer bundles than places", "without prices"],
)
def test_empty_bound_is_0(bound: Bound) -> None:
    assert bound.peak(instance_of([[1.0], [1.0]], [[1.0]] * 2, [0, 0])) == 0.0


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
    assert find_bounds(many)[0][0] == pytest.approx(9.0)


def test_least_load_is_the_cheapest_that_covers_the_excess() -> None:
    """Two of four units must leave the first broker; the cheap bundle is one of them."""
    hot = instance_of([[1.0], [3.0], [1.0]], [[1.0], [1.0]], [0, 0, 1], cost=[0.1, 0.6, 0.3])
    relief = Reliefs(hot, 2.0).relief(2.0)
    assert relief.least_load(hot) == pytest.approx(0.1 + 0.6 / 3)
    assert relief.least_moves(hot) <= 1
    assert Reliefs(hot, 2.0, in_moves=True).relief(2.0).least_moves(hot) == 1


def test_nearly_cancelling_amounts_do_not_raise_the_least_load() -> None:
    """A large bundle relieves 1e9 at the price of a small one, and costs a tenth."""
    needs, costs = [[0.0], [1.0], [1e9]], [0.0, 0.0, 0.1]
    hot = instance_of(needs, [[1.0], [1.0], [0.0]], [0, 0, 0], may_own=[[True, False, True]], cost=costs)
    assert Reliefs(hot, 0.0).relief(0.0).least_load(hot) <= 0.1
    assert Relief(0.0, np.zeros(3, dtype=int), np.ones(3)).least_load(hot) <= 0.1


def test_bundle_not_allowed_on_its_broker_counts_as_moved() -> None:
    leaving = instance_of([[1.0], [1.0]], [[1.0], [1.0]], [0, 1], [0, 0], [[False, True]], [0.4, 0.6])
    relief = Reliefs(leaving, 2.0).relief(2.0)
    assert relief.least_load(leaving) == pytest.approx(0.4)
    assert relief.least_moves(leaving) == 1


def test_small_budget_keeps_the_peak_high() -> None:
    """A budget of a quarter of all load moves one of four units."""
    hot = instance_of([[1.0]] * 4, [[1.0], [1.0]], [0] * 4)
    proof = Reliefs(hot, 0.0).least_peak(0.25)
    assert proof.least_load(hot) > 0.25
    assert proof.peak == pytest.approx(3.0, rel=1e-5)
