from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.builders import broker, bundle, owned, report, snapshot

from loadmanager.core.constraints.filters import EXTENSIBLE, MODULAR, SIMPLE, rules_of
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.ownership import Ownership
from loadmanager.core.domain.reasons import SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.quotas import DEFAULT_QUOTA, Samples
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.decision_kinds import as_json
from loadmanager.core.planning.planner import choose_destination, plan_assignments, plan_shedding
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.placement.fill_up import FillUpReason
from loadmanager.core.strategies.ranked_brokers import rank_brokers

SETTINGS = PlannerSettings(load_manager_class_name="SimpleLoadManagerImpl")
MINUTE_MS = 60_000
RNG = np.random.default_rng(0)


def reported_at(minute: int, bundles: int = 1, rate: float = 100) -> Snapshot:
    loads = {bundle(i): (rate, rate, 1e5, 1e5) for i in range(bundles)}
    return snapshot({"b0": report(loads, last_update_ms=minute * MINUTE_MS)}, taken_at_s=60.0 * minute)


def model_after(given: Snapshot, **model: object) -> dict[str, Any]:
    return rank_brokers(given, {"model": {"last_update_ms": 0, **model}}, SETTINGS).model.as_json()


def test_fixed_quota_never_changes() -> None:
    quota = [1.0, 2.0, 3.0, 4.0, 5.0]
    model = model_after(reported_at(30, bundles=2), quotas={bundle(0): quota}, fixed=[bundle(0)])
    assert model["quotas"][bundle(0)] == quota
    assert model["quotas"][bundle(1)] != list(DEFAULT_QUOTA)
    assert model["fixed"] == [bundle(0)]


def test_average_becomes_the_default_every_15_minutes_at_most() -> None:
    early = model_after(reported_at(14, bundles=40), stored_at_ms=0)
    assert early["default"] == list(DEFAULT_QUOTA)
    late = model_after(reported_at(15, bundles=40), stored_at_ms=0)
    assert late["default"] == late["average"] != list(DEFAULT_QUOTA)
    assert late["stored_at_ms"] == 15 * MINUTE_MS
    same = model_after(reported_at(15), stored_at_ms=0)
    assert (same["default"], same["stored_at_ms"]) == (list(DEFAULT_QUOTA), 15 * MINUTE_MS)


def test_state_is_json_and_changes_once_per_report() -> None:
    first = model_after(reported_at(1))
    again = rank_brokers(reported_at(1), {"model": json.loads(json.dumps(first))}, SETTINGS).model
    assert again.as_json() == first
    given = reported_at(1)
    ranking = rank_brokers(given, {"model": first}, SETTINGS)
    assert rank_brokers(given, {"model": ranking.model}, SETTINGS) is ranking


def test_quota_is_kept_while_a_record_has_the_bundle() -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [bundle(0)], [owned(broker("b0"))])
    model.apply_report(broker("b0"), report())
    quotas = {bundle(0): [1.0] * 5, bundle(7): [2.0] * 5}
    assert model_after(model.snapshot(0.0, 0.0), quotas=quotas)["quotas"] == {bundle(0): [1.0] * 5}


def test_without_brokers_the_state_is_empty() -> None:
    ranking = rank_brokers(snapshot({}), {}, SETTINGS)
    assert "last_update_ms" not in ranking.model.as_json()
    assert len(ranking.capacity) == 0


def test_samples_of_a_model_are_short_term_averages() -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [bundle(0)], [owned(broker("b0"))])
    for rate in (100, 200):
        model.apply_report(broker("b0"), report({bundle(0): (rate, 0, 0, 0)}, topics_per_bundle=3))
    samples = Samples.of(model.snapshot(0.0, 0.0))
    assert samples.load[0].tolist() == [150, 0, 0, 0]
    assert samples.objects.tolist() == [3]


def test_sample_of_a_bundle_reported_twice_is_that_of_its_broker() -> None:
    stale = report({bundle(0): (1, 0, 0, 0)}, last_update_ms=1)
    fresh = report({bundle(0): (2, 0, 0, 0)}, last_update_ms=2)
    assert Samples.of(snapshot({"a": fresh, "b": stale})).load[0, 0] == 2


def test_capacity_with_zero_quotas() -> None:
    given = snapshot(
        {
            "b0": report(cpu=(0, 100), memory=(0, 800), bandwidth_in=(0, 10_000), bandwidth_out=(0, 10_000)),
            "b1": report(),
        }
    )
    ranking = rank_brokers(given, {"model": {"last_update_ms": 0, "default": [0, 0, 0, 0, 80]}}, SETTINGS)
    assert ranking.capacity.tolist() == [10, 0]


def test_tally_counts_earlier_and_later_moves() -> None:
    given = reported_at(0, bundles=2)
    projection = Projection(given)
    projection.move("tenant/ns", None, None, 0)
    added, removed = projection.tally("one", lambda row: np.array([10.0 if row is None else row]))
    projection.move("tenant/ns", 1, 0, 0)
    assert (added.tolist(), removed.tolist()) == ([[11]], [[1]])
    assert projection.tally("one", lambda _: np.array([0.0]))[0] is added


def test_reassigned_bundle_does_not_count_at_its_former_broker() -> None:
    given = snapshot({"b0": report([bundle(0)], cpu=(0, 100))})
    registration, verdict, _ = choose_destination(given, bundle(0), None, SETTINGS, {}, RNG)
    assert (registration, verdict.verdict) == (broker("b0"), FillUpReason.IDLE_BROKER_OPENED)
    assert (verdict.why["usage_percent"], verdict.why["msg_rate_per_s"]) == (0, 0)


def test_unchanged_columns_are_shared_between_states() -> None:
    first = rank_brokers(reported_at(1), {}, SETTINGS).model
    later = rank_brokers(reported_at(1), {"model": first}, SETTINGS).model
    assert later.quota is first.quota


def test_projected_move_reduces_the_load_of_its_source() -> None:
    given = snapshot({"b0": report([bundle(0), bundle(1)], cpu=(0, 100)), "b1": report(cpu=(0, 100))})
    ranking = rank_brokers(given, {"model": {"last_update_ms": 0}}, SETTINGS)
    projection = Projection(given)
    added, removed = projection.tally("quota", ranking.quota_of)
    projection.move("tenant/ns", 0, 0, 1)
    loaded, on_its_way = ranking.loaded - removed, ranking.given + added
    assert ranking.messages_per_s(loaded, on_its_way).tolist() == [160, 160]
    assert (loaded[:, -1].tolist(), on_its_way[:, -1].tolist()) == ([1, 0], [0, 1])


def test_broker_with_a_release_in_progress_sheds_nothing() -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [bundle(0), bundle(1)], [owned(broker("b0")), owned(broker("b1"))])
    model.apply_report(broker("b0"), report([bundle(0), bundle(1)], cpu=90))
    model.apply_report(broker("b1"), report())
    plan, _ = plan_shedding(model.snapshot(0.0, 0.0), SETTINGS, {}, RNG)
    assert [each.verdict for each in plan.verdicts if each.subject == "b0:8080"] == [SheddingReason.AWAITING_REPORT]


def test_even_distribution_is_always_on() -> None:
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
def test_filters_follow_the_load_manager_class(settings: PlannerSettings, placement: str, rules: object) -> None:
    assert rules_of(settings, placement) is rules


def a_model() -> ClusterModel:
    """Three brokers; bundle loads are not exact in binary."""
    model = ClusterModel()
    owners = [broker(f"b{i % 3}") for i in range(30)]
    model.set_namespace("tenant/ns", [bundle(i) for i in range(30)], [owned(owner) for owner in owners])
    for each in range(3):
        loads = {bundle(i): (i / 7 + 5, i / 3 + 5, 1e5, 2e5) for i in range(each, 30, 3)}
        model.apply_report(broker(f"b{each}"), report(loads, cpu=(10, 800), last_update_ms=1))
    return model


def sums(given: Snapshot, state: Mapping[str, Any]) -> list[list[list[float]]]:
    ranking = rank_brokers(given, state, SETTINGS)
    return [ranking.loaded.tolist(), ranking.given.tolist()]


@pytest.mark.parametrize("change", ["moved", "left", "reported", "came", "went"])
def test_memory_in_columns_and_as_json_has_the_same_sums(change: str) -> None:
    model = a_model()
    first = rank_brokers(model.snapshot(0.0, 0.0), {"model": {"last_update_ms": 1}}, SETTINGS).model
    owners = [broker(f"b{i % 3}") for i in range(30)]
    names = [bundle(i) for i in range(30)]
    if change == "moved":
        owners[3:6] = owners[4:7]
    elif change == "left":
        model.remove_broker(broker("b1").broker)
    elif change == "reported":
        model.apply_report(broker("b2"), report({bundle(2): (9, 9, 9, 9)}, last_update_ms=1 + MINUTE_MS))
    elif change == "came":
        names, owners = [*names, bundle(30)], [*owners, broker("b0")]
    else:
        names, owners = names[:-1], owners[:-1]
        model.apply_report(broker("b2"), report({bundle(i): (1, 1, 1, 1) for i in range(2, 29, 3)}, last_update_ms=1))
    model.set_namespace("tenant/ns", names, [owned(owner) for owner in owners])
    remembered = as_json({"one": {"model": first}})["one"]
    assert sums(model.snapshot(0.0, 0.0), {"model": first}) == sums(model.snapshot(0.0, 0.0), remembered)
    after = rank_brokers(model.snapshot(0.0, 0.0), {"model": first}, SETTINGS).model
    again = rank_brokers(model.snapshot(0.0, 0.0), remembered, SETTINGS).model
    assert after.as_json() == again.as_json()


def test_fixed_bundle_without_a_quota_keeps_the_default() -> None:
    assert model_after(reported_at(30), fixed=[bundle(0)])["quotas"] == {bundle(0): list(DEFAULT_QUOTA)}


def test_older_report_changes_only_the_update_time() -> None:
    first = model_after(reported_at(30))
    older = rank_brokers(reported_at(20), {"model": first}, SETTINGS).model.as_json()
    assert older == first | {"last_update_ms": 20 * MINUTE_MS}


def test_unreported_bundle_follows_the_default_quota() -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [bundle(i) for i in range(41)], [owned(broker("b0"))] * 40 + [Ownership()])
    loads = {bundle(i): (1000.0, 1000.0, 1e5, 1e5) for i in range(40)}
    model.apply_report(broker("b0"), report(loads, last_update_ms=15 * MINUTE_MS))
    state = {"model": {"last_update_ms": 0, "stored_at_ms": 0}}
    ranking = rank_brokers(model.snapshot(0.0, 0.0), state, SETTINGS)
    assert ranking.default.tolist() != list(DEFAULT_QUOTA)
    assert ranking.quota_of(40).tolist() == ranking.quota_of(None).tolist()


@pytest.mark.parametrize("strategy", ["leastLoadedServer", "leastMsgPerSecond", "weightedRandomSelection"])
def test_equal_candidates_are_ordered_by_name(strategy: str) -> None:
    wide = (0, 1e9)
    unit = report(cpu=(0, 400), memory=wide, bandwidth_in=wide, bandwidth_out=wide)
    given = snapshot({f"b{i}": unit for i in range(3)})
    place = PLACEMENT_STRATEGIES[strategy](SETTINGS).place
    chosen = [
        place(np.array(rows), None, Projection(given), {}, np.random.default_rng(3)).broker
        for rows in ([0, 1, 2], [2, 1, 0])
    ]
    assert chosen[0] == chosen[1]


def test_nan_hides_neither_overload_nor_top_bundle() -> None:
    nan = float("nan")
    loads = {bundle(0): (nan, 0.0, 0.0, 0.0), bundle(1): (900.0, 0.0, 0.0, 0.0)}
    hot = report(loads, cpu=(90, 100), memory=(nan, 100), direct_memory=(nan, 100))
    plan, _ = plan_shedding(snapshot({"b0": hot, "b1": report()}), SETTINGS, {}, RNG)
    assert [step.bundle for step in plan.steps] == [bundle(1)]


def test_chained_updates_equal_one_update() -> None:
    model, rng = a_model(), np.random.default_rng(5)
    chained: Mapping[str, Any] = {"model": {"last_update_ms": 1}}
    start = as_json({"one": {"model": rank_brokers(model.snapshot(0.0, 0.0), chained, SETTINGS).model}})["one"]
    for _ in range(20):
        owners = [broker(f"b{i}") for i in rng.integers(0, 3, 30).tolist()]
        model.set_namespace("tenant/ns", [bundle(i) for i in range(30)], [owned(owner) for owner in owners])
        given = model.snapshot(0.0, 0.0)
        assert sums(given, chained) == sums(given, start)
        chained = {"model": rank_brokers(given, chained, SETTINGS).model}
