"""Pulsar's choices for placement (rows C1, C2, C5, C6 and C8)."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders import averages, broker, bundle, owned, report, snapshot

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.reasons import PlacementReason
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.extensible_load import LoadAverage, Published, PublishedLoad, ReportRules
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.strategies.placement.least_long_term_message_rate import LeastLongTermMessageRate
from loadmanager.core.strategies.placement.least_resource_usage import LeastResourceUsageWithWeight
from loadmanager.core.strategies.placement.least_resource_usage_extensible import (
    LeastResourceUsageWithWeightExtensible,
)
from loadmanager.core.strategies.placement.placement_strategy import Placement, PlacementStrategy, State
from loadmanager.core.strategies.placement.round_robin import RoundRobinBrokerSelector


def with_rates(rates: dict[str, float], reports: dict[str, BrokerReport]) -> Snapshot:
    """Each broker reports one bundle of this long-term message rate in."""
    names = {name: bundle(int(name)) for name in rates}
    reports = {name: reports.get(name, report([names[name]])) for name in rates}
    return snapshot(reports, {names[name]: averages((rate, 0, 0, 0)) for name, rate in rates.items()})


def choose(given: Snapshot, *candidates: int, weights: ResourceWeights | None = None) -> Placement:
    strategy = LeastLongTermMessageRate(85, weights or ResourceWeights())
    rng = np.random.default_rng(0)
    return strategy.place(np.array(candidates, dtype=np.intp), None, given, Projection(given), {}, rng)


def chosen(placement: Placement) -> str:
    assert placement.broker is not None
    return str(placement.broker + 1)


def test_c1_a_and_b_the_least_long_term_message_rate_wins() -> None:
    assert chosen(choose(with_rates({"1": 100, "2": 200, "3": 300}, {}), 0, 1, 2)) == "1"
    assert chosen(choose(with_rates({"1": 400, "2": 200, "3": 300}, {}), 0, 1, 2)) == "2"


def test_c1_c_and_d_an_overloaded_broker_is_passed_over_unless_its_resource_has_no_weight() -> None:
    given = with_rates({"1": 400, "2": 200, "3": 300}, {"2": report([bundle(2)], cpu=90)})
    assert chosen(choose(given, 0, 1, 2)) == "3"
    assert chosen(choose(given, 0, 1, 2, weights=ResourceWeights(cpu=0))) == "2"


def test_c1_e_when_all_are_overloaded_any_of_them_is_drawn() -> None:
    reports = {name: report([bundle(int(name))], cpu=90) for name in "123"}
    placement = choose(with_rates({"1": 400, "2": 200, "3": 300}, reports), 0, 1, 2)
    assert placement.drawn_from.tolist() == [0, 1, 2]
    assert placement.reason is PlacementReason.ALL_BROKERS_OVERLOADED


def test_c1_f_a_broker_exactly_at_the_threshold_is_not_overloaded() -> None:
    given = with_rates({"1": 400, "2": 200}, {"2": report([bundle(2)], cpu=85)})
    assert chosen(choose(given, 0, 1)) == "2"


def test_c1_g_without_candidates_there_is_no_choice() -> None:
    assert choose(with_rates({"1": 100}, {})).broker is None


def test_c1_h_a_bundle_that_was_given_but_is_not_reported_yet_counts() -> None:
    model = ClusterModel()
    own, given = bundle(1), bundle(2)
    model.set_namespace("tenant/ns", [own, given], [owned(broker("3")), owned(broker("3"))])
    model.seed_bundle(own, averages((300, 0, 0, 0)))
    model.seed_bundle(given, averages((150, 100, 0, 0)))
    model.apply_report(broker("3"), report({own: (300, 0, 0, 0)}))
    assert choose(model.snapshot(0, 0), 0).why["msg_rate_per_s"] == 550


HALF_HISTORY = PlannerSettings(
    average_resource_usage_difference_threshold_percentage=5,
    history_resource_percentage=0.5,
    resource_weights=ResourceWeights(cpu=1, direct_memory=0.1, bandwidth_in=1, bandwidth_out=1),
)


def used(percent: float, *bundles: str) -> BrokerReport:
    """A broker of which every resource is used as much; its bundles carry 100 messages/s both ways."""
    everything = dict.fromkeys(bundles, (100.0, 100.0, 0.0, 0.0))
    return report(
        everything, cpu=percent, memory=percent, direct_memory=percent, bandwidth_in=percent, bandwidth_out=percent
    )


def all_used(*percents: float, idle: tuple[int, ...] = ()) -> dict[str, BrokerReport]:
    """Brokers 1, 2, 3, ... with one bundle each, but for those that are idle."""
    numbered = enumerate(percents, start=1)
    return {str(i): used(percent) if i in idle else used(percent, bundle(i)) for i, percent in numbered}


def ask(strategy: PlacementStrategy, given: Snapshot, candidates: str, state: State) -> Placement:
    """A choice among the candidates in this order; no chance is involved where Pulsar's tests say what comes out."""
    rows = np.array([int(name) - 1 for name in candidates], dtype=np.intp)
    return strategy.place(rows, None, given, Projection(given), state, np.random.default_rng(0))


def test_c2_brokers_below_the_average_usage_are_chosen_and_each_choice_advances_the_averages() -> None:
    strategy = LeastResourceUsageWithWeight.of(HALF_HISTORY)
    state = ask(strategy, snapshot(all_used(10, 30, 60, 5)), "1234", {}).state
    steps: list[tuple[tuple[float, float, float], tuple[float, float, float], str]] = [
        ((10, 30, 60), (0.1, 0.30000001907, 0.60000003815), "1"),
        ((20, 30, 50), (0.15, 0.30000001907, 0.55000001907), "1"),
        ((30, 30, 40), (0.22500000954, 0.30000001907, 0.47500000954), "1"),
        ((30, 30, 40), (0.26250001431, 0.30000001907, 0.43750000477), "1"),
        ((35, 20, 45), (0.30625000715, 0.25000000954, 0.44375000238), "2"),
        ((35, 20, 0), (0.32812500358, 0.22500000477, 0), "3"),
    ]
    for number, (percents, averages_after, selected) in enumerate(steps, start=1):
        given = snapshot(all_used(*percents, 5, idle=(3,) if number == 6 else ()))
        placement = ask(strategy, given, "123", state)
        state = placement.state
        assert (chosen(placement), len(placement.drawn_from)) == (selected, 1)
        found = [state["usage"][f"{name}:8080"][1] for name in "123"]
        assert found == pytest.approx(averages_after, abs=1e-10)
        assert placement.why["average_percent"] == pytest.approx(sum(averages_after) / 3 * 100)


def published(averages_of: dict[str, LoadAverage]) -> Snapshot:
    """Brokers that have published these averages themselves."""
    loads = {
        broker(name).broker: PublishedLoad(each.usage_ema, each.msg_throughput_ema, 0, 0, each.updated_at_ms)
        for name, each in averages_of.items()
    }
    reports = {broker(name): report() for name in averages_of}
    return build_snapshot(0.0, reports, {}, published=Published(broker_load=loads))


def test_c5_the_average_that_a_broker_publishes_decides_in_the_extensible_load_manager() -> None:
    strategy = LeastResourceUsageWithWeightExtensible.of(HALF_HISTORY)
    rules = ReportRules.of(HALF_HISTORY)
    none = dict.fromkeys("123", LoadAverage())

    def choose_after(percents: tuple[int, ...], before: dict[str, LoadAverage]) -> tuple[str, dict[str, LoadAverage]]:
        at_ms = 5000 + max(each.updated_at_ms for each in before.values())
        after = {
            name: rules.average_after(report(cpu=percent, last_update_ms=at_ms), before[name])
            for name, percent in zip("123", percents, strict=True)
        }
        return chosen(ask(strategy, published(after), "123", {})), after

    assert choose_after((10, 30, 60), none)[0] == "1"
    found, loads = choose_after((20, 30, 50), none)
    assert found == "1"
    for percents, averages_after, selected in (
        ((30, 30, 40), (0.25, 0.3, 0.45), "1"),
        ((30, 30, 40), (0.275, 0.3, 0.425), "1"),
        ((35, 20, 45), (0.3125, 0.25, 0.4375), "2"),
    ):
        found, loads = choose_after(percents, loads)
        assert found == selected
        assert [each.usage_ema for each in loads.values()] == pytest.approx(averages_after)
    assert choose_after((35, 20, 0), {**loads, "3": LoadAverage()})[0] == "3"


def test_c6_a_broker_that_is_no_candidate_does_not_count() -> None:
    given = published(dict(zip("1234", map(LoadAverage, (0.1, 0.3, 0.6, 0.05)), strict=True)))
    assert chosen(ask(LeastResourceUsageWithWeightExtensible.of(HALF_HISTORY), given, "123", {})) == "1"


def test_c8_round_robin_keeps_its_order_while_it_can() -> None:
    given = snapshot({name: report() for name in "1234"})
    strategy = RoundRobinBrokerSelector()
    state: State = {}
    for candidates, expected in (
        ("123", "1231231231"),
        ("231", "2312312312"),
        ("124", "412412"),
        ("24", "2424"),
    ):
        found = ""
        for _ in expected:
            placement = ask(strategy, given, candidates, state)
            found, state = found + chosen(placement), placement.state
        assert found == expected
    placement = ask(strategy, given, "123", {"turn": 2147483647})
    assert (chosen(placement), placement.state["turn"]) == ("2", 0)
    assert ask(strategy, given, "", {}).broker is None
