"""Pulsar's choices for placement (row C1) and its broker filters (rows L1 and L3)."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders import Load, averages, broker, bundle, owned, report, snapshot

from loadmanager.core.cluster import ClusterModel
from loadmanager.core.filters import Question, keep_fewest_of_namespace, keep_serving_domain
from loadmanager.core.load import BrokerReport, ResourceWeights
from loadmanager.core.placement.base import Placement, Projection
from loadmanager.core.placement.least_long_term_message_rate import LeastLongTermMessageRate
from loadmanager.core.plan import Reason
from loadmanager.core.planner import PlannerSettings
from loadmanager.core.snapshot import Snapshot


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
    assert placement.reason is Reason.ALL_BROKERS_OVERLOADED


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


def question(given: Snapshot, namespace: str = "tenant1/ns1", *, non_persistent: bool = False) -> Question:
    return Question(namespace, non_persistent, given, Projection(given), PlannerSettings())


@pytest.mark.parametrize(
    ("owned_ranges", "candidates", "kept"),
    [
        ({}, (), ()),
        ({}, (1,), (1,)),
        ({1: 1}, (1,), (1,)),
        ({1: 1}, (1, 2), (2,)),
        ({1: 1, 2: 1}, (1, 2), (1, 2)),
        ({1: 1, 2: 2}, (1, 2), (1,)),
        ({1: 1, 2: 2, 3: 1}, (1, 2, 3), (1, 3)),
    ],
)
def test_l1_brokers_with_the_fewest_bundles_of_the_namespace_are_kept(
    owned_ranges: dict[int, int], candidates: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    zero: Load = (0, 0, 0, 0)
    reports = {
        f"b{number}": report({bundle(10 * number + i, "tenant1/ns1"): zero for i in range(owned_ranges.get(number, 0))})
        for number in (1, 2, 3)
    }
    mask = np.array([number in candidates for number in (1, 2, 3)])
    remaining = keep_fewest_of_namespace(mask, question(snapshot(reports)))
    assert tuple(int(row) + 1 for row in np.flatnonzero(remaining)) == kept


def test_l3_brokers_that_do_not_serve_the_bundles_kind_of_topics_are_dropped() -> None:
    everyone = np.ones(3, dtype=bool)
    off = {name: report(non_persistent_enabled=False) for name in ("b1", "b2")}
    given = question(snapshot({**off, "b3": report()}), non_persistent=True)
    assert keep_serving_domain(everyone, given).tolist() == [False, False, True]
    given = question(snapshot({"b1": report(persistent_enabled=False), "b2": report(), "b3": report()}))
    assert keep_serving_domain(everyone, given).tolist() == [False, True, True]
    given = question(snapshot({"b1": report(), "b2": report(), "b3": report()}))
    assert keep_serving_domain(everyone, given).tolist() == [True, True, True]
