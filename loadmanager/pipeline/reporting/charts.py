"""Charts of the report as Vega-Lite specifications: figures and marks, no colours.

A mark names a style; `page/page.js` has the colours of each style, light and dark. Time axes cover known time only, and
nothing is drawn where nothing is known. Invisible strips over the whole height carry the tooltips, one for each bin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.reporting.contents import bin_length_ms
from loadmanager.pipeline.reporting.units import between, moment, number, rate, share, span, times
from loadmanager.pipeline.windows import SHORTEST_S

Spec = dict[str, Any]

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_HEIGHT, _ROW = 220, 16
_MOST_CELLS = 40
_NARROW_LABEL, _WIDE_LABEL = 16, 44
"""Characters of an axis label on a phone and on a screen."""
_NARROW = "containerSize()[0] < 520"
_HOURS = "utcFormat(datum.value, {hours: '%H:%M', minutes: '%H:%M'})"
"""Vega's own hours are those of a 12-hour clock."""
_WHEN = "utcFormat(datum.start, '%Y-%m-%d %H:%M') + utcFormat(datum.end, ' to %H:%M')"


@dataclass(frozen=True, slots=True)
class Chart:
    """A specification, its accessible label, and its legend: pairs of a style and a text."""

    spec: Spec
    label: str
    keys: Sequence[tuple[str, str]] = ()


def distinct_labels(names: Sequence[str], most: int) -> list[str]:
    """Shorten names in the middle to `most` characters, or to as many as keep all of them distinct."""
    longest = max(map(len, names), default=0)
    for length in range(most, longest):
        for head in sorted(range(length), key=lambda head: abs(2 * head - length)):
            tail = length - 1 - head
            labels = [n if len(n) <= length else f"{n[:head]}…{n[len(n) - tail :]}" for n in names]
            if len(set(labels)) == len(set(names)):
                return labels
    return list(names)


def binned(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """Bin windows of five minutes: `start`, `end` (ms) of known time, `low`, `middle`, `high`, `values` (a count)."""
    start, length_ms = rows["start_ms"], SHORTEST_S * 1000
    bins = start // bin_length_ms(int(start.max() - start.min()) + length_ms)
    found = rows.groupby(bins).agg(
        start=("start_ms", "min"),
        end=("start_ms", "max"),
        low=(value, "min"),
        middle=(value, "median"),
        high=(value, "max"),
        values=(value, "count"),
    )
    return found.assign(end=found["end"] + length_ms).reset_index(drop=True)


def draw_band(rows: pd.DataFrame, value: str, limit: float, label: str) -> Chart:
    """Draw a ratio over time, known for windows of five minutes, against a limit."""
    bins = binned(rows, value)
    shown = bins.assign(
        when=list(map(between, bins["start"], bins["end"])),
        **{f"{name}_text": bins[name].map(times) for name in ("low", "middle", "high")},
    )
    tips = {"when": "UTC", "high_text": "highest", "middle_text": "median", "low_text": "lowest"}
    y = _y(max(limit, float(bins["high"].max())), bottom=1.0)
    length = span(float((bins["end"] - bins["start"]).max()) / 1000)
    binned_keys = [("middle", f"median of {length}"), ("band", "lowest to highest 5 minutes")]
    keys = binned_keys if bins["values"].max() > 1 else [("middle", "5 minutes")]
    keys.append(("limit", f"{times(limit)}, uneven above it"))
    return Chart(_ranges(shown, "band", "middle", y, tips, limit), label, keys)


def draw_heat(rows: pd.DataFrame, key: str, value: str, *, of_limit: bool, label: str) -> Chart:
    """Draw `value` of each key over time, one row for each key in the given order."""
    unit = "hour" if not of_limit and (rows["end"] - rows["start"]).max() >= HOUR_MS else "5 minutes"
    text = "format(datum.{}, '.1%')" if of_limit else "format(datum.{}, '.3s') + 'B/s'"
    names = list(dict.fromkeys(rows[key]))
    ticks = "format(datum.value, '.0%')" if of_limit else "format(datum.value, '~s') + 'B/s'"
    legend = {"labelExpr": ticks, "title": None, "orient": "bottom", "gradientLength": 160, "gradientThickness": 8}
    scale: Spec = {"domain": [0, max(1.0, float(rows[value].max()))]} if of_limit else {"domainMin": 0}
    texts = [{"calculate": text.format(name), "as": f"{name}_text"} for name in ("high", "mean")]
    cells = _layer(
        "rect",
        x=_x(rows),
        x2={"field": "end"},
        y={"field": key, "type": "nominal", "sort": names, "axis": _names_axis(names)},
        color={"field": value, "type": "quantitative", "scale": scale, "legend": legend},
        tooltip=_tips({key: key, "when": "UTC", "high_text": f"highest {unit}", "mean_text": "mean"}),
    )
    cells["transform"] = [{"calculate": _WHEN, "as": "when"}, *texts]
    return Chart(_spec(rows[[key, "start", "end", "mean", "high"]], [cells], _ROW * len(names)), label)


def draw_moves(moves: pd.DataFrame, label: str) -> Chart:
    """Draw the imbalance after moves, predicted against measured, as counts by cell."""
    both = moves[["predicted_after", "measured_after"]].to_numpy(dtype=np.float64)
    low, high = float(both.min()), float(both.max())
    cell = (high - low) / _MOST_CELLS or 1.0
    middle = low + (np.minimum((both - low) // cell, _MOST_CELLS - 1) + 0.5) * cell
    cells = pd.DataFrame(middle, columns=["predicted", "measured"]).value_counts().reset_index(name="moves")
    shown = cells.assign(**{f"{name}_text": cells[name].map(times) for name in ("predicted", "measured")})
    scale = {"domain": [low - cell, high + cell], "nice": False, "zero": False}
    x, y = (
        {"field": name, "type": "quantitative", "scale": scale, "title": f"{name} imbalance", "axis": {"tickCount": 5}}
        for name in ("predicted", "measured")
    )
    size = {"field": "moves", "type": "quantitative", "scale": {"range": [20, 400]}, "legend": None}
    tips = _tips({"predicted_text": "predicted", "measured_text": "measured", "moves": "moves"})
    dots = _layer({"type": "circle", "style": "dot"}, x=x, y=y, size=size, tooltip=tips)
    line = pd.DataFrame({"predicted": [low, high], "measured": [low, high]})
    equal = {"data": _data(line), **_layer({"type": "line", "style": "limit"}, x=x, y=y)}
    return Chart(_spec(shown, [equal, dots]), label, [("dot", "moves, larger for more"), ("limit", "as predicted")])


def draw_forecast(actual: pd.DataFrame, forecast: pd.DataFrame, label: str) -> Chart:
    """Draw hourly load (`start_ms`, `load`) and its forecast (`start_ms`, `q10`, `q50`, `q90`), in MB/s."""
    hours = range(int(actual["start_ms"].min()), int(forecast["start_ms"].max()) + 1, HOUR_MS)
    rows = pd.DataFrame({"start_ms": hours}).merge(actual[["start_ms", "load"]], "left").merge(forecast, "left")
    figures = ("load", "q10", "q50", "q90")
    texts = {f"{name}_text": rows[name].map(lambda load: "" if pd.isna(load) else rate(load * 1e6)) for name in figures}
    start = rows.pop("start_ms")
    rows = rows.assign(start=start, end=start + HOUR_MS, when=start.map(moment), **texts)
    x, y = _x(rows), _y(float(rows[["load", "q90"]].max().max()), "MB/s")
    tips = {"when": "UTC", "load_text": "load", "q50_text": "forecast", "q90_text": "90 %", "q10_text": "10 %"}
    ahead = {"data": _data(rows.dropna(subset="q50")[["start", *figures[1:]]])}
    layers = [
        ahead | _layer({"type": "area", "style": "ahead-band"}, x=x, y=y | {"field": "q10"}, y2={"field": "q90"}),
        ahead | _layer({"type": "line", "style": "ahead"}, x=x, y=y | {"field": "q50"}),
        _layer({"type": "line", "style": "middle"}, x=x, y=y | {"field": "load"}),
        _strips(rows[rows["load"].notna() | rows["q50"].notna()], tips),
    ]
    keys = [("middle", "load"), ("ahead", "forecast"), ("ahead-band", "80 % interval")]
    return Chart(_spec(rows[["start", "load"]], layers, 180), label, keys)


def draw_capacity(capacity: pd.DataFrame, label: str) -> Chart:
    """Draw the brokers needed on each day, by quantile of the forecast, against the brokers that are registered."""
    days = capacity.pivot_table("needed", "start_ms", "quantile", "first", dropna=False).astype(float)
    days.columns = pd.Index(["low", "middle", "high"])
    have = float(capacity["have"].iloc[0])
    shown = days.dropna().reset_index(names="start")
    shown = shown.assign(
        end=shown["start"] + 24 * HOUR_MS,
        when=shown["start"].map(moment).str[:10],
        have=number(have),
        **{f"{name}_text": shown[name].map(number) for name in ("low", "middle", "high")},
    )
    y = _y(max(have, float(shown["high"].max())), "brokers", {"tickMinStep": 1}, bottom=0)
    tips = {"when": "day", "middle_text": "needed", "high_text": "90 %", "low_text": "10 %", "have": "registered"}
    keys = [("ahead", "needed"), ("ahead-band", "80 % interval"), ("limit", f"{number(have)} registered")]
    return Chart(_ranges(shown, "ahead-band", "ahead", y, tips, have), label, keys)


def draw_bars(rows: pd.DataFrame, name: str, value: str, by: str, label: str) -> Chart:
    """Draw a share of time by name, one bar for each value of `by`."""
    names, kinds = list(dict.fromkeys(rows[name])), list(dict.fromkeys(rows[by]))
    legend = {"title": None, "orient": "top"} if len(kinds) > 1 else None
    bars = _layer(
        "bar",
        y={"field": name, "type": "nominal", "sort": names, "axis": _names_axis(names)},
        yOffset={"field": by, "type": "nominal", "sort": kinds},
        x={"field": value, "type": "quantitative", "axis": {"format": "~%", "title": None, "tickCount": 5}},
        color={"field": by, "type": "nominal", "sort": kinds, "legend": legend},
        tooltip=_tips({name: name, by: by, "text": "of the time"}),
    )
    shown = rows[[name, by, value]].assign(text=rows[value].map(share))
    height = max(60, 14 * len(shown) + 8 * len(names))
    return Chart(_spec(shown, [bars], height), label)


def _ranges(rows: pd.DataFrame, band: str, middle: str, y: Spec, tips: Mapping[str, str], limit: float) -> Spec:
    """Layer `low` to `high` and `middle` of each bin as steps, with a limit and tooltips; gaps break the steps."""
    x, steps = _x(rows), rows[["start", "end", "low", "middle", "high"]]
    ends = steps[steps["end"] != steps["start"].shift(-1)].assign(start=lambda last: last["end"])
    breaks = ends.assign(low=np.nan, middle=np.nan, high=np.nan)
    steps = pd.concat([steps, ends, breaks]).sort_values("start", kind="stable").drop(columns="end")
    step = {"interpolate": "step-after"}
    layers = [
        _layer({"type": "area", "style": band, **step}, x=x, y=y | {"field": "low"}, y2={"field": "high"}),
        _layer({"type": "line", "style": middle, **step}, x=x, y=y | {"field": "middle"}),
        _layer({"type": "rule", "style": "limit"}, y={"datum": limit}),
        _strips(rows, tips),
    ]
    return _spec(steps, layers)


def _strips(rows: pd.DataFrame, tips: Mapping[str, str]) -> Spec:
    """Return the layer that shows the tooltip of a bin anywhere above or below it."""
    under = {"name": "under", "select": {"type": "point", "on": "pointerover", "clear": "pointerout"}}
    layer = _layer(
        {"type": "rect", "style": "strip"},
        x=_x(rows),
        x2={"field": "end"},
        y={"value": 0},
        y2={"value": "height"},
        tooltip=_tips(tips),
        opacity={"condition": {"param": "under", "empty": False, "value": 0.12}, "value": 0},
    )
    return {"data": _data(rows[["start", "end", *tips]]), "params": [under], **layer}


def _spec(rows: pd.DataFrame, layers: Sequence[Spec], height: int = _HEIGHT) -> Spec:
    return {
        "$schema": _SCHEMA,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": _data(rows),
        "layer": list(layers),
    }


def _data(rows: pd.DataFrame) -> Spec:
    """Encode rows as CSV, a third of the size of JSON. An empty number breaks a line."""
    numbers = [name for name, values in rows.items() if pd.api.types.is_numeric_dtype(values)]
    text = rows.to_csv(index=False, float_format="%.5g")
    return {"values": text, "format": {"type": "csv", "parse": dict.fromkeys(numbers, "number")}}


def _layer(mark: str | Spec, **channels: Spec | list[Spec]) -> Spec:
    return {"mark": mark, "encoding": channels}


def _x(rows: pd.DataFrame) -> Spec:
    """Return the time axis, from the first `start` to the last `end`."""
    first, last = int(rows["start"].min()), int(rows["end"].max())
    scale = {"type": "utc", "domainMin": first, "domainMax": last, "nice": False}
    ticks = {"labelExpr": _HOURS, "labelOverlap": True, "tickCount": {"expr": f"{_NARROW} ? 4 : 9"}}
    axis = {"title": None, "grid": False, **ticks}
    return {"field": "start", "type": "temporal", "scale": scale, "axis": axis}


def _y(
    top: float, title: str | None = None, axis: Mapping[str, Any] | None = None, bottom: float | None = None
) -> Spec:
    scale = {"domainMax": top} | ({"domainMin": bottom} if bottom is not None else {"zero": title is not None})
    return {"type": "quantitative", "scale": scale, "axis": {"title": title, "tickCount": 5, **(axis or {})}}


def _names_axis(names: Sequence[str]) -> Spec:
    """Return an axis with labels that are distinct at every width."""
    narrow, wide = (
        json.dumps(dict(zip(names, distinct_labels(names, most), strict=True))) for most in (_NARROW_LABEL, _WIDE_LABEL)
    )
    label = f"({_NARROW} ? {narrow} : {wide})[datum.label]"
    return {"labelExpr": label, "labelLimit": 400, "title": None, "domain": False, "ticks": False}


def _tips(titles: Mapping[str, str]) -> list[Spec]:
    return [{"field": field, "type": "nominal", "title": title} for field, title in titles.items()]
