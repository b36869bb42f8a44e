"""The figures of the report, from small frames of pandas: text for a page, nothing that has to be fetched."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO, StringIO
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from loadmanager.core.load import FloatArray

BLUE, ORANGE, GREEN, RED, GREY = "#2563a8", "#d9822b", "#3a8a5a", "#b83232", "#8a8f98"
_COLOURS = (BLUE, ORANGE, GREEN, RED, "#6b4fa0", "#00838f", "#a0522d", GREY)
_WIDTH_IN, _HEIGHT_IN = 9.5, 3.0
_MOST_LABELS = 40
_ROW_IN = 0.18
_TALLEST_IN = 9.0
_LATE = 1.5
"""So many times the usual step from one time to the next: something is missing between."""
_ROOM = 1.3
"""For the legend, above the highest value."""


def _axes(height_in: float = _HEIGHT_IN) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, color=GREY)
    axes.grid(visible=True, axis="y", color="#e4e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


def _over_time(axes: Axes) -> None:
    locator = AutoDateLocator(minticks=4, maxticks=10)  # type: ignore[no-untyped-call]  # of matplotlib
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # as above


def _times(start_ms: pd.Series[int]) -> FloatArray:
    """As days since 1970, which is what the axes count in; UTC."""
    return np.asarray(start_ms.to_numpy(dtype=np.float64) / 86_400_000)


def _svg(figure: Figure, title: str) -> str:
    """The figure as part of a page; its identifiers are the same each time it is drawn."""
    text = StringIO()
    with rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Title": title})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _png(figure: Figure, title: str) -> str:
    data = BytesIO()
    figure.savefig(data, format="png", dpi=110)
    return f'<img alt="{title}" src="data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}">'


def _legend(axes: Axes) -> None:
    axes.legend(fontsize=8, frameon=False, loc="upper left", ncols=4)


def plot_imbalance(imbalance: pd.DataFrame, threshold: float) -> str:
    """`imbalance` in the order of time; the line is broken where nothing is known."""
    figure, axes = _axes()
    rows = _with_gaps(imbalance, "max_over_mean")
    axes.plot(_times(rows["start_ms"]), rows["max_over_mean"], color=BLUE, linewidth=1.2, label="busiest over mean")
    axes.axhline(threshold, color=RED, linewidth=0.9, linestyle="--", label=f"threshold {threshold:g}")
    axes.set_ylabel("imbalance", fontsize=8)
    axes.set_ylim(bottom=1.0)
    _over_time(axes)
    _legend(axes)
    return _svg(figure, "Imbalance over time")


def _with_gaps(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """With a row that is not a number wherever more time than usual is missing."""
    after = rows["start_ms"].diff()
    usual = after.median()
    late = rows.loc[after > _LATE * usual, ["start_ms"]] - 1
    return pd.concat([rows[["start_ms", value]], late.assign(**{value: np.nan})]).sort_values("start_ms")


def plot_brokers(usage: pd.DataFrame) -> str:
    """A heat map of `broker`, `start_ms`, `usage` (a fraction): the brokers by name, one below the other."""
    table = usage.pivot_table(index="broker", columns="start_ms", values="usage", aggfunc="max").sort_index()
    figure, axes = _axes(min(_TALLEST_IN, 1.6 + _ROW_IN * len(table)))
    axes.grid(visible=False)
    times = _times(table.columns.to_series())
    step = float(np.min(np.diff(times))) if len(times) > 1 else 1 / 288
    # Times in which nothing is known stay white: every column has its own edges.
    for first, last in _runs(times, step):
        mesh = axes.pcolormesh(
            np.append(times[first:last], times[last - 1] + step),
            np.arange(len(table) + 1),
            table.to_numpy(dtype=np.float64)[:, first:last],
            vmin=0.0,
            vmax=max(1.0, float(usage["usage"].max())),
            cmap="YlOrRd",
        )
    axes.invert_yaxis()
    if len(table) <= _MOST_LABELS:
        axes.set_yticks(np.arange(len(table)) + 0.5, list(table.index), fontsize=7)
    else:
        axes.set_ylabel(f"{len(table)} brokers, by name", fontsize=8)
    _over_time(axes)
    figure.colorbar(mesh, ax=axes, pad=0.01).set_label("usage", fontsize=8)
    return _png(figure, "Usage of each broker over time")


def _runs(times: FloatArray, step: float) -> list[tuple[int, int]]:
    """Stretches of times that follow each other, as first and after last."""
    breaks = np.flatnonzero(np.diff(times) > _LATE * step) + 1
    edges = [0, *breaks.tolist(), len(times)]
    return list(pairwise(edges))


def plot_league(league: pd.DataFrame) -> str:
    """Time above the band by configuration, a colour for each fleet."""
    fleets = list(dict.fromkeys(league["fleet"]))
    names = list(dict.fromkeys(league.sort_values("place")["configuration"]))
    figure, axes = _axes(1.0 + 0.28 * len(names) * max(1.0, len(fleets) / 2))
    axes.grid(visible=True, axis="x", color="#e4e7eb", linewidth=0.7)
    height = 0.8 / len(fleets)
    for number, fleet in enumerate(fleets):
        rows = league[league["fleet"] == fleet].set_index("configuration")["time_above"].reindex(names)
        at = np.arange(len(names)) + (number - (len(fleets) - 1) / 2) * height
        axes.barh(at, rows * 100, height=height * 0.9, color=_COLOURS[number % len(_COLOURS)], label=fleet)
    axes.set_yticks(np.arange(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("time above the band, % of all time", fontsize=8)
    axes.legend(fontsize=8, frameon=False, loc="best")
    return _svg(figure, "League of configurations")


def plot_forecast(actual: pd.DataFrame, forecast: pd.DataFrame, title: str) -> str:
    """`start_ms` and `load` as it was, and `start_ms`, `q10`, `q50`, `q90` as forecast, in MB/s."""
    figure, axes = _axes(2.4)
    rows = _with_gaps(actual, "load")
    axes.plot(_times(rows["start_ms"]), rows["load"], color=BLUE, linewidth=1.2, label="actual")
    times = _times(forecast["start_ms"])
    axes.fill_between(times, forecast["q10"], forecast["q90"], color=ORANGE, alpha=0.25, linewidth=0, label="80 %")
    axes.plot(times, forecast["q50"], color=ORANGE, linewidth=1.2, label="forecast")
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_ylabel("MB/s", fontsize=8)
    axes.set_ylim(0, _ROOM * max(rows["load"].max(), forecast["q90"].max()))
    _over_time(axes)
    _legend(axes)
    return _svg(figure, title)


def plot_capacity(capacity: pd.DataFrame, quantiles: Sequence[float]) -> str:
    """Brokers needed by day, for each quantile of the forecast, against those that are there."""
    figure, axes = _axes()
    for number, quantile in enumerate(quantiles):
        rows = capacity[capacity["quantile"] == quantile].sort_values("start_ms")
        label = f"needed, {quantile:.0%} of forecasts below"
        times, needed = _times(rows["start_ms"]), rows["needed"].astype(float).to_numpy()
        axes.stairs(needed, np.append(times, times[-1] + 1), baseline=None, color=_COLOURS[number], label=label)
    times, have = _times(capacity["start_ms"]), float(capacity["have"].iloc[0])
    axes.hlines(
        have, times.min(), times.max() + 1, color=GREY, linestyle="--", linewidth=1.0, label=f"there are {have:g}"
    )
    axes.set_ylabel("brokers", fontsize=8)
    axes.set_ylim(0, _ROOM * max(have, float(capacity["needed"].max())))
    _over_time(axes)
    _legend(axes)
    return _svg(figure, "Brokers needed")


def plot_moves(moves: pd.DataFrame) -> str:
    """The imbalance after each move: as predicted, and as measured."""
    figure, axes = _axes(3.4)
    axes.scatter(moves["predicted_after"], moves["measured_after"], s=14, color=BLUE, alpha=0.6, linewidths=0)
    both = moves[["predicted_after", "measured_after"]].to_numpy(dtype=np.float64)
    ends = [float(both.min()), float(both.max())]
    axes.plot(ends, ends, color=GREY, linewidth=0.9, linestyle="--", label="as predicted")
    axes.set_xlabel("imbalance after the move, as predicted", fontsize=8)
    axes.set_ylabel("as measured", fontsize=8)
    _legend(axes)
    return _svg(figure, "Moves: predicted against measured")
