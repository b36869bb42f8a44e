"""One page with what the pipeline found: figures in it, nothing to be fetched; and the same as CSV beside it.

`collect` reads the tables, as much of them as fits a page; `make_report` is pure. A section without anything to show
says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.pipeline.averages import SHORTEST_S
from loadmanager.pipeline.balance import IMBALANCE_THRESHOLD
from loadmanager.pipeline.forecast import HOUR_MS, QUANTILES, Panel, judge
from loadmanager.pipeline.forecast import forecast as forecast_panel
from loadmanager.pipeline.plots import (
    plot_brokers,
    plot_capacity,
    plot_forecast,
    plot_imbalance,
    plot_league,
    plot_moves,
)
from loadmanager.pipeline.writing import Tables

PAGE = "index.html"
_MOST_TIMES = 400
_MOST_CSV_ROWS = 100_000
_SHOWN_ROWS = 25
_FORECAST_NAMESPACES = 3
_HELD_OUT_H = 24
_HORIZON_H = 24
_MB = 1e6

Contents = Mapping[str, pd.DataFrame]
"""What was read, by table; a table that was never written is absent."""


@dataclass(frozen=True, slots=True)
class About:
    """Where the report comes from; `recommended` is the configuration file, if one was made."""

    run: str
    history: str
    from_ms: int | None
    to_ms: int | None
    notes: Sequence[str] = ()
    recommended: str | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page. Without figures, text and rows `empty` is said instead."""

    name: str
    title: str
    about: str
    figures: Sequence[str] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    empty: str = ""
    text: str = ""

    @property
    def has_something(self) -> bool:
        return bool(self.figures or self.text) or any(len(frame) for frame in self.tables.values())


def collect(tables: Tables) -> Contents:
    """What the page is made of."""
    readers: dict[str, Callable[[DataFrame], DataFrame]] = {
        "imbalance": lambda rows: rows.orderBy("start_ms"),
        "time_above": lambda rows: rows.orderBy("what", f.desc("share"), "subject"),
        "hot_bundles": lambda rows: rows.orderBy(f.desc("start_ms"), "rank"),
        "namespace_skew": lambda rows: rows.orderBy(f.desc("start_ms"), f.desc("load")),
        "inconsistent_brokers": lambda rows: rows.orderBy(f.desc("inconsistent"), "broker", "what"),
        "move_effects": lambda rows: rows.orderBy("epoch", "sequence"),
        "flapping": lambda rows: rows.orderBy(f.desc("returns"), f.desc("moves"), "bundle"),
        "backtest": lambda rows: rows.orderBy(f.desc("kind"), "key", "metric", "horizon_h"),
        "forecasts": lambda rows: rows.where(f.col("kind") == "namespace").orderBy("key", "metric", "start_ms"),
        "capacity": lambda rows: rows.orderBy("start_ms", "quantile"),
        "advice": lambda rows: rows.orderBy("kind", "subject"),
        "cost_models": lambda rows: rows.orderBy("broker_class", "resource"),
        "league": lambda rows: rows.orderBy("fleet", "place"),
        "paired_differences": lambda rows: rows.orderBy("fleet", "metric", "configuration", "other"),
        "scenarios": lambda rows: rows.orderBy("scenario"),
        "rejected_rows": lambda rows: rows.orderBy(f.desc("count"), "table", "reason", "file"),
    }
    read = {
        name: narrowed(tables.read(name)).limit(_MOST_CSV_ROWS).toPandas()
        for name, narrowed in readers.items()
        if tables.has(name)
    }
    if tables.has("broker_windows"):
        read |= _brokers(tables.read("broker_windows"))
    if tables.has("namespace_windows"):
        read["namespace_hours"] = _namespace_hours(tables.read("namespace_windows"))
    return read


def _brokers(windows: DataFrame) -> dict[str, pd.DataFrame]:
    """`broker_usage`, over time but in not more times than the page has room for; `brokers`, over all time."""
    short = windows.where(f.col("window_s") == SHORTEST_S)
    span = short.agg(f.max("start_ms") - f.min("start_ms")).first()
    windows_known = 1 if span is None or span[0] is None else 1 + span[0] // (SHORTEST_S * 1000)
    length_ms = SHORTEST_S * 1000 * -(-windows_known // _MOST_TIMES)
    binned = (f.floor(f.col("start_ms") / length_ms) * length_ms).cast("long").alias("start_ms")
    usage = short.groupBy("broker", binned).agg(f.max("mean_usage").alias("usage")).orderBy("broker", "start_ms")
    load = _load_of("mean")
    brokers = short.groupBy("broker").agg(
        (f.sum(f.col("mean_usage") * f.col("covered_s")) / f.sum("covered_s")).alias("mean_usage"),
        f.max("max_usage").alias("max_usage"),
        (f.sum(load * f.col("covered_s")) / f.sum("covered_s") / _MB).alias("mean_mb_s"),
        f.max(_load_of("max") / _MB).alias("max_mb_s"),
        (f.sum("covered_s") / 3600).alias("hours"),
    )
    return {
        "broker_usage": usage.limit(_MOST_CSV_ROWS).toPandas(),
        "brokers": brokers.orderBy(f.desc("mean_usage"), "broker").limit(_MOST_CSV_ROWS).toPandas(),
    }


def _namespace_hours(windows: DataFrame) -> pd.DataFrame:
    """MB/s by hour of the namespaces with the most load."""
    hourly = windows.where(f.col("window_s") == HOUR_MS // 1000)
    load = (_load_of("mean") / _MB).alias("load")
    most = hourly.groupBy("namespace").agg(f.sum(_load_of("mean")).alias("total")).orderBy(f.desc("total"), "namespace")
    names = most.limit(_FORECAST_NAMESPACES).select("namespace")
    rows = hourly.join(f.broadcast(names), "namespace", "left_semi").select("namespace", "start_ms", load)
    found: pd.DataFrame = rows.orderBy("namespace", "start_ms").toPandas()
    return found


def _load_of(statistic: str) -> Column:
    return f.col(f"{statistic}_msg_throughput_in") + f.col(f"{statistic}_msg_throughput_out")


def make_report(contents: Contents, about: About) -> dict[str, bytes]:
    """The files of a report by their names: the page, and each of its tables."""
    sections = make_sections(contents, about)
    files = {PAGE: _page(sections, about).encode()}
    for section in sections:
        for name, frame in section.tables.items():
            files[f"{name}.csv"] = _readable(frame).to_csv(index=False).encode()
    return files


def make_sections(contents: Contents, about: About) -> list[Section]:
    return [
        _imbalance(contents),
        _of_brokers(contents),
        _bundles(contents),
        _moves(contents),
        _forecast(contents),
        _capacity(contents),
        _advice(contents),
        _league(contents, about),
        _costs(contents),
        _rejected(contents, about),
    ]


def _imbalance(contents: Contents) -> Section:
    rows = _of(contents, "imbalance")
    return Section(
        "imbalance",
        "Imbalance over time",
        "Load (bytes/s, in and out) of the busiest broker divided by the mean of all, every 5 minutes.",
        [plot_imbalance(rows, IMBALANCE_THRESHOLD)] if len(rows) else [],
        {"time_above": _of(contents, "time_above"), "imbalance": rows},
        _why_empty(contents, "imbalance", "balance", "no broker reported in the range"),
    )


def _of_brokers(contents: Contents) -> Section:
    usage = _of(contents, "broker_usage")
    return Section(
        "brokers",
        "Brokers",
        "The highest usage of CPU, direct memory and bandwidth, as a part of the limit, over time.",
        [plot_brokers(usage)] if len(usage) else [],
        {"brokers": _of(contents, "brokers"), "inconsistent_brokers": _of(contents, "inconsistent_brokers")},
        _why_empty(contents, "broker_usage", "averages", "no broker reported in the range"),
    )


def _bundles(contents: Contents) -> Section:
    return Section(
        "bundles",
        "Hot bundles and skew",
        "The bundles of each day with the most load, and how unevenly namespaces are spread over their bundles.",
        (),
        {"hot_bundles": _of(contents, "hot_bundles"), "namespace_skew": _of(contents, "namespace_skew")},
        _why_empty(contents, "hot_bundles", "balance", "no bundle carried anything in the range"),
    )


def _moves(contents: Contents) -> Section:
    effects = _of(contents, "move_effects")
    told = effects.dropna(subset=["predicted_after", "measured_after"]) if len(effects) else effects
    return Section(
        "moves",
        "Moves",
        "What moves were predicted to bring against what was measured, and bundles that went to and fro.",
        [plot_moves(told)] if len(told) else [],
        {"move_effects": effects, "flapping": _of(contents, "flapping")},
        _why_empty(contents, "move_effects", "balance", "nothing was moved in the range, or no leader recorded it"),
    )


def _forecast(contents: Contents) -> Section:
    hours, figures, reasons = _of(contents, "namespace_hours"), list[str](), list[str]()
    for namespace, rows in hours.groupby("namespace", sort=False) if len(hours) else ():
        found = hold_out(rows)
        if isinstance(found, str):
            reasons.append(f"{namespace}: {found}")
        else:
            week = rows[rows["start_ms"] >= rows["start_ms"].max() - 168 * HOUR_MS]
            figures.append(plot_forecast(week, found, str(namespace)))
    empty = _why_empty(contents, "namespace_hours", "averages", "no namespace carried anything in the range")
    return Section(
        "forecast",
        "Forecast against actual",
        f"The last {_HELD_OUT_H} hours of the busiest namespaces as they would have been forecast the day before, and"
        " what came; below, the error of the back-test against the best baseline, and the forecast of each namespace.",
        figures,
        {"backtest": _of(contents, "backtest"), "forecasts": _of(contents, "forecasts")},
        empty,
        "" if figures or not reasons else _paragraph(f"Nothing to compare yet. {'. '.join(reasons)}."),
    )


def hold_out(rows: pd.DataFrame) -> pd.DataFrame | str:
    """The last day forecast by what was known before it: `start_ms`, `q10`, `q50`, `q90`; or why there is none.

    `rows` are the hours of one series: `start_ms` and `load`.
    """
    first_ms, last_ms = int(rows["start_ms"].min()), int(rows["start_ms"].max())
    hours = (last_ms - first_ms) // HOUR_MS + 1
    if hours <= _HELD_OUT_H:
        return f"{hours} hours are known, more than {_HELD_OUT_H} are needed"
    load = np.full((1, hours), np.nan)
    load[0, ((rows["start_ms"] - first_ms) // HOUR_MS).to_numpy(dtype=np.int64)] = rows["load"].to_numpy(
        dtype=np.float64
    )
    known = Panel(load[:, :-_HELD_OUT_H], first_ms // HOUR_MS)
    tested = judge(known)
    (made,) = forecast_panel(known, tested)
    parts = [values for horizon, values in sorted(made.items()) if horizon <= _HORIZON_H]
    if not parts:
        return next(each.why for each in tested.judgements[0].values())
    quantiles = np.concatenate(parts, axis=-1)
    begins_ms = last_ms + HOUR_MS - _HELD_OUT_H * HOUR_MS + (_HELD_OUT_H - quantiles.shape[1]) * HOUR_MS
    start_ms = begins_ms + np.arange(quantiles.shape[1]) * HOUR_MS
    return pd.DataFrame({"start_ms": start_ms, "q10": quantiles[0], "q50": quantiles[1], "q90": quantiles[2]})


def _capacity(contents: Contents) -> Section:
    rows = _of(contents, "capacity")
    figures, text = [], ""
    if len(rows):
        median = rows[rows["quantile"] == QUANTILES[1]]
        ends = median["exhausted_on"].dropna()
        end = f"is too small from {ends.iloc[0]} on" if len(ends) else f"will do for the next {len(median)} days"
        one_less = median["exhausted_on_n1"].dropna()
        if len(one_less):
            end += f", and without any one broker from {one_less.iloc[0]} on"
        last = median.iloc[-1]
        text = _paragraph(
            f"By the median forecast the fleet of {last['have']} brokers {end}, with {last['headroom']:.0%} of each"
            f" broker kept free; {last['resource_first']} is first to run out. Known: {last['basis']}."
        )
        if rows["needed"].notna().any():
            figures.append(plot_capacity(rows, QUANTILES))
    return Section(
        "capacity",
        "Capacity",
        "Brokers needed on each of the next days, with the headroom asked for.",
        figures,
        {"capacity": rows},
        _why_empty(contents, "capacity", "capacity", "no hour of the range is known, or no limit of any broker"),
        text,
    )


def _advice(contents: Contents) -> Section:
    return Section(
        "advice",
        "Advice",
        "What the history suggests to change, each with its evidence.",
        (),
        {"advice": _of(contents, "advice")},
        _why_empty(contents, "advice", "advice", "there is nothing to advise"),
    )


def _league(contents: Contents, about: About) -> Section:
    rows = _of(contents, "league")
    told = "" if about.recommended is None or not len(rows) else f"<pre>{escape(about.recommended)}</pre>"
    return Section(
        "league",
        "What if: the league of configurations",
        "Each configuration replayed over the range, best first; differences between pairs with their 95 % intervals;"
        " and the configuration recommended.",
        [plot_league(rows)] if len(rows) else [],
        {
            "league": rows,
            "paired_differences": _of(contents, "paired_differences"),
            "scenarios": _of(contents, "scenarios"),
        },
        _why_empty(contents, "league", "whatif", "nothing was replayed"),
        told,
    )


def _costs(contents: Contents) -> Section:
    return Section(
        "costs",
        "Cost models",
        "What load costs a broker, by class of brokers and resource, with the error on reports that were held out.",
        (),
        {"cost_models": _of(contents, "cost_models")},
        _why_empty(contents, "cost_models", "capacity", "no broker reported in the range"),
    )


def _rejected(contents: Contents, about: About) -> Section:
    notes = "".join(f"<li>{escape(each)}</li>" for each in about.notes)
    return Section(
        "rejected",
        "Rejected rows",
        "What could not be counted on, by reason and file.",
        (),
        {"rejected_rows": _of(contents, "rejected_rows")},
        _why_empty(contents, "rejected_rows", "ingest", "every row of the range can be counted on"),
        f"<ul>{notes}</ul>" if notes else "",
    )


def _of(contents: Contents, table: str) -> pd.DataFrame:
    return contents.get(table, pd.DataFrame())


def _why_empty(contents: Contents, table: str, step: str, why: str) -> str:
    if table not in contents:
        return f"Not known: the step {step} has not been run."
    return f"{why[0].upper()}{why[1:]}."


def _page(sections: Iterable[Section], about: About) -> str:
    sections = list(sections)
    links = " ".join(f'<a href="#{each.name}">{escape(each.title)}</a>' for each in sections)
    known = f"{_time(about.from_ms)} to {_time(about.to_ms)}" if about.from_ms is not None else "a range not known"
    head = f"{escape(about.history)}, {known}; run {escape(about.run)}"
    return _PAGE.format(style=_STYLE, about=head, links=links, sections="\n".join(map(_section, sections)))


def _section(section: Section) -> str:
    parts = [f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{_paragraph(section.about)}']
    if section.has_something:
        parts += [section.text, *(f"<figure>{each}</figure>" for each in section.figures)]
        parts += [_table(name, frame) for name, frame in section.tables.items() if len(frame)]
    else:
        parts.append(f'<p class="empty">{escape(section.empty)}</p>')
    return "".join([*parts, "</section>"])


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _table(name: str, frame: pd.DataFrame) -> str:
    """The first rows; all of them are in the file beside the page."""
    shown = _readable(frame.head(_SHOWN_ROWS))
    head = "".join(f"<th>{escape(str(column))}</th>" for column in shown.columns)
    rows = "".join(
        f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in shown.itertuples(index=False, name=None)
    )
    more = f"the first {len(shown):,} of {len(frame):,} rows" if len(frame) > len(shown) else f"{len(frame):,} rows"
    caption = f'<caption><a href="{name}.csv">{name}.csv</a>, {more}</caption>'
    return f'<div class="table"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _readable(frame: pd.DataFrame) -> pd.DataFrame:
    """With times as people read them."""
    times = [name for name in frame.columns if str(name).endswith("_ms")]
    found = frame.assign(**{name: frame[name].map(_time) for name in times})
    return found.rename(columns={name: name.removesuffix("_ms") for name in times})


def _cell(value: object) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)) or value is pd.NA:
        return "<td></td>"
    if isinstance(value, (bool, np.bool_)):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, (int, np.integer)):
        return f'<td class="number">{value:,}</td>'
    if isinstance(value, (float, np.floating)):
        return f'<td class="number">{value:,.4g}</td>'
    return f"<td>{escape(str(value))}</td>"


def _time(at_ms: float | None) -> str:
    if at_ms is None or pd.isna(at_ms):
        return ""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff; margin: 0 auto; max-width: 1080px;
       padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.2rem; margin: 0 0 .3rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: 1rem 0; font-size: .9rem; }
a { color: #2563a8; text-decoration: none; } a:hover { text-decoration: underline; }
section { border-top: 1px solid #e4e7eb; padding: 1.2rem 0; } p { margin: .2rem 0 .8rem; max-width: 75ch; }
figure { margin: 0 0 1rem; } figure svg, figure img { max-width: 100%; height: auto; }
.table { overflow-x: auto; margin: 0 0 1rem; }
table { border-collapse: collapse; font-size: .82rem; } caption { text-align: left; color: #616e7c; padding: .2rem 0; }
th, td { text-align: left; padding: .2rem .7rem .2rem 0; border-bottom: 1px solid #eef0f2; vertical-align: top; }
th { color: #616e7c; font-weight: 600; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.empty { color: #616e7c; font-style: italic; } .about { color: #616e7c; }
pre { background: #f5f7fa; padding: .8rem; overflow-x: auto; font-size: .82rem; }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>What the fleet's history says</title><style>{style}</style></head>
<body><header><h1>What the fleet's history says</h1><p class="about">{about}</p><nav>{links}</nav></header>
{sections}
</body>
</html>
"""
