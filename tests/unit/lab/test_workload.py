from __future__ import annotations

import math

import numpy as np
import pytest
from support.worlds import bundles_of, steady

from loadmanager.core.domain.names import HASH_SPACE_END, BundleRange
from loadmanager.lab.simulate.workload import (
    BurstsShape,
    DiurnalShape,
    DriftShape,
    FollowedSeries,
    NoiseShape,
    Purpose,
    RampShape,
    generator,
    heavy_tailed,
    random_topics,
    zipf,
)

_LOAD = (1.0, 2.0, 300.0, 400.0)


def test_steady_workload_is_weights_times_load() -> None:
    workload = steady([1.0, 2.0], _LOAD, topics=3, sessions=4)
    assert workload.load_at(0.0).tolist() == [[1.0, 2.0, 300.0, 400.0], [2.0, 4.0, 600.0, 800.0]]
    assert workload.load_at(1e6).tolist() == workload.load_at(0.0).tolist()
    assert (workload.topics_at(0.0).tolist(), workload.sessions_at(0.0).tolist()) == ([3, 3], [4, 4])


def test_shapes_multiply() -> None:
    double, triple = (RampShape(bundles=(f"#{row}",), factor=row + 2, until_s=0.0) for row in range(2))
    load = steady([1.0, 1.0], _LOAD, shapes=[double, triple, DiurnalShape(amplitude=0.0)]).load_at(5.0)
    assert load[:, 0].tolist() == [2.0, 3.0]


def test_noise_has_its_spread_and_bounds_and_is_repeatable() -> None:
    noise, bundles = NoiseShape(spread=0.2), bundles_of([0] * 50_000, seed=3)
    factors = noise.factors_at(120.0, bundles)
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.2, abs=0.01)
    assert 0.4 <= factors.min() <= factors.max() <= 1.6
    assert factors.tolist() == noise.factors_at(179.9, bundles).tolist()
    assert factors.tolist() != noise.factors_at(180.0, bundles).tolist()


def test_noise_never_makes_a_load_negative() -> None:
    assert NoiseShape(spread=1.0).factors_at(0.0, bundles_of([0] * 10_000, seed=1)).min() == 0.0


def test_diurnal_shape_is_a_sine_with_phases() -> None:
    shape, bundles = DiurnalShape(amplitude=0.5, phases="namespaces"), bundles_of([0, 1, 0], seed=3)
    drawn = generator(3, Purpose.FLEET).random(2)
    for hour in range(0, 48, 5):
        expected = [1 + 0.5 * math.sin(2 * math.pi * (hour / 24 + phase)) for phase in drawn[[0, 1, 0]]]
        assert shape.factors_at(hour * 3600.0, bundles) == pytest.approx(expected, abs=0.001)
    assert shape.factors_at(86_400.0, bundles) == pytest.approx(shape.factors_at(0.0, bundles))


def test_ramp_rises_linearly_and_stays() -> None:
    ramp, bundles = RampShape(bundles=("#1",), factor=5.0, from_s=100.0, until_s=200.0), bundles_of([0, 0, 0])
    assert [ramp.factors_at(t_s, bundles)[1] for t_s in (0.0, 100.0, 150.0, 200.0, 1e6)] == [1.0, 1.0, 3.0, 5.0, 5.0]
    assert ramp.factors_at(300.0, bundles)[[0, 2]].tolist() == [1.0, 1.0]


def test_drift_stays_within_bounds_and_is_linear_and_independent() -> None:
    drift, bundles = DriftShape(factor=4.0, period_s=100.0), bundles_of([0] * 10_000, seed=3)
    first, middle, second = (drift.factors_at(t_s, bundles) for t_s in (100.0, 150.0, 200.0))
    assert 0.25 <= first.min() < 0.3
    assert 3.7 < first.max() <= 4.0
    assert np.median(first) == pytest.approx(1.0, abs=0.05)
    assert middle == pytest.approx((first + second) / 2)
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 0.05
    assert first.tolist() == drift.factors_at(100.0, bundles).tolist()


def test_drift_of_factor_one_is_constant() -> None:
    assert DriftShape(factor=1.0, period_s=100.0).factors_at(150.0, bundles_of([0] * 3)).tolist() == [1.0, 1.0, 1.0]


def test_group_bursts_together_once_per_period() -> None:
    bursts, bundles = BurstsShape(factor=3.0, lasts_s=60.0, every_s=600.0), bundles_of([0, 0, 1], seed=3)
    factors = np.array([bursts.factors_at(10.0 * step, bundles) for step in range(240)])
    assert set(factors.ravel().tolist()) == {1.0, 3.0}
    assert (factors[:, 0] == factors[:, 1]).all()
    assert (factors[:, 0] != factors[:, 2]).any()
    in_each_time = (factors.reshape(4, 60, 3) == 3.0).sum(axis=1)
    assert (in_each_time == 6).all(), "60 s of every 600"
    assert len({tuple(np.flatnonzero(of[:, 0] == 3.0)) for of in factors.reshape(4, 60, 3)}) > 1


def test_bursts_as_long_as_the_period_are_always_on() -> None:
    bursts = BurstsShape(factor=2.0, lasts_s=60.0, every_s=60.0)
    assert [bursts.factors_at(t_s, bundles_of([0])).tolist() for t_s in (0.0, 59.9, 60.0)] == [[2.0]] * 3


def test_series_are_interpolated_from_an_offset_and_repeated() -> None:
    series = FollowedSeries(
        (np.array([0.0, 10.0, 20.0]), np.array([7.0])), 60.0, np.array([0, 0, 1]), np.array([0.0, 60.0, 9.0])
    )
    bundles = bundles_of([0, 0, 0])
    assert series.factors_at(0.0, bundles).tolist() == [0.0, 10.0, 7.0]
    assert series.factors_at(30.0, bundles).tolist() == [5.0, 15.0, 7.0]
    assert series.factors_at(150.0, bundles).tolist() == [10.0, 5.0, 7.0]
    assert series.factors_at(180.0, bundles).tolist() == [0.0, 10.0, 7.0]


def test_heavy_tailed_weights_have_mean_1_and_a_heavy_top_tenth() -> None:
    weights = heavy_tailed(10_000, seed=4)
    assert weights.mean() == pytest.approx(1.0)
    assert np.sort(weights)[-1000:].sum() > 0.3 * weights.sum()
    assert weights.max() / weights.min() <= 1000.0
    assert weights.tolist() == heavy_tailed(10_000, seed=4).tolist()
    assert weights.tolist() != heavy_tailed(10_000, seed=5).tolist()


def test_zipf_weights_follow_the_law_and_their_order_is_drawn() -> None:
    weights = zipf(100, seed=4)
    ranked = np.sort(weights)[::-1]
    assert weights.mean() == pytest.approx(1.0)
    assert (ranked[0] / ranked[[1, 3, 99]]).tolist() == pytest.approx([2.0, 4.0, 100.0])
    assert np.sort(zipf(100, seed=4, exponent=2.0))[-2:] @ [-4.0, 1.0] == pytest.approx(0.0)
    assert weights.tolist() == zipf(100, seed=4).tolist()
    assert len({int(np.argmax(zipf(100, seed, number=n))) for seed, n in ((4, 0), (4, 1), (5, 0))}) == 3


@pytest.mark.parametrize("own", [BundleRange(0, 16), BundleRange(0xFFFFFFF0, HASH_SPACE_END)])
def test_random_topics_lie_in_the_range_of_their_bundle(own: BundleRange) -> None:
    topics = random_topics(own, 200, 1, 0)
    assert all(topic in own for topic in topics.hashes.tolist())
    assert topics.share.sum() == pytest.approx(1.0)
    assert set(topics.hashes.tolist()) >= {own.lower, 15 if own.lower == 0 else HASH_SPACE_END}


def test_topic_with_all_the_weight_has_all_the_share() -> None:
    topics = random_topics(BundleRange(0, 1000), 5, 1, 0, lambda number: float(number == 2))
    assert topics.share.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_known_topics_replace_the_topic_count() -> None:
    contents = {1: random_topics(BundleRange(0, 1000), 5, 1, 0)}
    workload = steady([1.0, 1.0], _LOAD, topics=10, contents=contents)
    assert workload.topics_at(0.0).tolist() == [10, 5]
    assert workload.find_topics(0) is None
    assert workload.find_topics(1) is contents[1]
