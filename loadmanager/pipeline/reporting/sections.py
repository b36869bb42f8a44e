"""Sections of the report: a question, its answer, a chart, and folded tables.

A section with too little to show says how much is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from loadmanager.pipeline.reporting.contents import About, Contents, table
from loadmanager.pipeline.reporting.findings import known_s, median_plan, missing_time, share_of_time, threshold
from loadmanager.pipeline.reporting.units import count, moment, number, rate, share, span, times

_NEAR = 0.1
FEWEST_MOVES, FEWEST_HOURS = 10, 24
"""Measured moves, back-tested hours, or replayed hours that a share or a comparison needs."""

_ADVICE_KINDS = {
    "split": "bundles to split",
    "split_blocked": "bundles that cannot be split",
    "unsplittable": "bundles with one topic that is too large",
    "merge": "bundles to merge",
    "bundles": "namespaces with too many or too few bundles",
    "threshold_never": "limits that were never exceeded",
    "threshold_always": "limits that were always exceeded",
    "quiet_reports": "brokers that were silent",
    "unknown_limits": "brokers without a limit",
}


@dataclass(frozen=True, slots=True)
class Section:
    """One section. `empty` is shown in place of charts, points, text and rows when there are none."""

    name: str
    title: str
    question: str
    note: str
    answer: str = ""
    charts: Sequence[Chart] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    empty: str = ""
    points: Sequence[str] = ()
    text: str = ""

    @property
    def has_something(self) -> bool:
        return bool(self.charts or self.points or self.text) or any(len(frame) for frame in self.tables.values())


def make_sections(contents: Contents, about: About) -> list[Section]:
    return [
        _brokers(contents),
        _imbalance(contents),
        _bundles(contents),
        _capacity(contents, about),
        _forecast(contents, about),
        _league(contents, about),
        _moves(contents),
        _advice(contents, about),
        _rejected(contents, about),
    ]


def _brokers(contents: Contents) -> Section:
    over_time, brokers, above = (table(contents, name) for name in ("broker_times", "brokers", "time_above"))
    known = brokers.dropna(subset="mean_usage") if len(brokers) else brokers
    answer = ""
    if len(known):
        texts = [
            f"{share(known[column].max())} ({known.loc[known[column].idxmax(), 'broker']})"
            for column in ("mean_usage", "highest_mean", "highest_report")
        ]
        answer = f"Highest mean of the range: {texts[0]}; of 5 minutes: {texts[1]}; highest report: {texts[2]}."
    usage = above[above["what"] == "usage"] if len(above) else above
    if len(usage):
        hot, limit = int((usage["above_s"] > 0).sum()), share(threshold(contents, "usage"))
        answer += f" {hot} of {count(len(usage), 'broker')} had a mean of 5 minutes above {limit}."
    missing = _missing(contents)
    shown = over_time["broker"].nunique() if len(over_time) else 0
    some = f" Shown are the {shown} with the highest usage." if 0 < shown < len(brokers) else ""
    return Section(
        "brokers",
        "Brokers",
        "Which brokers were busy, and when?",
        "Usage is the highest of CPU, direct memory and bandwidth, as a share of its limit."
        f" Colours show the highest 5 minutes of each bin.{some}",
        f"{answer} {missing}".strip(),
        [draw_heat(over_time, "broker", "high", of_limit=True, label="Usage of each broker")]
        if shown and not missing
        else [],
        {"brokers": brokers, "inconsistent_brokers": table(contents, "inconsistent_brokers")},
        _why_empty(contents, "broker_times", "averages", "no broker reported a usage in the range"),
    )


def _imbalance(contents: Contents) -> Section:
    rows, limit, missing = table(contents, "imbalance"), threshold(contents, "imbalance"), _missing(contents)
    answer = missing
    if len(rows) and not missing:
        above, worst = rows["max_over_mean"] > limit, rows.loc[rows["max_over_mean"].idxmax()]
        answer = (
            f"Above {times(limit)} for {share(share_of_time(rows, above))} of the time ({span(known_s(rows[above]))})."
            f" Median {times(rows['max_over_mean'].median())}; highest {times(worst['max_over_mean'])} at"
            f" {moment(worst['start_ms'])} ({worst['worst_broker']})."
        )
    return Section(
        "imbalance",
        "Balance",
        "Was load spread evenly?",
        "Imbalance is the load of the busiest broker divided by the mean of all brokers, in bytes/s, every 5 minutes.",
        answer,
        [draw_band(rows, "max_over_mean", limit, "Imbalance")] if len(rows) and not missing else [],
        {"time_above": table(contents, "time_above"), "imbalance": rows},
        _why_empty(contents, "imbalance", "averages", "no broker reported in the range"),
    )


def _bundles(contents: Contents) -> Section:
    over_time, hot, missing = table(contents, "bundle_times"), table(contents, "hot_bundles"), _missing(contents)
    answer = ""
    if len(hot):
        first = hot.iloc[0]
        load, day = f"{rate(first['load'])} ({share(first['share'])} of all load)", moment(first["start_ms"])[:10]
        answer = f"Largest on {day}: {first['bundle']} with {load}."
    return Section(
        "bundles",
        "Bundles",
        "Which bundles carry the load, and when?",
        "Mean load of each bin in bytes/s, of the bundles with the highest load.",
        f"{answer} {missing}".strip(),
        [draw_heat(over_time, "bundle", "mean", of_limit=False, label="Load of the largest bundles")]
        if len(over_time) and not missing
        else [],
        {"hot_bundles": hot, "namespace_skew": table(contents, "namespace_skew")},
        _why_empty(contents, "hot_bundles", "balance", "no bundle carried load in the range"),
    )


def _missing(contents: Contents) -> str:
    """Return how much time is missing for a chart over time; empty when there is enough, or none at all."""
    rows = table(contents, "imbalance")
    missing = missing_time(rows) if len(rows) else ""
    return f"Too little for shares and a chart: {missing}" if missing else ""


def _capacity(contents: Contents, about: About) -> Section:
    rows, plan, costs = table(contents, "capacity"), median_plan(contents), table(contents, "cost_models")
    answer, note = "", "Brokers needed on each of the next days."
    if len(plan):
        last, ends = plan.iloc[-1], plan["exhausted_on"].dropna()
        without, first_out = plan["exhausted_on_n1"].dropna(), f"{last['resource_first']} runs out first"
        enough = f"too small from {ends.iloc[0]} on" if len(ends) else f"large enough for {count(len(plan), 'day')}"
        answer = f"By the median forecast the fleet of {last['have']} brokers is {enough}; {first_out}."
        answer += (
            f" After the loss of any one broker it is too small from {without.iloc[0]} on." if len(without) else ""
        )
        kept_free, basis = share(rows["headroom"].iloc[0]), rows["basis"].iloc[0]
        note += f" {kept_free} of each broker is kept free. Basis: {basis}."
    is_known = len(plan) and plan["needed"].notna().any()
    return Section(
        "capacity",
        "Capacity",
        "How many brokers do the next days need?",
        f"{note} cost_models has what load costs a broker, with the error on held-out reports.",
        answer,
        [draw_capacity(rows, "Brokers needed by day")] if is_known else [],
        {"capacity": rows, "cost_models": costs},
        _why_empty(contents, "capacity", "capacity", "the history is too short, or no registered broker has a limit"),
        about.notes.get("capacity", ()),
    )


def _forecast(contents: Contents, about: About) -> Section:
    hours, made, tested = (table(contents, name) for name in ("namespace_hours", "held_out", "backtest"))
    charts, points, within = list[Chart](), [*about.notes.get("forecast", ())], list["pd.Series[bool]"]()
    for namespace, rows in made.groupby("namespace", sort=False) if len(made) else ():
        forecast = rows.dropna(subset="q50")[["start_ms", "q10", "q50", "q90"]]
        if not len(forecast):
            points.append(f"{namespace}: {rows['why_not'].iloc[0]}.")
            continue
        actual = hours[hours["namespace"] == namespace]
        both = actual.merge(forecast, on="start_ms")
        within.append(both["load"].between(both["q10"], both["q90"]))
        charts.append(draw_forecast(actual, forecast, str(namespace)))
    last_day = pd.concat(within) if within else pd.Series(dtype=bool)
    answer = [_coverage("last day", float(last_day.sum()), len(last_day))] if len(last_day) else []
    scored = tested.dropna(subset="coverage") if len(tested) else tested
    if len(scored):
        answer.append(
            _coverage("back-test", float((scored["coverage"] * scored["points"]).sum()), scored["points"].sum())
        )
    return Section(
        "forecast",
        "Forecast",
        "How good are the forecasts?",
        "The last 24 hours of the busiest namespaces, forecast from the days before them."
        " The tables have the error of the back-test next to the best baseline, and the forecasts.",
        " ".join([*answer, "The goal is 80 %."] if answer else []),
        charts,
        {"backtest": tested, "forecasts": table(contents, "forecasts")},
        _why_empty(contents, "namespace_hours", "averages", "no namespace carried load in the range"),
        points,
    )


def _coverage(of: str, within: float, hours: float) -> str:
    if hours < FEWEST_HOURS:
        return f"Too little for a share of the {of}: {count(hours, 'forecast hour')}, {FEWEST_HOURS} needed."
    return f"In the {of}, {share(within / hours)} of {number(hours)} forecast hours were within the 80 % interval."


def _league(contents: Contents, about: About) -> Section:
    rows, chosen = table(contents, "league"), table(contents, "recommendation")
    hours = float(rows["hours"].min()) if len(rows) else 0.0
    is_enough = hours >= FEWEST_HOURS
    missing = f"Too little to compare: {span(hours * 3600)} replayed, {FEWEST_HOURS} h needed." if len(rows) else ""
    answer = " ".join(f"For the fleet {each['fleet']}: {_recommendation(each)}" for _, each in chosen.iterrows())
    names = ("recommendation", "paired_differences", "scenarios")
    return Section(
        "league",
        "What if",
        "Which configuration would have balanced best?",
        f"Each configuration replayed over the range. Bars are the time in which {COMPARED_TEXT}.",
        answer if is_enough else f"{answer} {missing}".strip(),
        [draw_bars(rows, "configuration", COMPARED, "fleet", f"Time in which {COMPARED_TEXT}")] if is_enough else [],
        {"league": rows, **{name: table(contents, name) for name in names}},
        _why_empty(contents, "league", "whatif", "nothing was replayed"),
        about.notes.get("whatif", ()),
        about.recommended or "" if len(rows) else "",
    )


def _recommendation(row: pd.Series[Any]) -> str:
    why = str(row["why"]).splitlines()[0].rstrip(".")
    if pd.isna(row["configuration"]):
        return f"no recommendation. {why}."
    known = f"{row['configuration']} is recommended, from {count(row['days'], 'day')} and {count(row['seeds'], 'seed')}"
    if pd.isna(row["rank_correlation"]):
        return f"{known}."
    return f"{known}. The rank correlation of one day and the next is {number(row['rank_correlation'])}."


def _moves(contents: Contents) -> Section:
    effects, flapping = table(contents, "move_effects"), table(contents, "flapping")
    measured = effects.dropna(subset=["predicted_after", "measured_after"]) if len(effects) else effects
    is_enough, answer = len(measured) >= FEWEST_MOVES, ""
    if is_enough:
        near = (measured["measured_after"] / measured["predicted_after"] - 1).abs() <= _NEAR
        answer = f"{share(near.mean())} of {number(len(measured))} measured moves were within {share(_NEAR)} of the"
        answer += " predicted imbalance."
    elif len(effects):
        answer = f"Too little for a share and a chart: {count(len(measured), 'measured move')}, {FEWEST_MOVES} needed."
    if len(flapping):
        done, returns = int(flapping["moves"].sum()), int(flapping["returns"].sum())
        answer += f" {number(returns)} of {count(done, 'finished move')} returned a bundle to an earlier broker."
    return Section(
        "moves",
        "Moves",
        "Did moves have the predicted effect?",
        "Imbalance after each move, predicted and measured. flapping has the bundles that moved back and forth.",
        answer.strip(),
        [draw_moves(measured, "Imbalance after moves")] if is_enough else [],
        {"move_effects": effects, "flapping": flapping},
        _why_empty(contents, "move_effects", "balance", "nothing moved in the range, or no leader recorded it"),
    )


def _advice(contents: Contents, about: About) -> Section:
    rows = table(contents, "advice")
    kinds = rows["kind"].value_counts().items() if "kind" in rows else ()
    return Section(
        "advice",
        "Advice",
        "What does the history suggest to change?",
        "The leader's rules, applied to what each bundle carried at most in nine of ten hours.",
        f"{count(len(rows), 'finding')}:" if len(rows) else "",
        (),
        {"advice": rows},
        _why_empty(contents, "advice", "advice", "there is nothing to advise"),
        [*about.notes.get("advice", ()), *(f"{_ADVICE_KINDS[str(kind)]}: {number(found)}" for kind, found in kinds)],
    )


def _rejected(contents: Contents, about: About) -> Section:
    rows = table(contents, "rejected_rows")
    rejected = int(rows["count"].sum()) if len(rows) else 0
    return Section(
        "rejected",
        "Rejected rows",
        "Which rows were rejected?",
        "Rejected rows by reason and file, and files that were left out.",
        f"{count(rejected, 'row')}." if rejected else "",
        (),
        {"rejected_rows": rows},
        _why_empty(contents, "rejected_rows", "ingest", "no row of the range was rejected"),
        about.notes.get("ingest", ()),
    )


def _why_empty(contents: Contents, name: str, step: str, why: str) -> str:
    if name not in contents:
        return f"Unknown: the step {step} has not been run."
    return f"{why[0].upper()}{why[1:]}."
