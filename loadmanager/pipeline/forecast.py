"""What each bundle and namespace will carry: quantiles for every hour of the next week, and how wrong they would have
been so far.

Three baselines repeat what was: the last window, the same hour of the last day, the same hour of the last week, each
with the quantiles of its own past errors around it. The candidate is the season: a median for each hour of the week,
what the latest hour is above or below it (damped the more the further ahead, and what is unusually far off by itself),
and the quantiles of the errors of the two. An hour of the week with few values is drawn to the same hour of working
days or of weekends, that one to the same hour of all days, and that one to all hours.

A back-test fits them again and again on what was known up to then (rolling origin) and asks for what came next. What
they have missed so far says how wide their intervals have to be (`pipeline.intervals`): in the back-test what was
missed before, in the forecast all of it. The season is used only where it then beats the best of the baselines in
both measures, the pinball loss of its quantiles and the mean absolute error of its median; elsewhere that baseline is
the forecast. There is none for a series that is too short, has too many gaps or has ended, nor further ahead than the
back-test reaches; the back-test says so.

The pure functions take many series at once, as (series, hours) with NaN for an hour that nobody reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loadmanager.core.evidence import Shown
from loadmanager.core.load import BoolArray, FloatArray, IntArray
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.enough import KNOWN_HOUR_S
from loadmanager.pipeline.intervals import Calibration, calibrated_in_turn, covered
from loadmanager.pipeline.paired import interval
from loadmanager.pipeline.schemas import METRICS

QUANTILES = (0.1, 0.5, 0.9)
SEASONAL = "seasonal"
BASELINES = {"last_window": 1, "same_hour_last_day": 24, "same_hour_last_week": 168}
"""Baselines by the period in hours after which a value is taken to return."""
MODELS = (SEASONAL, *BASELINES)

HORIZONS: Mapping[int, tuple[int, ...]] = {1: (1,), 24: (6, 12, 18, 24), 168: (60, 108, 168)}
"""How many hours ahead the back-test asks, by the horizon that it decides for: each reaches from the one before."""

FEWEST_HOURS = 72
"""A series with fewer known hours is too short."""
LEAST_KNOWN = 0.5
"""The part of the hours since its first one that a series has to have."""
ENDED_HOURS = 24
"""A series without a value for so long has ended: its bundle was split, merged or deleted, or is idle."""

_WEEK, _DAY = 168, 24
_DAYS, _WORKING_DAYS = 7, 5
_THURSDAY = 3 * _DAY
"""1970 began on a Thursday, a week begins on Monday."""
HOUR_MS = 3_600_000
_SHRINKAGE = 4.0
"""So many values of its own count as much as what an hour is drawn to."""
_FAR = 0.8
"""The quantile of the distances from the season above which one is far."""
_TEST_DAYS, _DAYS_BEFORE = 14, 2
"""Of the back-test: days that are judged, and days before them by which the first intervals are calibrated."""
_REFITS = 8
_AS_GOOD = 0.02
"""The part of the pinball losses of a day up to which a difference does not matter."""
_SERIES_AT_ONCE = 128
_LEVELS = np.array(QUANTILES)
_Hours = TypeVar("_Hours", int, IntArray)
_MEDIAN = 1

BACKTEST, FORECASTS = schema_of("backtest"), schema_of("forecasts")
FORECAST_RUNS = t.StructType(
    [
        *BACKTEST.fields,
        t.StructField("first_ms", t.LongType(), nullable=False),
        *(t.StructField(name, t.ArrayType(t.DoubleType())) for name in ("q10", "q50", "q90")),
    ]
)
"""What came of one horizon of one series: the row of its back-test, and the quantiles of its hours from `first_ms`."""


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Series at equal hours: `load` (series, hours), NaN where unknown; `first_hour` is counted from 1970, in UTC."""

    load: FloatArray
    first_hour: int

    @property
    def hours(self) -> int:
        return int(self.load.shape[1])

    def hour_of_week(self, index: IntArray) -> IntArray:
        """0 is Monday 00:00 to 01:00 UTC; an index may be past the end."""
        return (index + self.first_hour + _THURSDAY) % _WEEK


@dataclass(frozen=True, slots=True, eq=False)
class ForecastHours:
    """Hours to forecast, by their indices, each from the hour `origins` on, the last one that is known then; with
    the errors that forecasts `ahead` hours ahead had.
    """

    targets: IntArray
    origins: IntArray
    ahead: int


@dataclass(frozen=True, slots=True)
class Score:
    """The errors of one model at one horizon of one series, and which part of what came was within its interval."""

    pinball: float
    mae: float
    coverage: float

    def beats(self, other: Score) -> bool:
        return self.pinball < other.pinball and self.mae < other.mae


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the back-test says of one horizon of one series; without scores there was too little to try.

    `chosen` is the model that forecasts, None for no forecast; `shown` of the season beside the baseline.
    """

    chosen: str | None
    points: int
    why: str
    seasonal: Score | None = None
    baseline: str | None = None
    baseline_score: Score | None = None
    shown: Shown = Shown.NOTHING


@dataclass(frozen=True, slots=True, eq=False)
class BackTest:
    """`judgements` by series and horizon; `calibrations` of all series by how far ahead and model."""

    judgements: list[dict[int, Judgement]]
    calibrations: Mapping[tuple[int, str], Calibration]


def quantiles_of(values: FloatArray, levels: FloatArray = _LEVELS) -> tuple[FloatArray, IntArray]:
    """(levels, ...) quantiles over the last axis without NaN, by linear interpolation; and how many values there were.

    NaN where there was none.
    """
    ascending = np.sort(values, axis=-1)  # NaN last
    count = np.sum(~np.isnan(values), axis=-1)
    position = np.multiply.outer(levels, np.maximum(count - 1, 0))
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, np.maximum(count - 1, 0))
    low, high = (np.take_along_axis(ascending, np.moveaxis(each, 0, -1), axis=-1) for each in (below, above))
    found = np.moveaxis(low, -1, 0) + (position - below) * np.moveaxis(high - low, -1, 0)
    return found, count


def seasonal_quantiles(panel: Panel) -> FloatArray:
    """(3, series, 168): the quantiles of each hour of the week, drawn to those of the hour on such days (working days,
    or Saturday and Sunday), these to those of the hour on all days, and these to those of all hours.
    """
    before = int(panel.hour_of_week(np.zeros(1, dtype=np.int64))[0])
    weeks = -(-(before + panel.hours) // _WEEK)
    series = len(panel.load)
    padded = np.full((series, weeks * _WEEK), np.nan)
    padded[:, before : before + panel.hours] = panel.load
    by_day = padded.reshape(series, weeks, _DAYS, _DAY)
    everything, _ = quantiles_of(padded)
    all_days = drawn_towards(*_of_hours(by_day), everything[..., np.newaxis])
    working = drawn_towards(*_of_hours(by_day[:, :, :_WORKING_DAYS]), all_days)
    free = drawn_towards(*_of_hours(by_day[:, :, _WORKING_DAYS:]), all_days)
    such_days = np.concatenate([np.tile(working, _WORKING_DAYS), np.tile(free, _DAYS - _WORKING_DAYS)], axis=-1)
    by_week = np.swapaxes(padded.reshape(series, weeks, _WEEK), 1, 2)
    return drawn_towards(*quantiles_of(by_week), such_days)


def _of_hours(by_day: FloatArray) -> tuple[FloatArray, IntArray]:
    """(3, series, 24) and (series, 24): the quantiles of each hour over (series, weeks, days, 24), and the counts."""
    return quantiles_of(np.swapaxes(by_day.reshape(len(by_day), -1, _DAY), 1, 2))


def drawn_towards(own: FloatArray, count: IntArray, towards: FloatArray) -> FloatArray:
    weight = count / (count + _SHRINKAGE)
    return np.where(count > 0, weight * np.nan_to_num(own) + (1 - weight) * towards, towards)


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """What was there one or more whole periods before. `carried` is the panel with what is missing taken from one
    period earlier.
    """

    panel: Panel
    period: int
    carried: FloatArray

    @classmethod
    def of(cls, panel: Panel, period: int) -> Baseline:
        return cls(panel, period, _carried(panel.load, period))

    def forecast(self, fit_until: int, asked: ForecastHours) -> FloatArray:
        """(3, series, targets), with the quantiles of the errors that this had before `fit_until`."""
        lag = self._periods(asked.ahead)
        errors = self.panel.load[:, lag:fit_until] - self.carried[:, : max(fit_until - lag, 0)]
        spread, _ = quantiles_of(errors) if errors.shape[1] else (np.full((3, len(errors)), np.nan), None)
        point = _at(self.carried, asked.targets - self._periods(asked.targets - asked.origins))
        around = np.stack([np.minimum(spread[0], 0), 0 * spread[_MEDIAN], np.maximum(spread[2], 0)])
        return np.asarray(np.maximum(point + around[..., np.newaxis], 0))

    def _periods(self, hours: _Hours) -> _Hours:
        """As many whole periods as it takes to go so far back."""
        return -(-hours // self.period) * self.period


@dataclass(frozen=True, slots=True, eq=False)
class Season:
    """What is known of the season at an hour: `median` (series, 168), and for every hour, also later ones, how far its
    value is `off` from that, (series, hours); `carried`: or its last known value was. From `far` (series, 1) on that is
    unusually far.
    """

    panel: Panel
    fit_until: int
    median: FloatArray
    off: FloatArray
    carried: FloatArray
    far: FloatArray

    @classmethod
    def fit(cls, panel: Panel, fit_until: int) -> Season:
        """By the hours before `fit_until`."""
        median = seasonal_quantiles(Panel(panel.load[:, :fit_until], panel.first_hour))[_MEDIAN]
        off = panel.load - median[:, panel.hour_of_week(np.arange(panel.hours))]
        far, _ = quantiles_of(np.abs(off[:, :fit_until]), np.array([_FAR]))
        return cls(panel, fit_until, median, off, _carried(off, 1), far[0][:, np.newaxis])

    def forecast(self, asked: ForecastHours) -> FloatArray:
        """(3, series, targets) by the season and by how far the latest known hour was from it."""
        until, ahead = self.fit_until, asked.ahead
        then, now = self.off[:, : until - ahead], self.off[:, ahead:until]
        near, far = _kept(then, now, self._is_far(then))
        errors = np.full((len(then), until), np.nan)
        errors[:, ahead:] = now - np.where(self._is_far(then), far, near) * then
        spread = seasonal_quantiles(Panel(errors, self.panel.first_hour))
        usual = spread[_MEDIAN].mean(axis=1, keepdims=True)
        hours = self.panel.hour_of_week(asked.targets)
        latest = _at(self.carried, asked.origins)
        point = self.median[:, hours] + np.where(self._is_far(latest), far, near) * latest + usual
        around = spread - spread[_MEDIAN]
        return np.asarray(np.maximum(point + around[:, :, hours], 0))

    def _is_far(self, off: FloatArray) -> BoolArray:
        return np.asarray(np.abs(off) > self.far)


def _kept(then: FloatArray, now: FloatArray, is_far: BoolArray) -> tuple[FloatArray, FloatArray]:
    """(series, 1) twice: the part, 0 to 1, of a distance from the season that is still there later, of near and of far
    ones, by least absolute errors: what is left of each, and the median of that where each counts by its distance.
    """
    both = ~np.isnan(then) & ~np.isnan(now) & (then != 0)
    left = np.divide(now, then, out=np.full_like(then, np.inf), where=both)
    order = np.argsort(left, axis=1)
    weight = np.take_along_axis(np.where(both, np.abs(then), 0), order, axis=1)
    ascending, is_far = np.take_along_axis(left, order, axis=1), np.take_along_axis(is_far, order, axis=1)
    near = _weighted_median(ascending, np.where(is_far, 0, weight), np.zeros((len(then), 1)))
    return near, _weighted_median(ascending, np.where(is_far, weight, 0), near)


def _weighted_median(ascending: FloatArray, weight: FloatArray, otherwise: FloatArray) -> FloatArray:
    """(series, 1), 0 to 1; `otherwise` where nothing has a weight."""
    if not ascending.shape[1]:
        return otherwise
    total = np.cumsum(weight, axis=1)
    middle = np.argmax(total >= total[:, -1:] / 2, axis=1)[:, np.newaxis]
    found = np.clip(np.take_along_axis(ascending, middle, axis=1), 0, 1)
    return np.where(total[:, -1:] > 0, found, otherwise)


def _carried(values: FloatArray, period: int) -> FloatArray:
    """The same with what is unknown taken from the latest known value a whole number of periods earlier."""
    series, hours = values.shape
    periods = -(-hours // period)
    padded = np.full((series, periods * period), np.nan)
    padded[:, :hours] = values
    by_phase = padded.reshape(series, periods, period)
    position = np.where(np.isnan(by_phase), 0, np.arange(periods)[:, np.newaxis])
    latest = np.maximum.accumulate(position, axis=1)
    return np.take_along_axis(by_phase, latest, axis=1).reshape(series, -1)[:, :hours]


def _at(values: FloatArray, index: IntArray) -> FloatArray:
    """The columns at these indices, NaN before the first."""
    return np.where(index >= 0, values[:, np.maximum(index, 0)], np.nan)


def judge(panel: Panel) -> BackTest:
    """The back-test of each series and horizon."""
    unfit = [_unfit(row) for row in panel.load]
    ends = _ends(panel.hours)
    horizons = {horizon: probes for horizon, probes in HORIZONS.items() if ends[0] >= probes[-1] + _DAY}
    tried = _try(panel, ends, [ahead for probes in horizons.values() for ahead in probes])
    came, judged, turns = panel.load[:, ends[0] :], panel.load[:, ends[1] :], [end - ends[0] for end in ends[1:]]
    losses = {asked: losses_of(judged, calibrated_in_turn(came, made, turns)) for asked, made in tried.items()}
    found: list[dict[int, Judgement]] = [{} for _ in unfit]
    for horizon in HORIZONS:
        probes = horizons.get(horizon, ())
        of = {model: np.stack([losses[ahead, model] for ahead in probes], axis=2) for model in MODELS if probes}
        for row, why in enumerate(unfit):
            own = {model: each[:, row] for model, each in of.items()}
            found[row][horizon] = _judge(horizon, own) if why is None else Judgement(None, 0, why)
    return BackTest(found, {asked: Calibration.of(came, made) for asked, made in tried.items()})


def _ends(hours: int) -> list[int]:
    """Where the hours between which the models learn anew end; those up to the second one are for calibration alone."""
    tested = min((_TEST_DAYS + _DAYS_BEFORE) * _DAY, hours // 3)
    return [int(end) for end in np.linspace(hours - tested, hours, _REFITS + 1)]


def _unfit(values: FloatArray) -> str | None:
    """Why the series has no forecast."""
    known = np.flatnonzero(~np.isnan(values))
    if len(known) < FEWEST_HOURS:
        return f"short: {len(known)} hours known, {FEWEST_HOURS} are needed"
    silent = len(values) - 1 - int(known[-1])
    if silent >= ENDED_HOURS:
        return f"ended: nothing for the last {silent} hours"
    part = len(known) / (len(values) - int(known[0]))
    if part < LEAST_KNOWN:
        return f"gappy: {part:.0%} of the hours since its first are known, {LEAST_KNOWN:.0%} are needed"
    return None


def _try(panel: Panel, ends: Sequence[int], probes: Sequence[int]) -> dict[tuple[int, str], FloatArray]:
    """What each model says from the first of the `ends` on, (3, series, hours), by how far ahead it is asked; all learn
    anew at each end.
    """
    baselines = {name: Baseline.of(panel, period) for name, period in BASELINES.items()}
    made: dict[tuple[int, str], list[FloatArray]] = defaultdict(list)
    for first, end in pairwise(ends):
        season = Season.fit(panel, first)
        targets = np.arange(first, end)
        for ahead in probes:
            asked = ForecastHours(targets, targets - ahead, ahead)
            made[ahead, SEASONAL].append(season.forecast(asked))
            for name, baseline in baselines.items():
                made[ahead, name].append(baseline.forecast(first, asked))
    return {asked: np.concatenate(each, axis=-1) for asked, each in made.items()}


def losses_of(actual: FloatArray, forecast: FloatArray) -> FloatArray:
    """(3, series, targets): the pinball loss, mean over the quantiles, the absolute error of the median, and whether
    the interval covers it (1 or 0).
    """
    over = actual - forecast
    pinball = np.maximum(_LEVELS[:, np.newaxis, np.newaxis] * over, (_LEVELS[:, np.newaxis, np.newaxis] - 1) * over)
    return np.stack([pinball.mean(axis=0), np.abs(over[_MEDIAN]), covered(actual, forecast)])


def _judge(horizon: int, losses: Mapping[str, FloatArray]) -> Judgement:
    """Of one series: the losses (3, probes, hours) of each model, over all that the season and the last window could
    say; a model that could not say all of it has no score.
    """
    short = Judgement(None, 0, f"short: too few hours to try a forecast {horizon} h ahead")
    if not losses:
        return short
    asked_for = ~np.isnan(losses[SEASONAL][0]) & ~np.isnan(losses["last_window"][0])
    if not asked_for.any():
        return short
    scores = {model: score for model, each in losses.items() if (score := _score(each[:, asked_for])) is not None}
    baseline = min((model for model in scores if model != SEASONAL), key=lambda model: scores[model].pinball)
    seasonal, best = scores[SEASONAL], scores[baseline]
    days = [_by_day(np.where(asked_for, losses[model][0], np.nan)) for model in (SEASONAL, baseline)]
    beats = seasonal.beats(best)
    return Judgement(
        chosen=SEASONAL if beats else baseline,
        points=int(asked_for.sum()),
        why=_why(seasonal, best, baseline),
        seasonal=seasonal,
        baseline=baseline,
        baseline_score=best,
        shown=interval(_relative(*days)).shows(_AS_GOOD),
    )


def _score(losses: FloatArray) -> Score | None:
    """Of (3, points); None where some are unknown."""
    return None if np.isnan(losses).any() else Score(*losses.mean(axis=1).tolist())


def _by_day(values: FloatArray) -> FloatArray:
    """The means over each day of the hours (probes, hours), without days of which nothing is known."""
    known = ~np.isnan(values)
    days = -(-values.shape[1] // _DAY)
    day = np.broadcast_to(np.arange(values.shape[1]) // _DAY, values.shape)
    count = np.bincount(day[known], minlength=days)
    total = np.bincount(day[known], weights=values[known], minlength=days)
    return np.asarray(total[count > 0] / count[count > 0])


def _relative(one: FloatArray, other: FloatArray) -> FloatArray:
    """One less the other, as parts of their mean: a day of bursts counts as much as any other."""
    mean = (one + other) / 2
    return np.divide(one - other, mean, out=np.zeros_like(mean), where=mean > 0)


def _why(seasonal: Score, best: Score, baseline: str) -> str:
    if seasonal.pinball >= best.pinball:
        return f"no less pinball loss than {baseline}"
    if not seasonal.beats(best):
        return f"its median errs no less than {baseline}"
    return f"{1 - seasonal.pinball / best.pinball:.0%} less pinball loss than {baseline}"


def forecast(panel: Panel, tested: BackTest) -> list[dict[int, FloatArray]]:
    """For each series and each horizon with a model, (3, hours): the hours from `first_ahead` on, up to this one.

    An hour is forecast with the errors of the first probe that is as far ahead, or further.
    """
    last = panel.hours - 1
    season = Season.fit(panel, panel.hours)
    baselines = {name: Baseline.of(panel, period) for name, period in BASELINES.items()}
    found: list[dict[int, FloatArray]] = [{} for _ in tested.judgements]
    for horizon, probes in HORIZONS.items():
        chosen = [each[horizon].chosen for each in tested.judgements]
        nearest, parts = first_ahead(horizon), defaultdict[str, list[FloatArray]](list)
        for ahead in probes:
            targets = last + np.arange(nearest, ahead + 1)
            asked = ForecastHours(targets, np.full_like(targets, last), ahead)
            for name in {each for each in chosen if each is not None}:
                made = season.forecast(asked) if name == SEASONAL else baselines[name].forecast(panel.hours, asked)
                parts[name].append(tested.calibrations[ahead, name].applied(made))
            nearest = ahead + 1
        whole = {name: np.concatenate(each, axis=-1) for name, each in parts.items()}
        for row, model in enumerate(chosen):
            if model is not None:
                found[row][horizon] = whole[model][:, row]
    return found


def first_ahead(horizon: int) -> int:
    """How far ahead the first hour of a horizon is: one more than the horizon before reaches."""
    return 1 + max((each for each in HORIZONS if each < horizon), default=0)


def hourly(windows: DataFrame) -> DataFrame:
    """The windows of an hour."""
    return windows.where(f.col("window_s") == HOUR_MS // 1000)


def known_hours(windows: DataFrame) -> DataFrame:
    """The windows of an hour that are known."""
    return hourly(windows).where(f.col("covered_s") >= KNOWN_HOUR_S)


def hours_known(windows: DataFrame) -> IntArray:
    """Which hours, since 1970, are known of anything."""
    starts = known_hours(windows).select("start_ms").distinct().collect()
    return np.array([row["start_ms"] // HOUR_MS for row in starts], dtype=np.int64)


def forecast_runs(windows: DataFrame, key: str, buckets: int = 64) -> DataFrame:
    """`FORECAST_RUNS` of `bundle_windows` (key "bundle") or `namespace_windows` (key "namespace"), by their windows of
    1 h that are known. `backtest` and `forecasts` are read off it, so keep it (`persist`) between the two.
    """
    rows = known_hours(windows)
    ends = rows.agg(f.min("start_ms").alias("range_first"), f.max("start_ms").alias("range_last"))
    names = [f"mean_{metric}" for metric in METRICS]
    wanted = rows.select(f.col(key).alias("key"), "start_ms", *names).crossJoin(f.broadcast(ends))
    bucket = f.pmod(f.xxhash64("key"), f.lit(buckets))

    def run(rows: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([_runs(key, metric, rows) for metric in METRICS], ignore_index=True)

    return wanted.groupBy(bucket).applyInPandas(run, FORECAST_RUNS)


def backtest(runs: DataFrame) -> DataFrame:
    return runs.select(*BACKTEST.names)


def forecasts(runs: DataFrame) -> DataFrame:
    """A row per hour; one whose baseline has nothing to repeat has none."""
    first = f.create_map(*(f.lit(each) for horizon in HORIZONS for each in (horizon, first_ahead(horizon))))
    hours = f.posexplode(f.arrays_zip("q10", "q50", "q90")).alias("position", "hour")
    each = runs.select("*", hours)
    return each.where(f.col("hour.q50").isNotNull() & ~f.isnan("hour.q50")).select(
        "kind",
        "key",
        "metric",
        (f.col("first_ms") + f.col("position") * HOUR_MS).cast("long").alias("start_ms"),
        (first[f.col("horizon_h")] + f.col("position")).cast("int").alias("hours_ahead"),
        *(f.col(f"hour.{name}").alias(name) for name in ("q10", "q50", "q90")),
        f.when(f.col("used"), f.col("model")).otherwise(f.col("baseline")).alias("model"),
    )


def _runs(kind: str, metric: str, rows: pd.DataFrame) -> pd.DataFrame:
    """What comes of one metric of the keys in these windows."""
    first_ms, last_ms = int(rows["range_first"].iloc[0]), int(rows["range_last"].iloc[0])
    codes, keys = pd.factorize(rows["key"], sort=True)
    hour = ((rows["start_ms"].to_numpy() - first_ms) // HOUR_MS).astype(np.int64)
    values = np.full((len(keys), (last_ms - first_ms) // HOUR_MS + 1), np.nan)
    values[codes, hour] = rows[f"mean_{metric}"].to_numpy(dtype=np.float64)
    found: list[tuple[object, ...]] = []
    for at in range(0, len(keys), _SERIES_AT_ONCE):
        panel = Panel(values[at : at + _SERIES_AT_ONCE], first_ms // HOUR_MS)
        tested = judge(panel)
        made = forecast(panel, tested)
        for name, by_horizon, quantiles in zip(keys[at:], tested.judgements, made, strict=False):
            for horizon, judgement in by_horizon.items():
                start_ms = last_ms + first_ahead(horizon) * HOUR_MS
                found.append((kind, name, metric, horizon, *_columns(judgement, start_ms, quantiles.get(horizon))))
    return pd.DataFrame(found, columns=FORECAST_RUNS.names)


def _columns(judgement: Judgement, first_ms: int, quantiles: FloatArray | None) -> tuple[object, ...]:
    seasonal, baseline = judgement.seasonal, judgement.baseline_score
    return (
        SEASONAL,
        judgement.points,
        *((None, None) if seasonal is None else (seasonal.pinball, seasonal.mae)),
        judgement.baseline,
        *((None, None) if baseline is None else (baseline.pinball, baseline.mae)),
        None if seasonal is None else seasonal.coverage,
        None if baseline is None else baseline.coverage,
        str(judgement.shown),
        judgement.chosen == SEASONAL,
        judgement.why,
        first_ms,
        *((None,) * 3 if quantiles is None else quantiles),
    )
