"""How wrong forecasts would have been so far, and so which model forecasts what.

The models are fitted again and again on what was known up to then (rolling origin) and asked for what came next. Their
intervals are as wide as what was missed before then says that they have to be (`pipeline.intervals`). The season is
used only where it beats the best of the baselines in both measures, the pinball loss of its quantiles and the mean
absolute error of its median; elsewhere that baseline is the forecast. There is none for a series that is too short, has
too many gaps or has ended, nor further ahead than the back-test reaches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadmanager.core.evidence import Shown
from loadmanager.core.load import FloatArray
from loadmanager.pipeline.forecast.models import BASELINES, MODELS, SEASONAL, Baseline, ForecastHours, Season
from loadmanager.pipeline.forecast.series import DAY, LEVELS, MEDIAN, Panel
from loadmanager.pipeline.intervals import Calibration, calibrated_in_turn, covered
from loadmanager.pipeline.paired import interval

HORIZONS: Mapping[int, tuple[int, ...]] = {1: (1,), 24: (6, 12, 18, 24), 168: (60, 108, 168)}
"""How many hours ahead the back-test asks, by the horizon that it decides for: each reaches from the one before."""
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


def judge(panel: Panel) -> BackTest:
    """The back-test of each series and horizon."""
    unfit = [_unfit(row) for row in panel.load]
    ends = _ends(panel.hours)
    horizons = {horizon: probes for horizon, probes in HORIZONS.items() if ends[0] >= probes[-1] + DAY}
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
            found[row][horizon] = _judge(horizon, own) if why is None else Judgement(None, 0, why)
    return BackTest(found, {asked: Calibration.of(came, made, asked[0]) for asked, made in tried.items()})


def first_ahead(horizon: int) -> int:
    """How far ahead the first hour of a horizon is: one more than the horizon before reaches."""
    return 1 + max((each for each in HORIZONS if each < horizon), default=0)


def _ends(hours: int) -> list[int]:
    """Return the hours at which the models learn anew: over half of the history, of a short one a third at least."""
    tested = min(_TRIED_H, max(hours // 3, min(hours // 2, hours - _LEARNT_H)))
    step = max(1, min(_REFIT_H, tested // _REFITS))
    return list(range(hours - tested // step * step, hours + 1, step))


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
    pinball = np.maximum(LEVELS[:, np.newaxis, np.newaxis] * over, (LEVELS[:, np.newaxis, np.newaxis] - 1) * over)
    return np.stack([pinball.mean(axis=0), np.abs(over[MEDIAN]), covered(actual, forecast)])


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
    days = -(-values.shape[1] // DAY)
    day = np.broadcast_to(np.arange(values.shape[1]) // DAY, values.shape)
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
