from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import MIB, averages, broker, bundle, report, snapshot, throughput

from loadmanager.core.domain.ownership import FREE
from loadmanager.core.model.bundle_averages import PartLoad
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import METRICS, BundleAverages, FloatArray, TimeMean
from loadmanager.core.model.time_means import BELIEVED_S, STOOD_S, TAU_S, TimeMeans

A = broker("a")
X, Y = bundle(1), bundle(2)
T0 = 1_000_000.0
Reports = Sequence[tuple[float, float]]
"""Seconds after the beginning, and MiB/s in and out."""


def reported(reports: Reports) -> ClusterModel:
    """A model to which a broker reported its one bundle."""
    model = ClusterModel()
    for at_s, load in reports:
        model.apply_report(A, report({X: throughput(load)}, last_update_ms=round(1000 * (T0 + at_s))))
    return model


def present(model: ClusterModel, at_s: float) -> FloatArray:
    """Mean loads of its bundles then, in MiB/s in."""
    return np.asarray(model.snapshot(T0 + at_s, 0.0).bundles.present[:, 2] / MIB)


def sigma(reports: Reports) -> float:
    return float(reported(reports).snapshot(T0, 0.0).bundles.sigma[0])


def noisy(spread: float, count: int, seed: int = 1) -> list[tuple[float, float]]:
    """A report a minute whose load deviates by so much from 100."""
    loads = 100 * np.random.default_rng(seed).lognormal(0, spread, count)
    return [(60.0 * number, load) for number, load in enumerate(loads.tolist())]


PART = 1 - math.exp(-600 / TAU_S)
CALM = [(60.0 * minute, 100.0) for minute in range(20)]
JUMP = [(0.0, 100.0), (60.0, 300.0)]
RISE = [(0.0, 100.0), (60.0, 120.0)]


@pytest.mark.parametrize(
    ("reports", "at_s", "load"),
    [
        pytest.param([(0, 7.0)], 0, 7.0, id="first report"),
        pytest.param(RISE, 60, 100.0, id="new load has not stood"),
        pytest.param(RISE, 660, 100 + 20 * PART, id="new load stands for a while"),
        pytest.param([*RISE, (660, 110.0)], 660, 100 + 20 * PART, id="until the next report"),
        pytest.param(JUMP, 60 + BELIEVED_S, 300.0, id="jump that stands"),
        pytest.param([*JUMP, (200, 290.0)], 200, 300.0, id="jump that stood until the next report"),
        pytest.param([(0, 300.0), (60, 100.0)], 60 + STOOD_S, 100.0, id="jump down that stands"),
        pytest.param([*JUMP, (120, 320.0)], 120, 320.0, id="jump that is reported twice"),
        pytest.param([*JUMP, (60 + STOOD_S, 100.0)], 60 + STOOD_S, 300.0, id="denied after it stood"),
        pytest.param([*CALM, (1200, 300.0), (1400, 900.0)], 1400, 300.0, id="second jump has not stood"),
        pytest.param([*CALM, (1200, 300.0), (1400, 900.0)], 1400 + STOOD_S, 900.0, id="second jump stands"),
        pytest.param([(600, 100.0), (0, 110.0)], -500, 100.0, id="clock went backwards"),
        pytest.param([*CALM, (1200, 120.0), (1100, 110.0)], 1100, 100.0, id="clock went backwards after a new load"),
        pytest.param([(600, 100.0), (0, 110.0)], 1e9, 110.0, id="long after the clock went backwards"),
    ],
)
def test_present_load_of_a_bundle(reports: Reports, at_s: float, load: float) -> None:
    assert present(reported(reports), at_s) == pytest.approx([load])


@pytest.mark.parametrize(
    ("reports", "at_s"),
    [
        pytest.param(JUMP, 60 + BELIEVED_S - 1, id="not yet believed"),
        pytest.param([*JUMP, (60 + BELIEVED_S, 100.0)], 60 + BELIEVED_S, id="denied by the next report"),
        pytest.param([*JUMP, (120, 100.0)], 120, id="spike back to the same load"),
        pytest.param([*JUMP, (120, 20.0)], 120, id="spike back to a lower load"),
    ],
)
def test_short_jump_counts_little(reports: Reports, at_s: float) -> None:
    assert present(reported(reports), at_s)[0] < 120


def test_repeated_reports_of_one_time_weigh_as_one() -> None:
    once, often = [(0.0, 100.0), (300.0, 120.0)], [(0.0, 100.0), *[(300.0, 120.0)] * 10]
    assert present(reported(often), 500) == pytest.approx(present(reported(once), 500))


def test_usual_deviation_is_learned_despite_a_jump() -> None:
    reports = noisy(0.2, 300)
    assert sigma(reports) == pytest.approx(0.2, abs=0.05)
    steady = [(60.0 * minute, 100.0 + minute % 2) for minute in range(100)]
    assert sigma([*steady, (6000.0, 1000.0), (6060.0, 1000.0)]) < 0.1
    assert sigma([(0.0, 0.0), (60.0, 0.0)]) == sigma([(0.0, 7.0)]) == 0.0


def test_frequent_bursts_do_not_restart_the_mean() -> None:
    bursts = [(60.0 * minute, 1000.0 if minute % 7 == 0 else 100.0) for minute in range(1, 300)]
    model = reported([*bursts, (18_000.0, 1000.0)])
    assert present(model, 18_000 + STOOD_S)[0] < 400


def test_mean_of_noisy_reports_is_near_the_load() -> None:
    found = [present(reported(noisy(0.2, 120, seed)), 120 * 60)[0] for seed in range(20)]
    assert np.mean(found) == pytest.approx(100, rel=0.05)
    assert np.std(found) < 10


def test_invalid_amounts_and_extreme_times_stay_finite() -> None:
    strange = np.array([[np.nan, np.inf, -5.0, 1e300]] * 2)
    ones = np.ones((2, METRICS), dtype=np.float32)
    steady = TimeMeans(ones, ones, np.zeros(2, dtype=np.uint32), np.zeros(2, dtype=np.float32))
    means = steady.reported(strange, -1e300, np.array([0, 5], dtype=np.int16))
    later = means.reported(strange, 1e300, np.array([1, 6], dtype=np.int16)).present(2e300)
    assert later[0] == pytest.approx([0.0, 1e18, 0.0, 1e18])
    assert np.isfinite(later).all()


loads = st.floats(0, 2.0**40, width=32)
histories = st.lists(st.tuples(st.integers(0, 2000), loads), min_size=1, max_size=12)


def times_of(history: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return reports with cumulated times and loads in MiB/s."""
    at_s = np.cumsum([pause for pause, _ in history]).tolist()
    return [(at, load / MIB) for at, (_, load) in zip(at_s, history, strict=True)]


@given(histories, st.integers(0, 5000))
def test_mean_is_bounded_and_converges(history: list[tuple[int, float]], after_s: int) -> None:
    reports = times_of(history)
    model, end_s = reported(reports), reports[-1][0]
    reached = present(model, end_s + after_s)[0] * MIB
    values = np.array([load for _, load in history], dtype=np.float32)
    least, most = float(values.min()), float(values.max())
    assert least - 1e-6 * most <= reached <= most + 1e-6 * most
    last = float(values[-1])
    away = [abs(present(model, end_s + after_s + more)[0] * MIB - last) for more in (0, 100, 1000, 50 * TAU_S)]
    assert all(later <= earlier + 1e-6 * most for earlier, later in pairwise(away))
    assert away[-1] <= 1e-6 * most


@given(histories, st.lists(st.integers(0, 30_000), max_size=3))
def test_means_do_not_depend_on_batches(history: list[tuple[int, float]], looks: list[int]) -> None:
    together, apart = ClusterModel(), ClusterModel()
    other = broker("b")
    for at_s, load in times_of(history):
        at_ms = round(1000 * (T0 + at_s))
        mine, others = {X: throughput(load)}, {Y: throughput(2 * load)}
        together.apply_report(A, report({**mine, **others}, last_update_ms=at_ms))
        apart.apply_report(other, report(others, last_update_ms=at_ms))
        for look_s in looks:
            present(apart, look_s)
        apart.apply_report(A, report(mine, last_update_ms=at_ms))
    for look_s in (0, *looks, 100_000):
        assert present(together, look_s).tolist() == present(apart, look_s).tolist()
    assert together.snapshot(T0, 0.0).bundles.sigma.tolist() == apart.snapshot(T0, 0.0).bundles.sigma.tolist()


# Stored means

SHORT = averages(throughput(100.0))
KNOWN = BundleAverages(SHORT.short, SHORT.long, 5, 5, 0, TimeMean(np.array(throughput(80.0)), 0.3))
SAID = report({X: throughput(100.0), Y: throughput(100.0)}, last_update_ms=round(1000 * T0))
AFTER_S = 600.0
GONE_ON = 100 - 20 * math.exp(-AFTER_S / TAU_S)


def test_snapshot_continues_a_stored_mean() -> None:
    given = snapshot({"a": SAID}, {X: KNOWN, bundle(3): KNOWN}, taken_at_s=T0 + AFTER_S)
    assert given.bundles.present[:, 2] / MIB == pytest.approx([GONE_ON, 100.0, 80.0])
    assert given.bundles.sigma == pytest.approx([0.3, 0.0, 0.3])


@pytest.mark.parametrize("reported_before", [True, False])
def test_new_leader_continues_a_stored_mean_in_any_order(*, reported_before: bool) -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [X, Y], [FREE, FREE])
    for step in (reported_before, not reported_before):
        if step:
            model.apply_report(A, SAID)
        else:
            model.seed_bundle(X, KNOWN)
    assert present(model, AFTER_S) == pytest.approx([GONE_ON, 100.0])


def test_missing_time_mean_starts_from_the_short_average() -> None:
    model = ClusterModel()
    model.set_namespace("tenant/ns", [X], [FREE])
    model.seed_bundle(X, averages(throughput(80.0), throughput(50.0)))
    assert present(model, 0) == pytest.approx([80.0])
    model.apply_report(A, report({X: throughput(100.0)}, last_update_ms=round(1000 * T0)))
    assert present(model, AFTER_S) == pytest.approx([GONE_ON])


def test_stored_mean_is_restored() -> None:
    model = reported([(0, 100.0), (600, 120.0), (900, 110.0)])
    other = ClusterModel()
    other.set_namespace("tenant/ns", [X], [FREE])
    other.seed_bundle(X, model.bundle_averages("tenant/ns")[X])
    assert present(other, 0) == pytest.approx(present(model, 900))
    assert other.snapshot(T0, 0.0).bundles.sigma == pytest.approx(model.snapshot(T0, 0.0).bundles.sigma)


# Splits and merges

HALVES = ["t/ns/0x00000000_0x80000000", "t/ns/0x80000000_0xffffffff"]
WHOLE = "t/ns/0x00000000_0xffffffff"


def reshaped(before: Mapping[str, Reports], after: list[str]) -> ClusterModel:
    """Return a model with reports of `before`, reshaped into `after`."""
    model = ClusterModel()
    model.set_namespace("t/ns", list(before), [FREE] * len(before))
    for name, reports in before.items():
        for at_s, load in reports:
            model.apply_report(broker(name[5:15]), report({name: throughput(load)}, last_update_ms=round(1000 * at_s)))
    model.set_namespace("t/ns", after, [FREE] * len(after))
    return model


def by_time(model: ClusterModel, now_s: float) -> tuple[FloatArray, FloatArray]:
    taken = model.snapshot(now_s, 0.0).bundles
    return taken.present[:, 2] / MIB, taken.sigma.astype(np.float64)


def test_split_divides_the_mean_by_share() -> None:
    reports = [(0.0, 100.0), (300.0, 120.0)]
    whole, parts = reshaped({WHOLE: reports}, [WHOLE]), reshaped({WHOLE: reports}, HALVES)
    for now_s in (300, 400, 2000):
        (present_whole,), (sigma_whole,) = by_time(whole, now_s)
        assert by_time(parts, now_s)[0] == pytest.approx([present_whole / 2] * 2, rel=1e-4)
        assert by_time(parts, now_s)[1] == pytest.approx([sigma_whole] * 2)
    parts.redistribute(dict(zip(HALVES, [PartLoad(np.array(throughput(load)), 1) for load in (3.0, 1.0)], strict=True)))
    assert by_time(parts, 2000)[0] == pytest.approx(by_time(whole, 2000)[0] * [0.75, 0.25], rel=1e-4)


def test_merge_adds_the_means_of_its_parts() -> None:
    reports = {HALVES[0]: [(0.0, 100.0), (300.0, 120.0)], HALVES[1]: [(0.0, 300.0), (600.0, 270.0)]}
    whole, parts = reshaped(reports, [WHOLE]), reshaped(reports, HALVES)
    for now_s in (600, 1000):
        assert by_time(whole, now_s)[0] == pytest.approx([by_time(parts, now_s)[0].sum()])
    (load, off), (found,) = by_time(parts, 600), by_time(whole, 600)[1]
    assert found == pytest.approx((load * off).sum() / load.sum(), rel=1e-4)


def test_missing_or_idle_history_is_not_inherited() -> None:
    model = reshaped({HALVES[0]: [(0.0, 100.0)], HALVES[1]: []}, [WHOLE])
    assert by_time(model, 10)[0] == pytest.approx([100.0])
    idle = reshaped({WHOLE: [(0.0, 0.0)]}, HALVES)
    assert [each.tolist() for each in by_time(idle, 10)] == [[0.0, 0.0], [0.0, 0.0]]
