"""Placement beyond Pulsar's own cases."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders import averages, broker, bundle, report, snapshot

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import PlacementReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.extensible_load import Published, PublishedLoad
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.placement.least_long_term_message_rate import LeastLongTermMessageRate
from loadmanager.core.strategies.placement.least_resource_usage import (
    LeastResourceUsageWithWeight,
    ResourceUsageReason,
)
from loadmanager.core.strategies.placement.least_resource_usage_extensible import (
    LeastResourceUsageWithWeightExtensible,
)
from loadmanager.core.strategies.placement.placement_strategy import Placement, PlacementStrategy, State
from loadmanager.core.strategies.placement.round_robin import RoundRobinBrokerSelector

STRATEGY = LeastLongTermMessageRate(PlannerSettings())
EVERYONE = np.arange(3)


def equals() -> Snapshot:
    return snapshot({"a": report(), "b": report(), "c": report()})


def test_equal_brokers_are_drawn_equally_often() -> None:
    given, rng = equals(), np.random.default_rng(0)
    drawn = [STRATEGY.place(EVERYONE, None, Projection(given), {}, rng).broker for _ in range(3000)]
    assert all(900 < drawn.count(row) < 1100 for row in range(3))


def test_a_single_best_broker_is_chosen_without_drawing() -> None:
    known = {bundle(i): averages((10.0 * i, 0, 0, 0)) for i in (1, 2, 3)}
    given = snapshot({name: report([bundle(i)]) for i, name in enumerate("abc", start=1)}, known)
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    placement = STRATEGY.place(EVERYONE, None, Projection(given), {"kept": 1}, rng)
    assert (placement.broker, placement.state) == (0, {"kept": 1})
    assert rng.bit_generator.state == before


def test_nan_score_is_never_the_least() -> None:
    given = snapshot(
        {"a": report([bundle(1)]), "b": report([bundle(2)])},
        {bundle(1): averages((np.nan, 0, 0, 0)), bundle(2): averages((5, 0, 0, 0))},
    )
    placement = STRATEGY.place(np.arange(2), None, Projection(given), {}, np.random.default_rng(0))
    assert placement.broker == 1


def test_projected_move_counts_at_its_destination() -> None:
    given = snapshot({"a": report({bundle(1): (7, 3, 20, 10)}), "b": report()})
    projection = Projection(given)
    projection.move("tenant/ns", 0, 0, 1)
    assert projection.load.tolist() == [[-7, -3, -20, -10], [7, 3, 20, 10]]
    assert projection.topics.tolist() == [-1, 1]
    assert projection.bundles_per_broker("tenant/ns").tolist() == [0, 1]
    assert projection.bundles_per_broker("tenant/unknown").tolist() == [0, 0]


def test_only_the_long_term_average_counts() -> None:
    known = {bundle(1): averages((1, 0, 0, 0), (9, 0, 0, 0)), bundle(2): averages((9, 0, 0, 0), (1, 0, 0, 0))}
    given = snapshot({"a": report([bundle(1)]), "b": report([bundle(2)])}, known)
    assert STRATEGY.place(np.arange(2), None, Projection(given), {}, np.random.default_rng(0)).broker == 1


def least_used(difference: int = 10, history: float = 0.5) -> LeastResourceUsageWithWeight:
    return LeastResourceUsageWithWeight(
        PlannerSettings(
            average_resource_usage_difference_threshold_percentage=difference, history_resource_percentage=history
        )
    )


LEAST_USED = least_used()


def choose(
    strategy: PlacementStrategy, given: Snapshot, state: State | None = None, *candidates: int, seed: int = 0
) -> Placement:
    rows = np.array(candidates or range(len(given.brokers)), dtype=np.intp)
    return strategy.place(rows, None, Projection(given), state or {}, np.random.default_rng(seed))


def busy(cpu: float, name: int = 1) -> BrokerReport:
    return report({bundle(name): (1, 1, 0, 0)}, cpu=cpu)


def test_qualifying_brokers_are_drawn_equally_often() -> None:
    """Q7: chance decides among those that qualify, not the least usage."""
    given = snapshot({"a": busy(10), "b": busy(20, 2), "c": busy(90, 3)})
    drawn = [choose(LEAST_USED, given, {}, seed=seed).broker for seed in range(1000)]
    assert 400 < drawn.count(0) < 600
    assert drawn.count(0) + drawn.count(1) == 1000


def test_broker_exactly_the_difference_below_average_qualifies() -> None:
    given = snapshot({"a": busy(25), "b": busy(75, 2)})
    exactly = least_used(25)
    assert choose(exactly, given).drawn_from.tolist() == [0]
    over = least_used(26)
    placement = choose(over, given)
    assert placement.drawn_from.tolist() == [0, 1]
    assert placement.reason is ResourceUsageReason.RESOURCE_USAGE_NEAR_AVERAGE


def test_single_candidate_qualifies_only_without_a_difference() -> None:
    given = snapshot({"a": busy(25)})
    assert choose(LEAST_USED, given).reason is ResourceUsageReason.RESOURCE_USAGE_NEAR_AVERAGE
    any_difference = least_used(0)
    assert choose(any_difference, given).reason is ResourceUsageReason.RESOURCE_USAGE_BELOW_AVERAGE


def test_verdict_of_a_choice_by_usage() -> None:
    given = snapshot({"a": busy(10), "b": busy(20, 2), "c": busy(90, 3)})
    placement = choose(LEAST_USED, given, {}, seed=1)
    name = given.brokers.ids[placement.broker or 0]
    verdict = Verdict("x", placement.reason, acted=True, why={"broker": name, **placement.why})
    assert verdict.sentence() == (
        f"Placed on {name}: usage {10 if name == 'a:8080' else 20} % is at most average 40 % - 10 %;"
        " 2 of 3 candidates qualified (loadBalancerAverageResourceUsageDifferenceThresholdPercentage)"
    )


def test_average_restarts_on_re_registration_or_idleness() -> None:
    state = {"usage": {"a:8080": [1, 0.9], "b:8080": [7, 0.9], "gone:8080": [1, 0.9]}}
    averaged = choose(LEAST_USED, snapshot({"a": busy(10), "b": busy(10, 2)}), state).state["usage"]
    assert averaged == {"a:8080": [1, pytest.approx(0.5)], "b:8080": [1, pytest.approx(0.1)]}
    silent = choose(LEAST_USED, snapshot({"a": report([bundle(1)], cpu=10)}), state).state["usage"]
    assert silent == {"a:8080": [1, pytest.approx(0.1)]}
    empty = choose(LEAST_USED, snapshot({"a": report(cpu=10, load=(1, 1, 0, 0))}), state).state["usage"]
    assert empty == {"a:8080": [1, pytest.approx(0.1)]}


@pytest.mark.parametrize("left", [{"b": busy(10, 2)}, {}])
def test_averages_of_lost_brokers_are_dropped(left: dict[str, BrokerReport]) -> None:
    nobody = np.empty(0, dtype=np.intp)
    state = {"usage": {"a:8080": [1, 0.9], "b:8080": [1, 0.9]}}
    given = snapshot(left)
    placement = LEAST_USED.place(nobody, None, Projection(given), state, np.random.default_rng(0))
    assert placement.broker is None
    assert placement.state["usage"] == {f"{name}:8080": [1, 0.9] for name in left}


def test_full_history_weight_keeps_the_first_usage() -> None:
    strategy = least_used(history=1.0)
    state = choose(strategy, snapshot({"a": busy(10)})).state
    assert choose(strategy, snapshot({"a": busy(90)}), state).state["usage"] == {"a:8080": [1, pytest.approx(0.1)]}


def test_non_finite_average_is_dropped() -> None:
    state = {"usage": {"a:8080": [1, float("nan")], "b:8080": [1, 0.5]}}
    given = snapshot({"a": busy(10), "b": busy(50, 2)})
    assert choose(LEAST_USED, given, state).drawn_from.tolist() == [0]
    nothing = choose(LEAST_USED, given, {"usage": {"a:8080": [1, float("inf")]}}, 1)
    assert nothing.state["usage"] == {"b:8080": [1, pytest.approx(0.5)]}


def test_average_of_a_non_candidate_is_unchanged() -> None:
    given = snapshot({"a": busy(10), "b": busy(10, 2), "c": busy(10, 3)})
    usage = choose(LEAST_USED, given, {"usage": {"b:8080": [1, 0.9]}}, 0).state["usage"]
    assert usage == {"a:8080": [1, pytest.approx(0.1)], "b:8080": [1, 0.9]}


def test_non_finite_usage_is_not_stored() -> None:
    nothing = (np.nan, 100.0)
    unknown = report(
        [bundle(1)], cpu=nothing, direct_memory=nothing, bandwidth_in=nothing, bandwidth_out=nothing, load=(1, 1, 0, 0)
    )
    assert choose(LEAST_USED, snapshot({"a": unknown, "b": busy(10, 2)})).state["usage"].keys() == {"b:8080"}


def test_strategies_without_candidates_keep_their_state() -> None:
    given, rows = snapshot({"a": busy(10)}), np.empty(0, dtype=np.intp)
    for factory in PLACEMENT_STRATEGIES.values():
        strategy = factory(PlannerSettings())
        placement = strategy.place(rows, None, Projection(given), {"kept": 1}, np.random.default_rng(0))
        assert (placement.broker, placement.reason) == (None, PlacementReason.NO_BROKER_AVAILABLE)
        assert placement.state == {"kept": 1}


EXTENSIBLE = LeastResourceUsageWithWeightExtensible(PlannerSettings())


def with_loads(loads: dict[str, float | None]) -> Snapshot:
    """Brokers with the averaged usage that each has published, if any."""
    given = {
        broker(name).broker: PublishedLoad(usage, 0.0, 0.0, 0.0, 0)
        for name, usage in loads.items()
        if usage is not None
    }
    return build_snapshot(0.0, {broker(name): report() for name in loads}, {}, published=Published(broker_load=given))


def test_broker_without_a_published_load_is_drawn_only_with_all_others() -> None:
    given = with_loads({"a": 0.1, "b": 0.5, "c": None})
    assert choose(EXTENSIBLE, given).drawn_from.tolist() == [0]
    given = with_loads({"a": 0.5, "b": 0.5, "c": None})
    assert choose(EXTENSIBLE, given).drawn_from.tolist() == [0, 1, 2]


def test_all_candidates_are_drawn_from_without_published_loads() -> None:
    placement = choose(EXTENSIBLE, with_loads({"a": None, "b": None, "c": 0.1}), {}, 0, 1)
    assert placement.drawn_from.tolist() == [0, 1]
    assert "{" not in Verdict("x", placement.reason, acted=True, why={"broker": "a", **placement.why}).sentence()


def test_load_is_computed_from_reports_if_not_published() -> None:
    assert choose(EXTENSIBLE, snapshot({"a": busy(10), "b": busy(90, 2)})).drawn_from.tolist() == [0]


def test_round_robin_reorders_when_the_number_of_candidates_changes() -> None:
    given = snapshot({name: report() for name in "abcd"})
    strategy = RoundRobinBrokerSelector()
    first = choose(strategy, given, {}, 0, 1)
    second = choose(strategy, given, first.state, 0, 1, 2)
    assert [first.broker, second.broker] == [0, 1]
    assert second.state == {"turn": 2, "order": ["a:8080", "b:8080", "c:8080"]}
    assert second.drawn_from.tolist() == [1]
    assert choose(strategy, snapshot({"a": report(), "x": report()}), second.state).broker == 0
