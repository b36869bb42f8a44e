"""Sections of the report: a question, its answer, a chart, and folded tables.

A section with too little to show says how much is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pandas as pd

from loadmanager.pipeline.reporting.actions import COMPARED, COMPARED_TEXT
from loadmanager.pipeline.reporting.charts import (
    Chart,
    draw_band,
    draw_bars,
    draw_capacity,
    draw_forecast,
    draw_heat,
    draw_moves,
)
from loadmanager.pipeline.reporting.contents import FORECAST_METRIC, Contents, table
from loadmanager.pipeline.reporting.findings import known_s, median_plan, missing_time, share_of_time, threshold
from loadmanager.pipeline.reporting.units import count, moment, number, rate, share, span, times
from loadmanager.pipeline.step import Summary

_NEAR = 0.1
FEWEST_MOVES, FEWEST_HOURS = 10, 24
"""Measured moves, and back-tested hours, that a share needs."""


class Texts(NamedTuple):
    """Texts of a section: its question, a note, its table with the step that makes it, and the reason for no rows."""

    question: str
    note: str
    table: str
    step: str
    empty: str


TEXTS = {
    "brokers": Texts(
        "Which brokers were busy, and when?",
        "Highest of CPU, direct memory and bandwidth, as a share of its limit; colours are the highest 5 minutes.",
        *("broker_times", "ingest", "No broker reported a usage in the range."),
    ),
    "imbalance": Texts(
        "Was load spread evenly?",
        "Imbalance is the load of the busiest broker divided by the mean of all brokers, in bytes/s, every 5 minutes.",
        *("imbalance", "balance", "No broker reported in the range."),
    ),
    "bundles": Texts(
        "Which bundles carry the load, and when?",
        "Mean load of each bin in bytes/s, of the bundles with the highest load.",
        *("hot_bundles", "balance", "No bundle carried load in the range."),
    ),
    "capacity": Texts(
        "How many brokers do the next days need?",
        "cost_models has what load costs a broker, with the error on held-out reports.",
        *("capacity", "capacity", "The history is too short, or no registered broker has a limit."),
    ),
    "forecast": Texts(
        "What load do the next days bring?",
        "The last week of the busiest namespaces, and the forecast of the next. backtest has the error by series.",
        *("namespace_hours", "ingest", "No namespace carried load in the range."),
    ),
    "league": Texts(
        "Which configuration would have balanced best?",
        f"Each configuration replayed over the range. Bars are the time in which {COMPARED_TEXT}.",
        *("league", "whatif", "Nothing was replayed."),
    ),
    "moves": Texts(
        "Did moves have the predicted effect?",
        "Imbalance after each move, predicted and measured. flapping has the bundles that moved back and forth.",
        *("move_effects", "balance", "Nothing moved in the range, or no leader recorded it."),
    ),
    "advice": Texts(
        "What does the history suggest to change?",
        "The leader's rules, applied to the 90th percentile of the load of each bundle.",
        *("advice", "advice", "There is nothing to advise."),
    ),
    "rejected": Texts(
        "Which rows were rejected?",
        "Rejected rows by reason and file, and files that were left out.",
        *("rejected_rows", "ingest", "No row of the range was rejected."),
    ),
}


@dataclass(frozen=True, slots=True)
class Section:
    """One section: an answer, charts, tables, a list of points, and the text of a file."""

    name: str
    answer: str = ""
    charts: Sequence[Chart] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    points: Sequence[str] = ()
    text: str = ""
    empty: str = ""

    @property
    def has_something(self) -> bool:
        return bool(self.charts or self.points or self.text) or any(len(frame) for frame in self.tables.values())


def make_sections(contents: Contents, summary: Summary, recommended: str | None = None) -> list[Section]:
    """Make all sections; one without anything to show has the reason in `empty`."""
    sections = [
        _brokers(contents),
        _imbalance(contents),
        _bundles(contents),
        _capacity(contents, summary),
        _forecast(contents, summary),
        _league(contents, summary, recommended),
        _moves(contents),
        _advice(contents, summary),
        _rejected(contents, summary),
    ]
    return [replace(each, empty=_why_empty(each.name, contents)) for each in sections]


def _why_empty(name: str, contents: Contents) -> str:
    texts = TEXTS[name]
    return texts.empty if texts.table in contents else f"Unknown: the step {texts.step} has not been run."


def _tables(contents: Contents, *names: str) -> dict[str, pd.DataFrame]:
    return {name: table(contents, name) for name in names}


def _brokers(contents: Contents) -> Section:
    over_time, brokers, above = (table(contents, name) for name in ("broker_times", "brokers", "time_above"))
    known, answer, charts = brokers.dropna(subset="mean_usage"), "", []
    if len(known):
        texts = [
            f"{share(known[column].max())} ({known.loc[known[column].idxmax(), 'broker']})"
            for column in ("mean_usage", "highest_mean", "highest_report")
        ]
        answer = f"Highest mean of the range: {texts[0]}; of 5 minutes: {texts[1]}; highest report: {texts[2]}."
    usage = above[above["what"] == "usage"]
    if len(usage):
        hot, limit = int((usage["above_s"] > 0).sum()), share(threshold(contents, "usage"))
        answer += f" {hot} of {count(len(usage), 'broker')} had a mean of 5 minutes above {limit}."
    missing = _missing(contents)
    if len(over_time) and not missing:
        shown = over_time["broker"].nunique()
        label = f"Usage of the {shown} busiest brokers" if shown < len(brokers) else "Usage of each broker"
        charts = [draw_heat(over_time, "broker", "high", of_limit=True, label=label)]
    tables = _tables(contents, "brokers", "inconsistent_brokers")
    return Section("brokers", f"{answer} {missing}".strip(), charts, tables)


def _imbalance(contents: Contents) -> Section:
    rows, limit, answer = table(contents, "imbalance"), threshold(contents, "imbalance"), _missing(contents)
    tables = _tables(contents, "time_above", "imbalance")
    if answer or not len(rows):
        return Section("imbalance", answer, (), tables)
    above, worst = rows["max_over_mean"] > limit, rows.loc[rows["max_over_mean"].idxmax()]
    answer = (
        f"Above {times(limit)} for {share(share_of_time(rows, above))} of the time ({span(known_s(rows[above]))})."
        f" Median {times(rows['max_over_mean'].median())}; highest {times(worst['max_over_mean'])} at"
        f" {moment(worst['start_ms'])} ({worst['worst_broker']})."
    )
    return Section("imbalance", answer, [draw_band(rows, "max_over_mean", limit, "Imbalance")], tables)


def _bundles(contents: Contents) -> Section:
    over_time, hot = table(contents, "bundle_times"), table(contents, "hot_bundles")
    missing, answer = _missing(contents), ""
    if len(hot):
        first = hot.iloc[0]
        load, day = f"{rate(first['load'])} ({share(first['share'])} of all load)", moment(first["start_ms"])[:10]
        answer = f"Largest on {day}: {first['bundle']} with {load}."
    is_enough, label = len(over_time) and not missing, "Load of the largest bundles"
    charts = [draw_heat(over_time, "bundle", "mean", of_limit=False, label=label)] if is_enough else []
    return Section("bundles", f"{answer} {missing}".strip(), charts, _tables(contents, "hot_bundles"))


def _missing(contents: Contents) -> str:
    """Return how much time is missing for a chart over time; empty when there is enough, or none at all."""
    rows = table(contents, "imbalance")
    missing = missing_time(rows) if len(rows) else ""
    return f"Too little for shares and a chart: {missing}" if missing else ""


def _capacity(contents: Contents, summary: Summary) -> Section:
    rows, plan, answer = table(contents, "capacity"), median_plan(contents), ""
    if len(plan):
        last, ends, without = plan.iloc[-1], plan["exhausted_on"].dropna(), plan["exhausted_on_n1"].dropna()
        enough = f"too small from {ends.iloc[0]} on" if len(ends) else f"large enough for {count(len(plan), 'day')}"
        answer = f"By the median forecast the fleet of {last['have']} brokers is {enough};"
        answer += f" {last['resource_first']} runs out first."
        answer += (
            f" After the loss of any one broker it is too small from {without.iloc[0]} on." if len(without) else ""
        )
        answer += f" {share(last['headroom'])} of each broker is kept free. Basis: {last['basis']}."
    is_known = len(rows) and rows["needed"].notna().all()
    charts = [draw_capacity(rows, "Brokers needed by day")] if is_known else []
    tables = _tables(contents, "capacity", "cost_models")
    return Section("capacity", answer, charts, tables, summary.notes_of("capacity"))


def _forecast(contents: Contents, summary: Summary) -> Section:
    hours, made, tested = (table(contents, name) for name in ("namespace_hours", "namespace_forecasts", "backtest"))
    charts, points = list[Chart](), summary.notes_of("forecast")
    tested = tested[tested["kind"] == "namespace"]
    for namespace, actual in hours.groupby("namespace", sort=False) if len(tested) else ():
        ahead = made[made["namespace"] == namespace]
        if len(ahead):
            charts.append(draw_forecast(actual, ahead.drop(columns="namespace"), f"{namespace}, bytes/s out"))
        else:
            why = tested.loc[(tested["key"] == namespace) & (tested["metric"] == FORECAST_METRIC), "why"]
            points.append(f"{namespace}: {why.iloc[0] if len(why) else 'not forecast yet (--step forecast)'}.")
    scored = tested.dropna(subset="coverage")
    answer = _coverage((scored["coverage"] * scored["points"]).sum(), scored["points"].sum()) if len(scored) else ""
    return Section("forecast", answer, charts, _tables(contents, "backtest", "forecasts"), points)


def _coverage(within: float, hours: float) -> str:
    if hours < FEWEST_HOURS:
        return f"Too little to judge the forecasts: {count(hours, 'back-tested hour')}, {FEWEST_HOURS} needed."
    return (
        f"In the back-test, {share(within / hours)} of {number(hours)} hours were within the 80 % interval."
        " The goal is 80 %."
    )


def _league(contents: Contents, summary: Summary, recommended: str | None) -> Section:
    tables = _tables(contents, "league", "recommendation", "paired_differences", "scenarios")
    rows, chosen = tables["league"], tables["recommendation"]
    label = f"Time in which {COMPARED_TEXT}"
    charts = [draw_bars(rows, "configuration", COMPARED, "fleet", label)] if len(rows) else []
    answer = " ".join(f"For the fleet {each['fleet']}: {_recommendation(each)}" for _, each in chosen.iterrows())
    text = recommended or "" if len(rows) else ""
    return Section("league", answer, charts, tables, summary.notes_of("whatif"), text)


def _recommendation(row: pd.Series[Any]) -> str:
    why = str(row["why"]).splitlines()[0].rstrip(".")
    if pd.isna(row["configuration"]):
        return f"no recommendation. {why}."
    seen = f"from {count(row['days'], 'day')} and {count(row['seeds'], 'seed')}"
    return f"{row['configuration']} is recommended, {seen}."


def _moves(contents: Contents) -> Section:
    effects, flapping, answer = table(contents, "move_effects"), table(contents, "flapping"), ""
    measured = effects.dropna(subset=["predicted_after", "measured_after"])
    is_enough = len(measured) >= FEWEST_MOVES
    if is_enough:
        near = (measured["measured_after"] / measured["predicted_after"] - 1).abs() <= _NEAR
        moves = f"{share(near.mean())} of {number(len(measured))} measured moves"
        answer = f"{moves} were within {share(_NEAR)} of the predicted imbalance."
    elif len(effects):
        answer = f"Too little for a share and a chart: {count(len(measured), 'measured move')}, {FEWEST_MOVES} needed."
    if len(flapping):
        done, returns = int(flapping["moves"].sum()), int(flapping["returns"].sum())
        answer += f" {number(returns)} of {count(done, 'finished move')} returned a bundle to an earlier broker."
    charts = [draw_moves(measured, "Imbalance after moves")] if is_enough else []
    return Section("moves", answer.strip(), charts, _tables(contents, "move_effects", "flapping"))


def _advice(contents: Contents, summary: Summary) -> Section:
    rows = table(contents, "advice")
    answer = f"{count(len(rows), 'finding')}." if len(rows) else ""
    return Section("advice", answer, (), {"advice": rows}, summary.notes_of("advice"))


def _rejected(contents: Contents, summary: Summary) -> Section:
    rows = table(contents, "rejected_rows")
    answer = f"{count(int(rows['count'].sum()), 'row')}." if len(rows) else ""
    return Section("rejected", answer, (), {"rejected_rows": rows}, summary.notes_of("ingest"))
