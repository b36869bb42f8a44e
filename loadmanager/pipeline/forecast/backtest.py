"""Back-test of the forecast models, the choice of a model for each series and horizon, and the forecast itself.

The models are fitted again and again to what was known by then (rolling origin) and asked for the hours after it. Their
intervals are calibrated by the errors before each of them. The season is used where it beats the best baseline in both
the pinball loss of its quantiles and the mean absolute error of its median; elsewhere that baseline is the forecast.
There is none for a series that is too short, has too many gaps or has ended, nor further ahead than the back-test goes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from loadmanager.core.model.load import FloatArray
from loadmanager.pipeline.forecast.intervals import Calibration, calibrated_in_turn, covered
from loadmanager.pipeline.forecast.models import (
    BASELINES,
    DAY,
    LEVELS,
    MEDIAN,
    MODELS,
    SEASONAL,
    Baseline,
    ForecastHours,
    Panel,
    Season,
)
from loadmanager.pipeline.paired import Significance, interval

HORIZONS: Mapping[int, tuple[int, ...]] = {1: (1,), 24: (6, 12, 18, 24), 168: (60, 108, 168)}
"""Hours ahead that the back-test asks for, by horizon; each horizon begins where the one before ends."""
FEWEST_HOURS = 72
"""A series with fewer known hours is too short."""
LEAST_KNOWN = 0.5
"""The part of the hours since its first one that a series has to have."""
ENDED_HOURS = 24
"""A series without a value for so long has ended: its bundle was split, merged or deleted, or is idle."""
_TRIED_H, _JUDGED_H = 28 * DAY, 14 * DAY
"""Most hours of the back-test, and how many of the last ones are judged. All of them calibrate the intervals."""
_LEARNT_H = 8 * DAY
"""Hours that models learn from before the back-test, in a history of up to twice as many."""
_REFITS, _REFIT_H = 8, 2 * DAY
"""Fewest times that the models learn anew in the back-test, and at most how many hours apart."""
_AS_GOOD = 0.02
"""The part of the pinball losses of a day up to which a difference does not matter."""


class Judgement(NamedTuple):
    """Result of the back-test for one horizon of one series: the columns of the table `backtest` after its key.

    Scores are NaN where there was too little history.
    """

    model: str = SEASONAL
    points: int = 0
    pinball: float = math.nan
    mae: float = math.nan
    baseline: str | None = None
    baseline_pinball: float = math.nan
    baseline_mae: float = math.nan
    coverage: float = math.nan
    baseline_coverage: float = math.nan
    shown: str = str(Significance.INCONCLUSIVE)
    used: bool = False
    why: str = ""

    @property
    def chosen(self) -> str | None:
        """Return the model that forecasts; None for no forecast."""
        return self.model if self.used else self.baseline


@dataclass(frozen=True, slots=True, eq=False)
class BackTest:
    """`judgements` by series and horizon; `calibrations` of all series by how far ahead and model."""

    judgements: list[dict[int, Judgement]]
    calibrations: Mapping[tuple[int, str], Calibration]


def judge(panel: Panel) -> BackTest:
    """Back-test each series and horizon."""
    unfit = [_unfit(row) for row in panel.load]
    ends = _ends(panel.hours)
    horizons = {horizon: probes for horizon, probes in HORIZONS.items() if panel.hours >= fewest_hours(horizon)}
    tried = _try(panel, ends, [ahead for probes in horizons.values() for ahead in probes])
    begin = next(end for end in ends[1:] if end >= panel.hours - _JUDGED_H)
    came, judged = panel.load[:, ends[0] :], panel.load[:, begin:]
    turns = [end - ends[0] for end in ends if end >= begin]
    losses = {
        (ahead, model): losses_of(judged, calibrated_in_turn(came, made, turns, ahead))
        for (ahead, model), made in tried.items()
    }
    found: list[dict[int, Judgement]] = [{} for _ in unfit]
    for horizon in HORIZONS:
        probes = horizons.get(horizon, ())
        of = {model: np.stack([losses[ahead, model] for ahead in probes], axis=2) for model in MODELS if probes}
        for row, why in enumerate(unfit):
            own = {model: each[:, row] for model, each in of.items()}
            known = int(np.count_nonzero(~np.isnan(panel.load[row])))
            found[row][horizon] = _judge(horizon, own, known) if why is None else Judgement(why=why)
    return BackTest(found, {asked: Calibration.of(came, made, asked[0]) for asked, made in tried.items()})


def forecast(panel: Panel, tested: BackTest) -> list[dict[int, FloatArray]]:
    """Return, for each series and each horizon with a model, (3, hours) from `first_ahead` on.

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
    """Return how far ahead a horizon begins: an hour after the one before ends."""
    return 1 + max((each for each in HORIZONS if each < horizon), default=0)


def _ends(hours: int) -> list[int]:
    """Return the hours at which the models learn anew: over half of the history, of a short one a third at least."""
    tested = min(_TRIED_H, max(hours // 3, min(hours // 2, hours - _LEARNT_H)))
    step = max(1, min(_REFIT_H, tested // _REFITS))
    return list(range(hours - tested // step * step, hours + 1, step))


@cache
def fewest_hours(horizon: int) -> int:
    """Return the hours of history that the back-test needs to reach a horizon."""
    return next(hours for hours in count(FEWEST_HOURS) if _ends(hours)[0] >= HORIZONS[horizon][-1] + DAY)


def _unfit(values: FloatArray) -> str | None:
    """Return why the series has no forecast, if it has none."""
    known = np.flatnonzero(~np.isnan(values))
    if len(known) < FEWEST_HOURS:
        return f"short: needs {FEWEST_HOURS / DAY:g} days of hourly windows, has {len(known) / DAY:.1f}"
    silent = len(values) - 1 - int(known[-1])
    if silent >= ENDED_HOURS:
        return f"ended: nothing for the last {silent} hours"
    part = len(known) / (len(values) - int(known[0]))
    if part < LEAST_KNOWN:
        return f"gappy: needs {LEAST_KNOWN:.0%} of the hours since its first, has {part:.0%}"
    return None


def _try(panel: Panel, ends: Sequence[int], probes: Sequence[int]) -> dict[tuple[int, str], FloatArray]:
    """Return the forecasts (3, series, hours) of each model from the first of the `ends` on, by the hours ahead.

    All models learn anew at each end.
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
    """Return (3, series, targets): mean pinball loss of the quantiles, absolute error of the median, and coverage."""
    over = actual - forecast
    pinball = np.maximum(LEVELS[:, np.newaxis, np.newaxis] * over, (LEVELS[:, np.newaxis, np.newaxis] - 1) * over)
    return np.stack([pinball.mean(axis=0), np.abs(over[MEDIAN]), covered(actual, forecast)])


def _judge(horizon: int, losses: Mapping[str, FloatArray], known: int) -> Judgement:
    """Compare the models of one series by their losses (3, probes, hours), over hours that all of them could forecast.

    A baseline that has not forecast all of these hours is not considered.
    """
    needed = f"needs {fewest_hours(horizon) / DAY:.1f} days of hourly windows for {horizon} h ahead"
    short = Judgement(why=f"short: {needed}, has {known / DAY:.1f}")
    if not losses:
        return short
    asked_for = ~np.isnan(losses[SEASONAL][0]) & ~np.isnan(losses["last_window"][0])
    if not asked_for.any():
        return short
    scores = {model: each[:, asked_for].mean(axis=1).tolist() for model, each in losses.items()}
    complete = [model for model in BASELINES if not math.isnan(scores[model][0])]
    baseline = min(complete, key=lambda model: scores[model][0])
    days = [_by_day(np.where(asked_for, losses[model][0], np.nan)) for model in (SEASONAL, baseline)]
    pinball, mae, coverage = scores[SEASONAL]
    least_pinball, least_mae, baseline_coverage = scores[baseline]
    used = pinball < least_pinball and mae < least_mae
    if used:
        why = f"{1 - pinball / least_pinball:.0%} less pinball loss than {baseline}"
    elif pinball >= least_pinball:
        why = f"no less pinball loss than {baseline}"
    else:
        why = f"its median errs no less than {baseline}"
    return Judgement(
        points=int(asked_for.sum()),
        pinball=pinball,
        mae=mae,
        baseline=baseline,
        baseline_pinball=least_pinball,
        baseline_mae=least_mae,
        coverage=coverage,
        baseline_coverage=baseline_coverage,
        shown=str(interval(_relative(*days)).shows(_AS_GOOD)),
        used=used,
        why=why,
    )


def _by_day(values: FloatArray) -> FloatArray:
    """Return the means of each day of the hours (probes, hours), without days that are unknown."""
    known = ~np.isnan(values)
    days = -(-values.shape[1] // DAY)
    day = np.broadcast_to(np.arange(values.shape[1]) // DAY, values.shape)
    count = np.bincount(day[known], minlength=days)
    total = np.bincount(day[known], weights=values[known], minlength=days)
    return np.asarray(total[count > 0] / count[count > 0])


def _relative(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return the differences as parts of the means: a day of bursts counts as much as any other."""
    mean = (one + other) / 2
    return np.divide(one - other, mean, out=np.zeros_like(mean), where=mean > 0)
