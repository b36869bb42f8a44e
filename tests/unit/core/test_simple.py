"""Quotas that are remembered, and the rules of SimpleLoadManagerImpl beyond those that Pulsar's tests name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from support.builders import broker, bundle, owned, report, snapshot

from loadmanager.core.cluster import ClusterModel
from loadmanager.core.filters import EXTENSIBLE, MODULAR, SIMPLE, rules_of
from loadmanager.core.placement.base import Projection
from loadmanager.core.plan import Reason
from loadmanager.core.planner import PlannerSettings, choose_destination, plan_assignments, plan_shedding
from loadmanager.core.simple import DEFAULT_QUOTA, Samples, ranking_of
from loadmanager.core.snapshot import Snapshot

SETTINGS = PlannerSettings(load_manager_class_name="SimpleLoadManagerImpl")
MINUTE_MS = 60_000
RNG = np.random.default_rng(0)


def reported_at(minute: int, bundles: int = 1, rate: float = 100) -> Snapshot:
    loads = {bundle(i): (rate, rate, 1e5, 1e5) for i in range(bundles)}
    return snapshot({"b0": report(loads, last_update_ms=minute * MINUTE_MS)}, taken_at_s=60.0 * minute)


def model_after(given: Snapshot, **model: object) -> dict[str, Any]:
    return ranking_of(given, {"model": {"last_update_ms": 0, **model}}, SETTINGS).model


def test_a_fixed_quota_never_changes() -> None:
    quota = [1.0, 2.0, 3.0, 4.0, 5.0]
    model = model_after(reported_at(30, bundles=2), quotas={bundle(0): quota}, fixed=[bundle(0)])
    assert model["quotas"][bundle(0)] == quota
    assert model["quotas"][bundle(1)] != list(DEFAULT_QUOTA)
    assert model["fixed"] == [bundle(0)]


def test_bundles_that_start_from_a_fixed_default_are_fixed_and_it_stays_as_it_is() -> None:
    default = [1.0, 2.0, 3.0, 4.0, 5.0]
    model = model_after(reported_at(30, bundles=40), default=default, default_fixed=True)
    assert model["quotas"][bundle(0)] == model["default"] == model["average"] == default
    assert len(model["fixed"]) == 40


def test_the_average_becomes_the_default_at_most_every_quarter_of_an_hour() -> None:
    early = model_after(reported_at(14, bundles=40), stored_at_ms=0)
    assert early["default"] == list(DEFAULT_QUOTA)
    late = model_after(reported_at(15, bundles=40), stored_at_ms=0)
    assert late["default"] == late["average"] != list(DEFAULT_QUOTA)
    assert late["stored_at_ms"] == 15 * MINUTE_MS
    same = model_after(reported_at(15), stored_at_ms=0)
    assert (same["default"], same["stored_at_ms"]) == (list(DEFAULT_QUOTA), 15 * MINUTE_MS)


def test_what_is_remembered_is_taken_in_once_per_report_and_is_a_json_value() -> None:
    first = model_after(reported_at(1))
    again = ranking_of(reported_at(1), {"model": json.loads(json.dumps(first))}, SETTINGS).model
    assert again == first
    given = reported_at(1)
    ranking = ranking_of(given, {"model": first}, SETTINGS)
    assert ranking_of(given, {"model": ranking.model}, SETTINGS) is ranking


def test_a_quota_is_kept_while_a_record_has_the_bundle_and_forgotten_after() -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [bundle(0)], [owned(broker("b0"))])
    model.apply_report(broker("b0"), report())
    quotas = {bundle(0): [1.0] * 5, bundle(7): [2.0] * 5}
    assert model_after(model.snapshot(0.0, 0.0), quotas=quotas)["quotas"] == {bundle(0): [1.0] * 5}


def test_without_any_broker_nothing_is_taken_in() -> None:
    ranking = ranking_of(snapshot({}), {}, SETTINGS)
    assert "last_update_ms" not in ranking.model
    assert len(ranking.capacity) == 0


def test_in_the_running_model_the_short_term_average_stands_for_what_is_measured() -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [bundle(0)], [owned(broker("b0"))])
    for rate in (100, 200):
        model.apply_report(broker("b0"), report({bundle(0): (rate, 0, 0, 0)}, topics_per_bundle=3))
    samples = Samples.of(model.snapshot(0.0, 0.0))
    assert samples.load[0].tolist() == [150, 0, 0, 0]
    assert samples.objects.tolist() == [3]


def test_a_bundle_that_two_report_is_measured_where_it_is() -> None:
    stale = report({bundle(0): (1, 0, 0, 0)}, last_update_ms=1)
    fresh = report({bundle(0): (2, 0, 0, 0)}, last_update_ms=2)
    assert Samples.of(snapshot({"a": fresh, "b": stale})).load[0, 0] == 2


def test_a_capacity_of_nothing_over_nothing_is_none_and_of_anything_over_nothing_does_not_bind() -> None:
    given = snapshot(
        {
            "b0": report(cpu=(0, 100), memory=(0, 800), bandwidth_in=(0, 10_000), bandwidth_out=(0, 10_000)),
            "b1": report(),
        }
    )
    ranking = ranking_of(given, {"model": {"last_update_ms": 0, "default": [0, 0, 0, 0, 80]}}, SETTINGS)
    assert ranking.capacity.tolist() == [10, 0]


def test_a_tally_counts_the_moves_before_it_was_asked_for_and_after() -> None:
    given = reported_at(0, bundles=2)
    projection = Projection(given)
    projection.move("tenant/ns", None, None, 0)
    added, removed = projection.tally("one", lambda row: np.array([10.0 if row is None else row]))
    projection.move("tenant/ns", 1, 0, 0)
    assert (added.tolist(), removed.tolist()) == ([[11]], [[1]])
    assert projection.tally("one", lambda _: np.array([0.0]))[0] is added


def test_a_bundle_does_not_count_as_load_of_the_broker_that_is_asked_to_own_it_again() -> None:
    given = snapshot({"b0": report([bundle(0)], cpu=(0, 100))})
    registration, verdict, _ = choose_destination(given, bundle(0), None, SETTINGS, {}, RNG)
    assert (registration, verdict.verdict) == (broker("b0"), Reason.IDLE_BROKER_OPENED)
    assert (verdict.why["usage_percent"], verdict.why["msg_rate_per_s"]) == (0, 0)


def test_a_memory_that_the_reports_do_not_change_stays_the_same_object() -> None:
    given, known = reported_at(1), {"model": model_after(reported_at(1))}
    assert ranking_of(given, known, SETTINGS).model is known["model"]


def test_a_broker_that_sheds_has_that_much_less_to_carry_for_the_next_bundle() -> None:
    given = snapshot({"b0": report([bundle(0), bundle(1)], cpu=(0, 100)), "b1": report(cpu=(0, 100))})
    ranking = ranking_of(given, {"model": {"last_update_ms": 0}}, SETTINGS)
    projection = Projection(given)
    added, removed = projection.tally("quota", ranking.quota_of)
    projection.move("tenant/ns", 0, 0, 1)
    loaded, on_its_way = ranking.loaded - removed, ranking.given + added
    assert ranking.messages_per_s(loaded, on_its_way).tolist() == [160, 160]
    assert (loaded[:, -1].tolist(), on_its_way[:, -1].tolist()) == ([1, 0], [0, 1])


def test_a_broker_sheds_nothing_while_a_bundle_is_leaving_it() -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [bundle(0), bundle(1)], [owned(broker("b0")), owned(broker("b1"))])
    model.apply_report(broker("b0"), report([bundle(0), bundle(1)], cpu=90))
    model.apply_report(broker("b1"), report())
    plan, _ = plan_shedding(model.snapshot(0.0, 0.0), SETTINGS, {}, RNG)
    assert [each.verdict for each in plan.verdicts if each.subject == "b0:8080"] == [Reason.AWAITING_REPORT]


def test_the_even_distribution_of_a_namespace_is_on_whatever_its_setting() -> None:
    given = snapshot({"b0": report([bundle(0)]), "b1": report([bundle(0, "tenant/other")], cpu=99)})
    settings = PlannerSettings(load_manager_class_name="SimpleLoadManagerImpl", distribute_bundles_evenly_enabled=False)
    plan, _ = plan_assignments(given, [bundle(1)], settings, {}, RNG)
    assert [step.destination for step in plan.steps] == [broker("b1")]


@pytest.mark.parametrize(
    ("settings", "placement", "rules"),
    [
        (SETTINGS, "leastLoadedServer", SIMPLE),
        (PlannerSettings(), "weightedRandomSelection", SIMPLE),
        (PlannerSettings(), "LeastLongTermMessageRate", MODULAR),
        (PlannerSettings(shedding_strategy="TransferShedder"), "leastMsgPerSecond", EXTENSIBLE),
        (
            PlannerSettings(load_manager_class_name="SimpleLoadManagerImpl", shedding_strategy="TransferShedder"),
            "leastMsgPerSecond",
            SIMPLE,
        ),
    ],
)
def test_the_filters_are_those_of_the_load_manager(settings: PlannerSettings, placement: str, rules: object) -> None:
    assert rules_of(settings, placement) is rules
