"""The sections of the page: each one question, its answer in a sentence, one picture of it, and tables that are folded.

A section without anything to show says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from loadmanager.pipeline.reporting.about import About, Contents, table
from loadmanager.pipeline.reporting.findings import known_s, median_plan, part_of, threshold, what_is_compared
from loadmanager.pipeline.reporting.pictures import (
    Picture,
    draw_band,
    draw_bars,
    draw_capacity,
    draw_forecast,
    draw_heat,
    draw_moves,
)
from loadmanager.pipeline.reporting.units import moment, number, rate, share, span, times

_NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Section:
    """Without pictures, answer, text and rows `empty` is said instead. `note` says how it was found."""

    name: str
    title: str
    question: str
    note: str
    answer: str = ""
    pictures: Sequence[Picture] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    empty: str = ""
    points: Sequence[str] = ()
    text: str = ""

    @property
    def has_something(self) -> bool:
        return bool(self.pictures or self.points or self.text) or any(len(frame) for frame in self.tables.values())


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
        _costs(contents),
        _rejected(contents, about),
    ]


def _brokers(contents: Contents) -> Section:
    over_time, brokers = table(contents, "broker_times"), table(contents, "brokers")
    limit = share(threshold(contents, "usage"))
    answer = ""
    if len(brokers):
        busiest = brokers.iloc[0]
        mean, most = share(busiest["mean_usage"]), share(busiest["max_usage"])
        answer = f"{busiest['broker']} most: {mean} on the mean, {most} in its highest report."
        above = table(contents, "time_above")
        above = above[(above["what"] == "usage") & (above["share"] > 0)] if len(above) else above
        how_many = f"{len(above)} of {len(brokers)} were" if len(above) else "None was"
        answer += f" {how_many} above {limit} on the mean of any 5 minutes."
    shown = over_time["broker"].nunique() if len(over_time) else 0
    some = f" Shown are the {shown} that used most." if shown < len(brokers) else ""
    return Section(
        "brokers",
        "Brokers",
        "Which brokers were busy, and when?",
        "The highest of CPU, direct memory and bandwidth as a part of its limit; colours are the highest 5 minutes of"
        f" each stretch of time, nothing where nobody reported.{some}",
        answer,
        [draw_heat(over_time, "broker", "high", of_limit=True, label="Usage of each broker over time")]
        if len(over_time)
        else [],
        {"brokers": brokers, "inconsistent_brokers": table(contents, "inconsistent_brokers")},
        _why_empty(contents, "broker_times", "averages", "no broker reported in the range"),
    )


def _imbalance(contents: Contents) -> Section:
    rows, limit = table(contents, "imbalance"), threshold(contents, "imbalance")
    answer = ""
    if len(rows):
        above = rows["max_over_mean"] > limit
        worst = rows.loc[rows["max_over_mean"].idxmax()]
        answer = (
            f"Above {times(limit)} for {share(part_of(rows, above))} of the time ({span(known_s(rows[above]))}); the"
            f" median is {times(rows['max_over_mean'].median())}, the worst {times(worst['max_over_mean'])} at"
            f" {moment(worst['start_ms'])}, by {worst['worst_broker']}."
        )
    return Section(
        "imbalance",
        "Balance",
        "Was load spread evenly?",
        "Load (bytes/s, in and out) of the busiest broker divided by the mean of all, every 5 minutes.",
        answer,
        [draw_band(rows, "max_over_mean", limit, "Load of the busiest broker over the mean")] if len(rows) else [],
        {"time_above": table(contents, "time_above"), "imbalance": rows},
        _why_empty(contents, "imbalance", "balance", "no broker reported in the range"),
    )


def _bundles(contents: Contents) -> Section:
    over_time, hot = table(contents, "bundle_times"), table(contents, "hot_bundles")
    answer = ""
    if len(hot):
        first = hot.iloc[0]
        answer = (
            f"On {moment(first['start_ms'])[:10]} {first['bundle']} carried most: {rate(first['load'])},"
            f" {share(first['share'])} of all."
        )
    return Section(
        "bundles",
        "Bundles",
        "Which bundles carry the load, and when?",
        "The mean of each stretch of time in bytes/s, in and out, of the bundles that carried most, the most on top;"
        " and how unevenly namespaces are spread over their bundles.",
        answer,
        [draw_heat(over_time, "bundle", "mean", of_limit=False, label="Load of the largest bundles over time")]
        if len(over_time)
        else [],
        {"hot_bundles": hot, "namespace_skew": table(contents, "namespace_skew")},
        _why_empty(contents, "hot_bundles", "balance", "no bundle carried anything in the range"),
    )


def _capacity(contents: Contents, about: About) -> Section:
    rows, plan = table(contents, "capacity"), median_plan(contents)
    answer = ""
    if len(plan):
        last = plan.iloc[-1]
        ends, without = plan["exhausted_on"].dropna(), plan["exhausted_on_n1"].dropna()
        answer = f"The fleet of {last['have']} brokers "
        answer += f"is too small from {ends.iloc[0]} on" if len(ends) else f"will do for the next {len(plan)} days"
        answer += f", and without any one broker it is from {without.iloc[0]} on" if len(without) else ""
        answer += f", by the median forecast; {last['resource_first']} is first to run out."
    elif len(rows):
        answer = f"Not known: {rows['basis'].iloc[0]}."
    note = "Brokers needed on each of the next days"
    note += (
        f", with {share(rows['headroom'].iloc[0])} of each kept free. Known: {rows['basis'].iloc[0]}."
        if len(rows)
        else "."
    )
    quantiles = sorted(rows["quantile"].unique()) if len(plan) else []
    return Section(
        "capacity",
        "Capacity",
        "How many brokers do the next days need?",
        note,
        answer,
        [draw_capacity(rows, quantiles, "Brokers needed by day")] if len(plan) else [],
        {"capacity": rows},
        _why_empty(
            contents,
            "capacity",
            "capacity",
            "the history is too short, or no limit of any broker that is registered is known",
        ),
        about.notes.get("capacity", ()),
    )


def _forecast(contents: Contents, about: About) -> Section:
    hours, made = table(contents, "namespace_hours"), table(contents, "held_out")
    pictures, points, met = list[Picture](), [*about.notes.get("forecast", ())], list[float]()
    for namespace, rows in made.groupby("namespace", sort=False) if len(made) else ():
        forecast = rows.dropna(subset="q50")
        if not len(forecast):
            points.append(f"{namespace}: {rows['why_not'].iloc[0]}.")
            continue
        actual = hours[hours["namespace"] == namespace]
        both = actual.merge(forecast, on="start_ms")
        met.append(float(both["load"].between(both["q10"], both["q90"]).mean()))
        pictures.append(draw_forecast(actual, forecast[["start_ms", "q10", "q50", "q90"]], f"{namespace}"))
    answer = f"On the last day {share(sum(met) / len(met))} of the hours were in the band. " if met else ""
    tested = table(contents, "backtest")
    if "coverage" in tested and tested["coverage"].notna().any():
        answer += f"In the back-test {share(tested['coverage'].mean())} were, and 80 % should be."
    return Section(
        "forecast",
        "Forecast",
        "How good are the forecasts?",
        "The last 24 hours of the busiest namespaces as they would have been forecast the day before, and what came."
        " The tables have the error of the back-test against the best baseline, and the forecast of each namespace.",
        answer,
        pictures,
        {"backtest": table(contents, "backtest"), "forecasts": table(contents, "forecasts")},
        _why_empty(contents, "namespace_hours", "averages", "no namespace carried anything in the range"),
        points,
    )


def _league(contents: Contents, about: About) -> Section:
    rows, chosen = table(contents, "league"), table(contents, "recommendation")
    metric, what = what_is_compared(rows)
    return Section(
        "league",
        "What if",
        "Which configuration would have balanced best?",
        f"Each configuration replayed over the range; bars are the time in which {what}.",
        " ".join(f"For the fleet {each['fleet']}: {_recommendation(each)}" for _, each in chosen.iterrows()),
        [draw_bars(rows, "configuration", metric, "fleet", f"Time in which {what}")] if len(rows) else [],
        {
            "league": rows,
            "recommendation": chosen,
            "paired_differences": table(contents, "paired_differences"),
            "scenarios": table(contents, "scenarios"),
        },
        _why_empty(contents, "league", "whatif", "nothing was replayed"),
        about.notes.get("whatif", ()),
        about.recommended or "" if len(rows) else "",
    )


def _recommendation(row: pd.Series[Any]) -> str:
    why = str(row["why"]).splitlines()[0].rstrip(".")
    if pd.isna(row["configuration"]):
        return f"none is recommended. {why}."
    known = f"{row['configuration']} is recommended, by {number(row['days'])} days and {number(row['seeds'])} seeds"
    if pd.isna(row["rank_correlation"]):
        return f"{known}."
    return f"{known}; ranks of one day and those of the next have a correlation of {number(row['rank_correlation'])}."


def _moves(contents: Contents) -> Section:
    effects, flapping = table(contents, "move_effects"), table(contents, "flapping")
    told = effects.dropna(subset=["predicted_after", "measured_after"]) if len(effects) else effects
    answer = ""
    if len(told):
        near = (told["measured_after"] / told["predicted_after"] - 1).abs() <= _NEAR
        answer = f"Of {number(len(told))} moves {share(near.mean())} came within {share(_NEAR)} of what was predicted."
        returns = int(flapping["returns"].sum()) if "returns" in flapping else 0
        answer += f" {number(returns)} went back to where the bundle had come from." if returns else ""
    return Section(
        "moves",
        "Moves",
        "Did moves bring what they promised?",
        "The imbalance after each move as predicted against what was measured, and bundles that went to and fro.",
        answer,
        [draw_moves(told, "Imbalance after moves, predicted and measured")] if len(told) else [],
        {"move_effects": effects, "flapping": flapping},
        _why_empty(contents, "move_effects", "balance", "nothing was moved in the range, or no leader recorded it"),
    )


def _advice(contents: Contents, about: About) -> Section:
    rows = table(contents, "advice")
    counts = rows["kind"].value_counts().items() if "kind" in rows else ()
    kinds = [f"{kind}: {number(count)}" for kind, count in counts]
    return Section(
        "advice",
        "Advice",
        "What does the history suggest to change?",
        "Bundles are judged by the leader's rules, with what they carried at most in nine of ten hours.",
        f"{number(len(rows))} things, by kind:" if len(rows) else "",
        (),
        {"advice": rows},
        _why_empty(contents, "advice", "advice", "there is nothing to advise"),
        [*about.notes.get("advice", ()), *kinds],
    )


def _costs(contents: Contents) -> Section:
    return Section(
        "costs",
        "Costs",
        "What does load cost a broker?",
        "By class of brokers and resource, with the error on reports that were held out.",
        "",
        (),
        {"cost_models": table(contents, "cost_models")},
        _why_empty(contents, "cost_models", "capacity", "no broker reported in the range"),
    )


def _rejected(contents: Contents, about: About) -> Section:
    rows = table(contents, "rejected_rows")
    count = int(rows["count"].sum()) if len(rows) else 0
    return Section(
        "rejected",
        "Rejected rows",
        "What could not be counted on?",
        "Rows by reason and file, and what was left out.",
        f"{number(count)} rows." if count else "",
        (),
        {"rejected_rows": rows},
        _why_empty(contents, "rejected_rows", "ingest", "every row of the range can be counted on"),
        about.notes.get("ingest", ()),
    )


def _why_empty(contents: Contents, name: str, step: str, why: str) -> str:
    if name not in contents:
        return f"Not known: the step {step} has not been run."
    return f"{why[0].upper()}{why[1:]}."
