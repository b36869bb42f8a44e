"""The last day of a series as it would have been forecast the day before."""

from __future__ import annotations

import numpy as np
import pandas as pd

from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.forecast.ahead import forecast
from loadmanager.pipeline.forecast.backtest import judge
from loadmanager.pipeline.forecast.series import Panel

HELD_OUT_H = 24


def hold_out(rows: pd.DataFrame) -> pd.DataFrame | str:
    """The last day forecast by what was known before it: `start_ms`, `q10`, `q50`, `q90`; or why there is none.

    `rows` are the hours of one series: `start_ms` and `load`.
    """
    first_ms, last_ms = int(rows["start_ms"].min()), int(rows["start_ms"].max())
    hours = (last_ms - first_ms) // HOUR_MS + 1
    if hours <= HELD_OUT_H:
        return f"{hours} hours are known, more than {HELD_OUT_H} are needed"
    load = np.full((1, hours), np.nan)
    load[0, ((rows["start_ms"] - first_ms) // HOUR_MS).to_numpy(dtype=np.int64)] = rows["load"].to_numpy(
        dtype=np.float64
    )
    known = Panel(load[:, :-HELD_OUT_H], first_ms // HOUR_MS)
    tested = judge(known)
    (made,) = forecast(known, tested)
    parts = [values for horizon, values in sorted(made.items()) if horizon <= HELD_OUT_H]
    if not parts:
        return next(each.why for each in tested.judgements[0].values())
    quantiles = np.concatenate(parts, axis=-1)
    begins_ms = last_ms + HOUR_MS - HELD_OUT_H * HOUR_MS + (HELD_OUT_H - quantiles.shape[1]) * HOUR_MS
    start_ms = begins_ms + np.arange(quantiles.shape[1]) * HOUR_MS
    return pd.DataFrame({"start_ms": start_ms, "q10": quantiles[0], "q50": quantiles[1], "q90": quantiles[2]})
