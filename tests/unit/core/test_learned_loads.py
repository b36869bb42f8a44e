from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.builders import Load, averages, broker, bundle, owned, report, throughput

from loadmanager.core.domain.ownership import FREE
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.learned_loads import NOTHING_LEARNED, PROFILE_HOURS, LearnedLoads
from loadmanager.core.model.load import DEFAULT_LOAD, BrokerReport, FloatArray
from loadmanager.core.model.snapshot import build_snapshot, bundle_load
from loadmanager.core.strategies.level.level_load import LevelLoads

A = broker("a")
X, Y, OTHER = bundle(1), bundle(2), bundle(1, "tenant/other")
NS = "tenant/ns"
LOAD = np.array([1.0, 2.0, 3.0, 4.0])
LEARNED = LearnedLoads({NS: LOAD}, "run-1", 1)


def long_of(model: ClusterModel) -> dict[str, list[float]]:
    bundles = model.snapshot(0.0, 0.0).bundles
    assert bundles.short.tolist() == bundles.long.tolist()
    return dict(zip(bundles.names, bundles.long.tolist(), strict=True))


def test_new_bundle_has_the_learned_load_of_its_namespace() -> None:
    model = ClusterModel()
    model.set_learned(LEARNED)
    model.set_namespace(NS, [X], [FREE])
    model.set_namespace("tenant/other", [OTHER], [FREE])
    assert long_of(model) == {X: LOAD.tolist(), OTHER: DEFAULT_LOAD.tolist()}


def test_later_learned_loads_apply_to_bundles_without_samples() -> None:
    model = ClusterModel()
    model.set_namespace(NS, [X, Y], [owned(A), FREE])
    model.apply_report(A, report({X: (9, 9, 9, 9)}))
    revision = model.revision
    model.set_learned(LEARNED)
    assert model.revision > revision
    assert long_of(model) == {X: [9, 9, 9, 9], Y: LOAD.tolist()}
    model.set_learned(NOTHING_LEARNED)
    assert long_of(model) == {X: [9, 9, 9, 9], Y: DEFAULT_LOAD.tolist()}


def test_first_sample_replaces_the_learned_load() -> None:
    model = ClusterModel()
    model.set_learned(LEARNED)
    model.apply_report(A, report({X: (9, 8, 7, 6)}))
    assert long_of(model) == {X: [9, 8, 7, 6]}


def test_restored_model_has_the_same_learned_loads() -> None:
    model = ClusterModel()
    model.set_learned(LEARNED)
    model.set_namespace(NS, [X, Y], [FREE, FREE])
    model.seed_bundle(Y, averages((5, 5, 5, 5)))
    again = ClusterModel()
    again.set_learned(LEARNED)
    again.restore(model.checkpoint())
    assert long_of(again) == long_of(model) == {X: LOAD.tolist(), Y: [5, 5, 5, 5]}


def test_unknown_bundle_has_the_learned_load_of_its_namespace() -> None:
    model = ClusterModel()
    model.set_learned(LEARNED)
    taken = model.snapshot(0.0, 0.0)
    assert taken.learned is LEARNED
    assert bundle_load(taken, None, NS) is LOAD
    assert bundle_load(taken, None, "tenant/other") is DEFAULT_LOAD


def test_preallocated_bundle_has_the_learned_load() -> None:
    taken = build_snapshot(0.0, {A: report()}, {}, preallocated={X: A.broker}, learned=LEARNED)
    assert taken.bundles.long.tolist() == [LOAD.tolist()]
    assert taken.brokers.preallocated.tolist() == [LOAD.tolist()]


MONDAY_S = 1_789_948_800.0
"""2026-09-21 00:00 UTC."""
HOUR_S = 3600.0


def rising(until: int = 24) -> LearnedLoads:
    """A profile that rises by one each hour of Monday and is 1 afterwards."""
    profile = np.ones(PROFILE_HOURS)
    profile[:until] = np.arange(1, until + 1)
    return LearnedLoads({}, profiles={NS: profile})


def test_change_is_the_mean_of_the_next_hours_over_the_current_load() -> None:
    at_s = MONDAY_S + 3.5 * HOUR_S  # the middle of the fourth hour
    assert rising().change(NS, at_s, 2) == pytest.approx((4 + 6) / 2 / 4)
    assert rising().change(NS, at_s + HOUR_S / 2, 1) == pytest.approx((4.5 + 5.5) / 2 / 4.5)
    assert rising().change(NS, at_s + 7 * 24 * HOUR_S, 2) == rising().change(NS, at_s, 2)


def test_profile_wraps_at_the_end_of_the_week() -> None:
    sunday_s = MONDAY_S - HOUR_S / 2
    monday = LearnedLoads({}, profiles={NS: np.concatenate(([3.0], np.ones(PROFILE_HOURS - 1)))})
    assert monday.change(NS, sunday_s, 1) == pytest.approx((1 + 1.5 + 2 + 2.5 + 3) / 5)
    assert monday.change(NS, MONDAY_S + HOUR_S / 2, 1) == pytest.approx((3 + 2.5 + 2 + 1.5 + 1) / 5 / 3)


def test_change_is_1_without_a_profile() -> None:
    assert rising().change("tenant/other", MONDAY_S, 2) == 1
    assert rising().change(NS, MONDAY_S, 0) == 1
    assert LearnedLoads({}, profiles={NS: np.zeros(PROFILE_HOURS)}).change(NS, MONDAY_S, 2) == 1


@given(
    arrays(np.float64, PROFILE_HOURS, elements=st.floats(0, 1e9)),
    st.floats(0, 2e9),
    st.floats(0, 168),
)
def test_change_stays_between_a_quarter_and_four(profile: FloatArray, at_s: float, hours: float) -> None:
    assert 0.25 <= LearnedLoads({}, profiles={NS: profile}).change(NS, at_s, hours) <= 4


def wide(loads: dict[str, Load]) -> BrokerReport:
    return report(loads, bandwidth_in=(80_000.0, 1e6), bandwidth_out=(80_000.0, 1e6))


def test_level_uses_the_expected_change() -> None:
    at_s = MONDAY_S + 3.5 * HOUR_S
    grows, stays = bundle(1), bundle(1, "tenant/other")
    reports = {A: wide({grows: throughput(10.0)}), broker("b"): wide({stays: throughput(10.0)})}
    taken = build_snapshot(at_s, reports, {}, learned=rising())
    usage = LevelLoads.of(taken, PlannerSettings()).usage.max(axis=1)
    assert usage[0] / usage[1] == pytest.approx(1.25)
    usage = LevelLoads.of(taken, PlannerSettings(), hours=0).usage.max(axis=1)
    assert usage[0] == usage[1]
