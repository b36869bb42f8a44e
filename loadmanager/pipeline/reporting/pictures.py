"""The pictures of the report as specifications of Vega-Lite: figures and marks, no colours.

What a mark stands for is the name of its style; `page/page.js` has the colours of each, light and dark. What is under
the pointer is told by strips over the whole height, a strip for each bin, so that it need not be hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.reporting.binning import binned
from loadmanager.pipeline.reporting.units import between, moment, number, rate, share, times

Spec = dict[str, Any]

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_HEIGHT, _ROW = 220, 16
_MOST_CELLS = 40
_NARROW = "containerSize()[0] < 520"
"""A phone."""
_TIMES = "utcFormat(datum.value, {hours: '%H:%M', minutes: '%H:%M'})"
"""Days, months and years as Vega says them; its hours are those of a clock with twelve."""


@dataclass(frozen=True, slots=True)
class Picture:
    """`keys` say what the styles stand for: pairs of a style and a text. `label` is for those who do not see it."""

    spec: Spec
    label: str
    keys: Sequence[tuple[str, str]] = ()


def draw_band(rows: pd.DataFrame, value: str, limit: float, label: str) -> Picture:
    """`value` (a ratio) of five minutes each in the order of time, in bins, against a limit."""
    bins = binned(rows, value)
    known = bins["values"] > 0
    told = bins.assign(
        when=[between(start, end) for start, end in zip(bins["start"], bins["end"], strict=True)],
        least=bins["low"].map(times),
        half=bins["middle"].map(times),
        most=bins["high"].map(times),
    )
    tips = {"when": "UTC", "most": "highest", "half": "median", "least": "lowest"}
    top = max(limit, float(bins["high"].max()))
    low, middle = (_y(field, top, bottom=1.0) for field in ("low", "middle"))
    spec = _spec(
        _closed(told, "middle"),
        [
            _layer({"type": "area", "style": "band", "interpolate": "step-after"}, _x(), low, y2="high"),
            _layer({"type": "line", "style": "middle", "interpolate": "step-after"}, _x(), middle),
            _limit(limit),
            _strips(told[known], tips),
        ],
    )
    return Picture(spec, label, _band_keys(bins, f"{times(limit)}, above which load counts as uneven"))


def _band_keys(bins: pd.DataFrame, limit: str) -> list[tuple[str, str]]:
    minutes = int(bins["end"].iloc[0] - bins["start"].iloc[0]) // 60_000
    if bins["values"].max() == 1:
        return [("middle", "each 5 minutes"), ("limit", limit)]
    length = f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:g} hours"  # noqa: PLR2004 - as people say it
    return [("middle", f"median of {length}"), ("band", "lowest to highest 5 minutes in them"), ("limit", limit)]


def draw_heat(rows: pd.DataFrame, key: str, value: str, *, of_limit: bool, label: str) -> Picture:
    """`value` by `key` over time, a row for each key in the order given; the mean is told beside the highest."""
    said = "format(datum.{}, '.1%')" if of_limit else "format(datum.{}, '.3s') + 'B/s'"
    length_ms = int(rows["end"].iloc[0] - rows["start"].iloc[0])
    unit = "5 minutes" if of_limit or length_ms < HOUR_MS else "hour"
    names = list(dict.fromkeys(rows[key]))
    short = "'…' + slice(datum.label, -21, -11)" if key == "bundle" else "truncate(datum.label, 12)"
    axis = {
        "labelExpr": f"{_NARROW} ? {short} : datum.label",
        "labelLimit": 320,
        "title": None,
        "domain": False,
        "ticks": False,
    }
    scale: Spec = {"domain": [0, max(1.0, float(rows[value].max()))]} if of_limit else {"domainMin": 0}
    legend = {
        "labelExpr": "format(datum.value, '.0%')" if of_limit else "format(datum.value, '~s') + 'B/s'",
        "title": None,
        "orient": "bottom",
        "gradientLength": 160,
        "gradientThickness": 8,
    }
    encoding = {
        "x": {**_x()["x"], "field": "start"},
        "x2": {"field": "end"},
        "y": {"field": key, "type": "nominal", "sort": names, "axis": axis},
        "color": {"field": value, "type": "quantitative", "scale": scale, "legend": legend},
        "tooltip": _tips({key: key, "when": "UTC", "most": f"highest {unit}", "usual": "mean"}),
    }
    transform = [
        {"calculate": f"datum.start + {length_ms}", "as": "end"},
        {
            "calculate": "utcFormat(datum.start, '%Y-%m-%d %H:%M') + ' to ' + utcFormat(datum.end, '%H:%M')",
            "as": "when",
        },
        {"calculate": said.format("high"), "as": "most"},
        {"calculate": said.format("mean"), "as": "usual"},
    ]
    cells = {"transform": transform, "mark": "rect", "encoding": encoding}
    return Picture(_spec(rows[[key, "start", "mean", "high"]], [cells], _ROW * len(names)), label)


def draw_moves(moves: pd.DataFrame, label: str) -> Picture:
    """The imbalance after moves, as predicted and as measured, counted by cells; on the line they are equal."""
    both = moves[["predicted_after", "measured_after"]].to_numpy(dtype=np.float64)
    low, high = float(both.min()), float(both.max())
    cell = (high - low) / _MOST_CELLS or 1.0
    cells = np.minimum((both - low) // cell, _MOST_CELLS - 1)
    counted = pd.DataFrame(low + (cells + 0.5) * cell, columns=["predicted", "measured"])
    found = counted.groupby(["predicted", "measured"]).size().reset_index(name="moves")
    told = found.assign(
        foreseen=found["predicted"].map(times), came=found["measured"].map(times), count=found["moves"].map(number)
    )
    scale = {"domain": [low - cell, high + cell], "nice": False, "zero": False}
    axes = [
        {"field": field, "type": "quantitative", "scale": scale, "title": title, "axis": {"tickCount": 5}}
        for field, title in (("predicted", "imbalance as predicted"), ("measured", "as measured"))
    ]
    tips = _tips({"foreseen": "predicted", "came": "measured", "count": "moves"})
    dots = {
        "mark": {"type": "circle", "style": "dot"},
        "encoding": {
            "x": axes[0],
            "y": axes[1],
            "size": {"field": "moves", "type": "quantitative", "scale": {"range": [20, 400]}, "legend": None},
            "tooltip": tips,
        },
    }
    line = pd.DataFrame({"predicted": [low, high], "measured": [low, high]})
    equal = {"data": _data(line), "mark": {"type": "line", "style": "limit"}, "encoding": {"x": axes[0], "y": axes[1]}}
    return Picture(
        _spec(told, [equal, dots]), label, [("dot", "moves; larger: more of them"), ("limit", "as predicted")]
    )


def draw_forecast(actual: pd.DataFrame, forecast: pd.DataFrame, label: str) -> Picture:
    """`start_ms` and `load` as it was, and `start_ms`, `q10`, `q50`, `q90` as forecast, in MB/s."""
    hours = range(int(actual["start_ms"].min()), int(actual["start_ms"].max()) + 1, HOUR_MS)
    rows = pd.DataFrame({"start_ms": hours}).merge(actual[["start_ms", "load"]], "left").merge(forecast, "left")
    megabytes = {"load": "came", "q90": "most", "q50": "expected", "q10": "least"}
    said = {to: rows[of].map(lambda each: "" if pd.isna(each) else rate(each * 1e6)) for of, to in megabytes.items()}
    told = rows.assign(
        start=rows["start_ms"], end=rows["start_ms"] + HOUR_MS, when=rows["start_ms"].map(moment), **said
    )
    told = told.drop(columns="start_ms")
    top = float(rows[["load", "q90"]].max().max())
    tips = {"when": "UTC", "came": "came", "expected": "forecast", "most": "9 of 10 below", "least": "1 of 10 below"}
    ahead = told.dropna(subset="q50")
    spec = _spec(
        told,
        [
            _layer({"type": "area", "style": "ahead-band"}, _x(), _y("q10", top, "MB/s"), y2="q90")
            | {"data": _data(ahead)},
            _layer({"type": "line", "style": "ahead"}, _x(), _y("q50", top, "MB/s")) | {"data": _data(ahead)},
            _layer({"type": "line", "style": "middle"}, _x(), _y("load", top, "MB/s")),
            _strips(told, tips),
        ],
        180,
    )
    return Picture(
        spec, label, [("middle", "what came"), ("ahead", "forecast the day before"), ("ahead-band", "8 of 10 between")]
    )


def draw_capacity(capacity: pd.DataFrame, quantiles: Sequence[float], label: str) -> Picture:
    """Brokers needed by day, for the lowest, the middle and the highest of the quantiles, against those there are."""
    days = capacity.pivot_table(index="start_ms", columns="quantile", values="needed", aggfunc="first").astype(float)
    low, middle, high = (days[each] for each in quantiles)
    have = float(capacity["have"].iloc[0])
    told = pd.DataFrame({"low": low, "middle": middle, "high": high}).reset_index(names="start")
    told = told.assign(
        end=told["start"] + 24 * HOUR_MS,
        when=told["start"].map(moment).str[:10],
        least=told["low"].map(number),
        half=told["middle"].map(number),
        most=told["high"].map(number),
        there=number(have),
    )
    top = max(have, float(capacity["needed"].max()))
    y = _y("middle", top, "brokers", {"tickMinStep": 1}, bottom=0)
    tips = {"when": "day", "most": "9 of 10 below", "half": "needed", "least": "1 of 10 below", "there": "there are"}
    spec = _spec(
        _closed(told, "middle"),
        [
            _layer(
                {"type": "area", "style": "ahead-band", "interpolate": "step-after"},
                _x(),
                _y("low", top, "brokers", {"tickMinStep": 1}, bottom=0),
                y2="high",
            ),
            _layer({"type": "line", "style": "ahead", "interpolate": "step-after"}, _x(), y),
            _limit(have),
            _strips(told, tips),
        ],
    )
    return Picture(
        spec, label, [("ahead", "needed"), ("ahead-band", "8 of 10 between"), ("limit", f"there are {number(have)}")]
    )


def draw_bars(rows: pd.DataFrame, name: str, value: str, by: str, label: str) -> Picture:
    """A part of one by name, a bar for each of `by`."""
    told = rows[[name, by, value]].assign(much=rows[value].map(share))
    names, kinds = list(dict.fromkeys(rows[name])), list(dict.fromkeys(rows[by]))
    axis = {"title": None, "labelLimit": {"expr": f"{_NARROW} ? 130 : 320"}, "domain": False, "ticks": False}
    encoding = {
        "y": {"field": name, "type": "nominal", "sort": names, "axis": axis},
        "yOffset": {"field": by, "type": "nominal", "sort": kinds},
        "x": {"field": value, "type": "quantitative", "axis": {"format": "~%", "title": None, "tickCount": 5}},
        "color": {
            "field": by,
            "type": "nominal",
            "sort": kinds,
            "legend": {"title": None, "orient": "top"} if len(kinds) > 1 else None,
        },
        "tooltip": _tips({name: name, by: by, "much": "of the time"}),
    }
    return Picture(
        _spec(told, [{"mark": "bar", "encoding": encoding}], max(60, 14 * len(told) + 8 * len(names))), label
    )


def _spec(rows: pd.DataFrame, layers: Sequence[Spec], height: int = _HEIGHT) -> Spec:
    return {
        "$schema": _SCHEMA,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": _data(rows),
        "layer": list(layers),
    }


def _closed(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """With a row more at the end of each stretch that is known: steps need it."""
    is_last = rows[value].notna() & rows[value].shift(-1).isna()
    return pd.concat([rows[is_last].assign(start=rows["end"]), rows]).sort_values("start", kind="stable")


def _data(rows: pd.DataFrame) -> Spec:
    """As CSV, which takes a third of the room of JSON. What is no number is none, and breaks a line."""
    numbers = [name for name, values in rows.items() if pd.api.types.is_numeric_dtype(values)]
    text = rows.to_csv(index=False, float_format="%.5g")
    return {"values": text, "format": {"type": "csv", "parse": dict.fromkeys(numbers, "number")}}


def _layer(mark: Spec, x: Spec, y: Spec, y2: str | None = None) -> Spec:
    return {"mark": mark, "encoding": {**x, **y, **({"y2": {"field": y2}} if y2 else {})}}


def _x() -> Spec:
    axis = {
        "title": None,
        "labelExpr": _TIMES,
        "labelOverlap": True,
        "tickCount": {"expr": f"{_NARROW} ? 4 : 9"},
        "grid": False,
    }
    return {"x": {"field": "start", "type": "temporal", "scale": {"type": "utc"}, "axis": axis}}


def _y(
    field: str, top: float, title: str | None = None, axis: Mapping[str, Any] | None = None, bottom: float | None = None
) -> Spec:
    scale = {"domainMax": top} | ({"domainMin": bottom} if bottom is not None else {"zero": title is not None})
    return {
        "y": {
            "field": field,
            "type": "quantitative",
            "scale": scale,
            "axis": {"title": title, "tickCount": 5, **(axis or {})},
        }
    }


def _limit(at: float) -> Spec:
    return {"mark": {"type": "rule", "style": "limit"}, "encoding": {"y": {"datum": at}}}


def _strips(rows: pd.DataFrame, tips: Mapping[str, str]) -> Spec:
    """What is told of each bin, anywhere above or below it."""
    under = {"name": "under", "select": {"type": "point", "on": "pointerover", "clear": "pointerout"}}
    lit = {"condition": {"param": "under", "empty": False, "value": 0.12}, "value": 0}
    return {
        "data": _data(rows[["start", "end", *tips]]),
        "params": [under],
        "mark": {"type": "rect", "style": "strip"},
        "encoding": {
            **_x(),
            "x2": {"field": "end"},
            "y": {"value": 0},
            "y2": {"value": "height"},
            "opacity": lit,
            "tooltip": _tips(tips),
        },
    }


def _tips(titles: Mapping[str, str]) -> list[Spec]:
    return [{"field": field, "type": "nominal", "title": title} for field, title in titles.items()]
