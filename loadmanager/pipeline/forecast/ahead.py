"""The hours to come, each by the model that the back-test chose, with intervals as wide as it missed."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from loadmanager.core.load import FloatArray
from loadmanager.pipeline.forecast.backtest import HORIZONS, BackTest, first_ahead
from loadmanager.pipeline.forecast.models import BASELINES, SEASONAL, Baseline, ForecastHours, Season
from loadmanager.pipeline.forecast.series import Panel


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
