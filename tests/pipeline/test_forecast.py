from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from support.window_frames import HOUR_MS, frame_of

from loadmanager.core.model.load import FloatArray
from loadmanager.history.synthetic_fleet import read_series
from loadmanager.pipeline.datasets import METRICS, require
from loadmanager.pipeline.forecast.backtest import HORIZONS, first_ahead, forecast, judge, losses_of
from loadmanager.pipeline.forecast.intervals import covered
from loadmanager.pipeline.forecast.models import (
    SEASONAL,
    Baseline,
    ForecastHours,
    Panel,
    Season,
    quantiles_of,
    seasonal_quantiles,
)
from loadmanager.pipeline.minimum_history import hours_known
from loadmanager.pipeline.steps.forecast import BACKTEST, forecast_runs, forecasts

TRACES = Path(os.environ.get("LOADMANAGER_SHARED", Path(__file__).parents[3] / "shared")) / "traces"
NAN = float("nan")
MONDAY = 4 * 24
"""The first hour of the first Monday after 1970 began."""


def one(values: object, first_hour: int = MONDAY) -> Panel:
    return Panel(np.array([values], dtype=np.float64), first_hour)


def working_week(weeks: int, noise: float, seed: int = 1) -> FloatArray:
    """Busy from 8 to 18 on working days, and noise."""
    hours = np.arange(weeks * 168)
    busy = (hours % 24 >= 8) & (hours % 24 < 18) & (hours // 24 % 7 < 5)
    return np.where(busy, 100.0, 20.0) + noise * np.random.default_rng(seed).standard_normal(len(hours))


def test_quantiles_interpolate_and_skip_unknown_values() -> None:
    quantiles, count = quantiles_of(np.array([[5.0, 1.0, NAN, 2.0, 4.0, 3.0], [NAN] * 6]))

    assert count.tolist() == [5, 0]
    assert quantiles[:, 0].tolist() == pytest.approx([1.4, 3.0, 4.6])
    assert np.isnan(quantiles[:, 1]).all()


def test_seasonal_quantiles_shrink_to_day_kind_then_all_days_then_all_hours() -> None:
    load = np.full(168, 10.0)
    load[50] = 50.0  # Wednesday, the third hour

    q10, q50, q90 = seasonal_quantiles(one(load))[:, 0]

    # Of seven days one has 50: nine tenths are below 10 + 0.4 * 40, and they weigh 7 / (7 + 4). Of five working days
    # it is 10 + 0.6 * 40, which weighs 5 / (5 + 4); the hour's own value weighs 1 / (1 + 4).
    all_days = 7 / 11 * 26 + 4 / 11 * 10
    working_days = 5 / 9 * 34 + 4 / 9 * all_days
    weekends = 2 / 6 * 10 + 4 / 6 * all_days
    assert (q10[50], q50[50]) == (pytest.approx(0.2 * 50 + 0.8 * 10), pytest.approx(0.2 * 50 + 0.8 * 10))
    assert q90[50] == pytest.approx(0.2 * 50 + 0.8 * working_days)
    assert q90[50 - 24] == pytest.approx(0.2 * 10 + 0.8 * working_days)
    assert q90[50 + 72] == pytest.approx(0.2 * 10 + 0.8 * weekends)
    assert (q10[51], q50[51], q90[51]) == (10, 10, 10)


def test_weeks_begin_on_monday() -> None:
    load = np.full(168, 0.0)
    load[0] = 168.0

    on_thursday = seasonal_quantiles(one(load, first_hour=0))

    assert np.argmax(on_thursday[1, 0]) == 3 * 24


@given(st.lists(st.one_of(st.floats(0, 1e9), st.just(NAN)), min_size=1, max_size=400), st.integers(0, 500_000))
def test_seasonal_quantiles_are_ordered_and_within_the_seen_values(load: list[float], first_hour: int) -> None:
    quantiles = seasonal_quantiles(one(load, first_hour))

    if np.isnan(load).all():
        assert np.isnan(quantiles).all()
    else:
        assert (np.diff(quantiles, axis=0) >= -1e-6).all()
        assert quantiles.min() >= np.nanmin(load) - 1e-6
        assert quantiles.max() <= np.nanmax(load) + 1e-6


def test_baseline_repeats_the_latest_known_value_of_its_period() -> None:
    load = np.arange(72.0)
    load[71 - 23] = NAN  # an hour ahead of the last one, a day before
    panel = one(load)
    asked = ForecastHours(np.array([72, 73, 72 + 24]), np.full(3, 71), ahead=25)

    last = Baseline.of(panel, 1).forecast(72, asked)[1, 0]
    day = Baseline.of(panel, 24).forecast(72, asked)[1, 0]

    assert last.tolist() == [71, 71, 71]
    assert day.tolist() == [24, 49, 24]  # the hour that is missing is taken from a day earlier


def test_baseline_quantiles_come_from_its_own_errors() -> None:
    panel = one([10.0, 12.0, 10.0, 12.0, 10.0])

    found = Baseline.of(panel, 1).forecast(5, ForecastHours(np.array([5]), np.array([4]), ahead=1))

    assert found[:, 0, 0].tolist() == pytest.approx([8, 10, 12])  # errors are 2, -2, 2, -2


def test_losses_are_pinball_absolute_error_and_coverage() -> None:
    forecast_of = np.array([5.0, 8.0, 12.0]).reshape(3, 1, 1)

    pinball, mae, inside = losses_of(np.array([[10.0]]), forecast_of)[:, 0, 0]

    assert pinball == pytest.approx((0.1 * 5 + 0.5 * 2 + (1 - 0.9) * 2) / 3)
    assert (mae, inside) == (2, 1)


def test_deviation_from_the_season_fades() -> None:
    load = working_week(6, noise=0.0)
    rng = np.random.default_rng(3)
    level = np.zeros(len(load))
    for hour in range(1, len(load)):
        level[hour] = 0.8 * level[hour - 1] + rng.standard_normal()
    load += level
    load[-1] += 40

    season = Season.fit(one(load), len(load))
    ahead = [
        season.forecast(ForecastHours(np.array([len(load) - 1 + hours]), np.array([len(load) - 1]), hours))[1, 0, 0]
        for hours in (1, 3, 24)
    ]

    assert ahead[0] == pytest.approx(20 + 0.8 * 40, abs=6)
    assert ahead[0] > ahead[1] > ahead[2] > 20
    assert ahead[2] < 20 + 0.4 * 40


def test_season_is_chosen_for_a_noisy_weekly_series() -> None:
    judged = judge(one(working_week(8, noise=5.0))).judgements[0]

    for horizon in HORIZONS:
        assert judged[horizon].chosen == SEASONAL
        assert judged[horizon].pinball < judged[horizon].baseline_pinball
        assert judged[horizon].mae < judged[horizon].baseline_mae
    assert [each.points for each in judged.values()] == [14 * 24, 4 * 14 * 24, 3 * 14 * 24]


def test_last_window_is_chosen_for_a_random_walk() -> None:
    walk = 1_000 + np.cumsum(np.random.default_rng(5).standard_normal(8 * 168))

    judged = judge(one(walk)).judgements[0]

    assert judged[1].chosen == judged[1].baseline == "last_window"
    assert "no less" in judged[1].why


def test_exactly_repeating_week_keeps_the_baseline() -> None:
    judged = judge(one(working_week(8, noise=0.0))).judgements[0]

    assert judged[168].chosen == "same_hour_last_week"
    assert judged[168].baseline_pinball == 0


def test_back_test_ignores_later_values() -> None:
    load = working_week(6, noise=5.0)
    other = load.copy()
    other[900:] = 1e6
    asked = ForecastHours(np.arange(900, 930), np.arange(900, 930) - 30, ahead=30)

    for values in (one(load), one(other)):
        assert np.array_equal(Season.fit(values, 870).forecast(asked), Season.fit(one(load), 870).forecast(asked))
        assert np.array_equal(
            Baseline.of(values, 24).forecast(870, asked), Baseline.of(one(load), 24).forecast(870, asked)
        )


def test_unforecastable_series_says_why() -> None:
    whole = working_week(4, noise=5.0)
    short, ended, gappy = np.full_like(whole, NAN), whole.copy(), np.full_like(whole, NAN)
    short[-71:] = 1.0
    ended[-24:] = NAN
    gappy[::3] = whole[::3]
    gappy[-1] = whole[-1]

    judged = judge(Panel(np.stack([short, ended, gappy]), MONDAY)).judgements

    assert [each[24].why for each in judged] == [
        "short: needs 3 days of hourly windows, has 3.0",
        "ended: nothing for the last 24 hours",
        "gappy: needs 50% of the hours since its first, has 33%",
    ]
    assert all(each[24].chosen is None and np.isnan(each[24].pinball) for each in judged)


def test_horizon_beyond_the_back_test_has_no_forecast() -> None:
    panel = one(working_week(1, noise=5.0))

    tested = judge(panel)
    (judged,), (made,) = tested.judgements, forecast(panel, tested)

    assert judged[168].why == "short: needs 11.7 days of hourly windows for 168 h ahead, has 7.0"
    assert sorted(made) == [1, 24]


def test_unknown_hours_leave_a_finite_ordered_forecast() -> None:
    load = working_week(8, noise=5.0)
    load[np.random.default_rng(2).choice(len(load), len(load) // 4, replace=False)] = NAN
    load[-1] = 20.0
    panel = one(load)

    tested = judge(panel)
    (judged,), (made,) = tested.judgements, forecast(panel, tested)

    assert judged[168].chosen == SEASONAL
    assert {horizon: each.shape for horizon, each in made.items()} == {1: (3, 1), 24: (3, 23), 168: (3, 144)}
    for each in made.values():
        assert np.isfinite(each).all()
        assert (np.diff(each, axis=0) >= 0).all()


def test_horizons_follow_each_other_without_a_gap() -> None:
    assert [first_ahead(horizon) for horizon in HORIZONS] == [1, 2, 25]


def shifting_levels(series: int, hours: int) -> FloatArray:
    """Days with noise around a level that is drawn anew after a week, on the mean."""
    rng = np.random.default_rng(1)
    load = np.empty((series, hours))
    for row in load:
        starts = np.append(0, np.flatnonzero(rng.random(hours) < 1 / 168))
        row[:] = np.repeat(rng.uniform(100, 300, len(starts)), np.diff(starts, append=hours))
    load += 20 * np.sin(np.arange(hours) * np.pi / 12) + 5 * rng.standard_normal((series, hours))
    return load


def test_week_ahead_intervals_cover_shifting_levels() -> None:
    load = shifting_levels(series=144, hours=9 * 168)
    known = Panel(load[:, :-168], MONDAY)

    made = forecast(known, judge(known))

    came = load[:, -168 + first_ahead(168) - 1 :]
    inside = np.stack([covered(actual, each[168]) for actual, each in zip(came, made, strict=True)])
    assert 0.75 <= inside.mean() <= 0.85


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no recorded traffic in {TRACES}")
def test_season_beats_persistence_on_recorded_tweets_but_not_on_bursts() -> None:
    tweets = [hourly_means(path) for path in sorted(TRACES.glob("tweets_*.csv"))]
    bursts = hourly_means(TRACES / "aws_ec2_network_in_257a54.csv")

    for series in tweets:
        judged = judge(series).judgements[0]
        for horizon, least in ((1, 0.05), (24, 0.2), (168, 0.2)):
            assert judged[horizon].chosen == SEASONAL
            assert judged[horizon].pinball < (1 - least) * judged[horizon].baseline_pinball
    assert judge(bursts).judgements[0][24].chosen != SEASONAL


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no recorded traffic in {TRACES}")
def test_intervals_cover_recorded_hours_at_the_stated_rate() -> None:
    series = [hourly_means(path) for path in sorted(TRACES.glob("tweets_*.csv"))]
    hours = min(each.hours for each in series)
    load = np.concatenate([each.load[:, :hours] for each in series])
    inside: dict[int, list[FloatArray]] = {horizon: [] for horizon in HORIZONS}
    said: dict[int, list[float]] = {horizon: [] for horizon in HORIZONS}
    errors: list[tuple[FloatArray, FloatArray]] = []

    for origin in range(21 * 24, hours, 83):
        known = Panel(load[:, :origin], series[0].first_hour)
        tested = judge(known)
        made = forecast(known, tested)
        for row, horizon in itertools.product(range(len(series)), HORIZONS):
            came = load[row, origin + first_ahead(horizon) - 1 :][: made[row][horizon].shape[1]]
            inside[horizon].append(covered(came, made[row][horizon][:, : len(came)]))
            said[horizon].append(tested.judgements[row][horizon].coverage)
        medians = np.array([each[1][1, 0] for each in made])
        errors.append((np.abs(load[:, origin] - medians), np.abs(load[:, origin] - load[:, origin - 1])))

    for horizon in HORIZONS:
        assert np.mean(said[horizon]) == pytest.approx(0.8, abs=0.03)
        assert horizon == 1 or np.concatenate(inside[horizon]).mean() == pytest.approx(0.8, abs=0.03)
    ours, naive = np.array(errors).transpose(1, 2, 0)
    assert (ours.mean(axis=1) / naive.mean(axis=1)).mean() < 1
    assert np.median(ours - naive) <= 0


def hourly_means(path: Path) -> Panel:
    series = read_series([path], max_missing=100)[0]
    first_hour = -(-series.start_ms // HOUR_MS)
    skipped = (first_hour * HOUR_MS - series.start_ms) // series.step_ms
    per_hour = HOUR_MS // series.step_ms
    values = series.values[skipped:]
    return one(values[: len(values) // per_hour * per_hour].reshape(-1, per_hour).mean(axis=1), first_hour)


def test_bundle_windows_become_forecasts_and_back_tests(spark: SparkSession) -> None:
    steady, late = "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"
    load = working_week(3, noise=5.0)
    start_ms = 2_000 * 168 * HOUR_MS + MONDAY * HOUR_MS
    rows = [
        {
            "bundle": name,
            "start_ms": start_ms + hour * HOUR_MS,
            "covered_s": 3600.0,
            **{f"mean_{each}": value for each in METRICS},
        }
        for name, values in ((steady, load), (late, load[-10:]))
        for hour, value in zip(range(len(load) - len(values), len(load)), values.tolist(), strict=True)
    ]
    runs = forecast_runs(frame_of(spark, "bundle_windows", rows), "bundle", buckets=2).cache()

    rows_tested = require(runs.select(*BACKTEST.names), "backtest").collect()
    tested = {(row["key"], row["metric"], row["horizon_h"]): row for row in rows_tested}
    hours = require(forecasts(runs), "forecasts").orderBy("metric", "start_ms").collect()

    assert len(tested) == 2 * len(METRICS) * len(HORIZONS)
    assert tested[late, "msg_rate_in", 24]["why"] == "short: needs 3 days of hourly windows, has 0.4"
    assert tested[late, "msg_rate_in", 24]["mae"] is None
    judged = judge(one(load))
    (expected,) = judged.judgements
    for horizon, judgement in expected.items():
        row = tested[steady, "msg_rate_in", horizon]
        assert {name: row[name] for name in judgement._fields} == judgement._asdict()
    assert {row["key"] for row in hours} == {steady}
    assert len(hours) == 168 * len(METRICS)
    first_metric = [row for row in hours if row["metric"] == "msg_rate_in"]
    assert [row["hours_ahead"] for row in first_metric] == list(range(1, 169))
    assert [row["start_ms"] for row in first_metric] == [start_ms + (503 + ahead) * HOUR_MS for ahead in range(1, 169)]
    (made,) = forecast(one(load), judged)
    assert [row["q50"] for row in first_metric] == np.concatenate([made[each][1] for each in HORIZONS]).tolist()
    assert all(row["q10"] <= row["q50"] <= row["q90"] for row in hours)
    assert first_metric[0]["model"] == expected[1].chosen
    runs.unpersist()


def test_other_window_lengths_and_barely_covered_hours_are_ignored(spark: SparkSession) -> None:
    short, half_known = {"window_s": 300, "covered_s": 300.0}, {"covered_s": 1799.0}
    windows = frame_of(spark, "namespace_windows", [{"namespace": "t/n", **each} for each in (short, half_known)])

    assert forecast_runs(windows, "namespace").collect() == []
    assert hours_known(windows).tolist() == []
