from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders import averages, broker, bundle, owned, report, snapshot
from support.model_memory import hot_bytes

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.policies import NO_POLICIES, IsolationPolicy, Policies
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.extensible_load import (
    BrokerLoad,
    Published,
    PublishedLoad,
    find_busiest,
)
from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot, build_snapshot, get_broker_load, get_top_bundles

A, B = broker("a"), broker("b")
SETTINGS = PlannerSettings()


def load_of(model: ClusterModel, at_s: float) -> BrokerLoad:
    return get_broker_load(model.snapshot(at_s, 0.0), SETTINGS)


def top_of(given: Snapshot, row: int = 0) -> list[tuple[str, float]]:
    return [(given.bundles.names[i], value) for i, value in get_top_bundles(given, SETTINGS).of_broker(row)]


def bytes_in(value: float) -> tuple[float, float, float, float]:
    return (0, 0, value, 0)


def test_first_report_starts_the_average() -> None:
    model = ClusterModel()
    model.apply_report(A, report(cpu=50, load=(0, 0, 100, 20), last_update_ms=1_000))
    assert load_of(model, 1.0).weighted_max_ema.tolist() == [0.5]
    model.apply_report(A, report(cpu=100, load=(0, 0, 20, 0), last_update_ms=2_000))
    found = load_of(model, 2.0)
    assert found.weighted_max_ema.tolist() == [0.5 * 0.9 + (1 - 0.9) * 1.0]
    assert found.msg_throughput_ema.tolist() == [120 * 0.9 + (1 - 0.9) * 20]
    assert (found.msg_throughput_in.tolist(), found.msg_throughput_out.tolist()) == ([20], [0])
    assert found.updated_at_ms.tolist() == [2_000]
    assert found.known.all()


def test_average_advances_between_reports_with_the_last_load() -> None:
    model = ClusterModel()
    model.apply_report(A, report(cpu=0, last_update_ms=1_000))
    model.apply_report(A, report(cpu=100, last_update_ms=2_000))
    at_once = 1 - 0.9
    assert load_of(model, 2.0).weighted_max_ema[0] == pytest.approx(at_once)
    assert load_of(model, 6.999).weighted_max_ema[0] == pytest.approx(at_once)
    assert load_of(model, 12.0).weighted_max_ema[0] == pytest.approx(1 - 0.9**3)
    assert load_of(model, 1.0).weighted_max_ema[0] == pytest.approx(at_once)
    model.apply_report(A, report(cpu=50, last_update_ms=17_000))
    assert load_of(model, 17.0).weighted_max_ema[0] == pytest.approx((1 - 0.9**3) * 0.9 + 0.1 * 0.5)


def test_re_registration_restarts_the_average() -> None:
    model = ClusterModel()
    model.apply_report(A, report(cpu=100, last_update_ms=1_000))
    model.apply_report(broker("a", incarnation=2), report(cpu=20, last_update_ms=2_000))
    assert load_of(model, 2.0).weighted_max_ema[0] == pytest.approx(0.2)


def test_without_published_loads_averages_equal_current_reports() -> None:
    found = get_broker_load(snapshot({"a": report(cpu=50, memory=90, load=(0, 0, 3, 4))}, taken_at_s=7.5), SETTINGS)
    assert (found.weighted_max_ema.tolist(), found.msg_throughput_ema.tolist()) == ([0.5], [7])
    assert found.updated_at_ms.tolist() == [7_500]


def test_memory_weight_counts_in_averaged_loads() -> None:
    settings = PlannerSettings(memory_resource_weight=0.5)
    assert get_broker_load(snapshot({"a": report(cpu=10, memory=90)}), settings).weighted_max_ema[0] == pytest.approx(
        0.45
    )


def test_published_loads_replace_reports() -> None:
    published = Published(
        {A.broker: PublishedLoad(0.25, 8.0, 3.0, 4.0, 99), BrokerId("gone:1"): PublishedLoad(1, 1, 1, 1, 1)}
    )
    given = build_snapshot(0.0, {A: report(cpu=90), B: report(cpu=80)}, {}, published=published)
    found = get_broker_load(given, SETTINGS)
    assert (found.known.tolist(), found.weighted_max_ema.tolist()) == ([True, False], [0.25, 1.0])
    assert (found.msg_throughput_ema.tolist(), found.updated_at_ms.tolist()) == ([8.0, 0.0], [99, 0])


def test_busiest_bundles_are_listed_with_their_latest_throughput() -> None:
    model = ClusterModel(PlannerSettings(max_number_of_bundles_in_bundle_load_report=2))
    first = {bundle(i): bytes_in(i * 1e6) for i in (3, 1, 2, 0)}
    model.apply_report(A, report(first))
    assert top_of(model.snapshot(0, 0)) == [(bundle(2), 2e6), (bundle(3), 3e6)]
    model.apply_report(A, report({bundle(1): bytes_in(9e6)}))
    assert top_of(model.snapshot(0, 0)) == [(bundle(1), 9e6)]


def test_order_of_equal_top_bundles_is_that_of_the_quick_select() -> None:
    same = {bundle(i): bytes_in(1e6) for i in range(4)}
    expected = [(bundle(1), 1e6), (bundle(0), 1e6)]
    for names in (list(same), list(reversed(same))):
        given = report({name: same[name] for name in names})
        found = find_busiest(given, PlannerSettings(max_number_of_bundles_in_bundle_load_report=2), NO_POLICIES)
        assert [(given.bundle_names[i], 1e6) for i in found.tolist()] == expected


def test_no_bundle_is_listed_with_a_maximum_of_0_or_less() -> None:
    for most in (0, -1):
        settings = PlannerSettings(max_number_of_bundles_in_bundle_load_report=most)
        same = dict.fromkeys([bundle(1), bundle(2)], bytes_in(1))
        assert not len(find_busiest(report(same), settings, NO_POLICIES))


def test_cached_bytes_decide_last() -> None:
    given = report({bundle(1): bytes_in(1e6), bundle(2): bytes_in(1e6)})
    given = replace(given, bundle_cache_bytes=np.array([200_000, 0]))
    found = find_busiest(given, SETTINGS, NO_POLICIES)
    assert [given.bundle_names[i] for i in found.tolist()] == [bundle(2), bundle(1)]


def test_bundles_with_policies_are_listed_only_when_enabled() -> None:
    policies = Policies((IsolationPolicy("p", ("tenant/isolated",), ("a",)),), {"tenant/apart": "group"})
    names = {bundle(1, f"tenant/{name}"): bytes_in(1e6) for name in ("isolated", "apart", "free")}
    for settings, expected in ((SETTINGS, 1), (PlannerSettings(shedding_bundles_with_policies_enabled=True), 3)):
        model = ClusterModel(settings)
        model.set_policies(policies)
        model.apply_report(A, report(names))
        assert len(top_of(model.snapshot(0, 0))) == expected
        given = build_snapshot(0.0, {A: report(names)}, {}, policies=policies)
        assert len(get_top_bundles(given, settings).of_broker(0)) == expected


def test_removed_bundle_leaves_the_list_even_if_its_row_is_reused() -> None:
    model = ClusterModel()
    model.apply_report(A, report({bundle(1): bytes_in(1e6), bundle(2): bytes_in(2e6)}))
    model.apply_report(B, report({bundle(1): bytes_in(1e6)}))
    model.apply_report(B, report())
    model.set_namespace("tenant/other", [bundle(1, "tenant/other")], [owned(B)])
    assert top_of(model.snapshot(0, 0)) == [(bundle(2), 2e6)]


def test_list_of_a_snapshot_does_not_change_with_later_reports() -> None:
    model = ClusterModel(PlannerSettings(max_number_of_bundles_in_bundle_load_report=1))
    model.apply_report(A, report({bundle(1): bytes_in(1e6), bundle(2): bytes_in(2e6)}))
    model.set_settings(SETTINGS)
    taken = model.snapshot(0, 0)
    model.apply_report(A, report({bundle(3): bytes_in(3e6)}))
    model.set_namespace("tenant/ns", [bundle(0), bundle(3)], [owned(A), owned(A)])
    assert top_of(taken) == [(bundle(2), 2e6)]


def test_bundle_known_from_a_list_belongs_to_the_listing_broker() -> None:
    load: FloatArray = np.array([1.0, 2.0, 3.0, 4.0])
    lists = {A.broker: {bundle(1): load, bundle(2): load}, B.broker: {bundle(1): load, bundle(3): load}}
    given = build_snapshot(
        0.0,
        {A: report([bundle(3)]), B: report()},
        {bundle(2): averages((9, 9, 9, 9))},
        published=Published(None, lists),
    )
    assert given.bundles.names == (bundle(1), bundle(2), bundle(3))
    assert given.bundles.broker.tolist() == [0, 0, 0]
    assert given.bundles.short[:, 0].tolist() == [1, 9, 0]
    assert [get_top_bundles(given, SETTINGS).of_broker(row) for row in (0, 1)] == [[(0, 7), (1, 7)], [(0, 7), (2, 7)]]


def test_report_of_known_bundles_takes_no_hot_memory() -> None:
    model = ClusterModel()
    names = [bundle(i) for i in range(1000)]
    model.set_namespace("tenant/ns", names, [owned(A)] * 1000)
    model.apply_report(A, report(names))
    before = hot_bytes(model)
    model.apply_report(A, report(dict.fromkeys(names, bytes_in(1.0))))
    assert hot_bytes(model) == before
