"""First screen of the report: fleet health in one sentence, and three numbers with their trend.

| health | the first rule that holds |
|---|---|
| unknown | less than an hour is known |
| bad | a broker was above the overload threshold for more than 5 % of the period; or the fleet is too small today |
| watch | a broker was above it at all; or the fleet will be too small; or load was uneven for more than a quarter |
| unknown | fewer than 18 hours are known |
| good | none of these |

The period is the last 7 days, or the last day, compared with the period before it. A period counts when three quarters
of it are known, as in a whole day. Otherwise the period is all known time, without a comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from loadmanager.core.domain.resources import HOT
from loadmanager.core.planning.plan_effect import UNEVEN
from loadmanager.history.files import DAY_MS
from loadmanager.pipeline.minimum_history import WHOLE_DAY_HOURS
from loadmanager.pipeline.reporting.contents import Contents, table
from loadmanager.pipeline.reporting.units import count, number, share, span, times

FleetState = Literal["good", "watch", "bad", "unknown"]
Trend = Literal["better", "worse", "same", "unknown"]

MINIMUM_S = 3_600.0
"""Known time that a share of time or a chart over time needs."""
GOOD_MINIMUM_S = WHOLE_DAY_HOURS * 3_600.0
MEDIAN = 0.5
OFTEN_OVERLOADED, OFTEN_UNEVEN = 0.05, 0.25
_WINDOW_MS = 300_000
_SAME = 0.05
"""Relative difference below which a trend is none."""
_DEFAULTS = {"usage": HOT, "imbalance": UNEVEN}


@dataclass(frozen=True, slots=True)
class FleetHealth:
    """State of the fleet, the reason, and the highest usage of the period."""

    state: FleetState
    sentence: str
    highest: str = ""


@dataclass(frozen=True, slots=True)
class Number:
    """One figure of the first screen. `going` judges the trend; `section` has the details."""

    name: str
    value: str
    about: str
    trend: str
    going: Trend
    section: str


@dataclass(frozen=True, slots=True, eq=False)
class Period:
    """Windows of the latest period and of the one before it, which is empty where too little is known."""

    now: pd.DataFrame
    before: pd.DataFrame
    name: str

    @classmethod
    def of(cls, imbalance: pd.DataFrame) -> Period:
        for days, name in ((7, "the last 7 days"), (1, "the last day")):
            start, length = imbalance["start_ms"], days * DAY_MS
            age = start.max() + _WINDOW_MS - start
            now, before = imbalance[age <= length], imbalance[(age > length) & (age <= 2 * length)]
            if min(known_s(now), known_s(before)) >= days * GOOD_MINIMUM_S:
                return cls(now, before, name)
        return cls(imbalance, imbalance.iloc[:0], f"the {span(known_s(imbalance))} known")


def known_s(windows: pd.DataFrame) -> float:
    """Sum the observed time of windows."""
    return float(windows["covered_s"].sum())


def missing_time(windows: pd.DataFrame, minimum_s: float = MINIMUM_S) -> str:
    """Return how much known time is missing, as a sentence; empty when there is enough."""
    known = known_s(windows)
    return "" if known >= minimum_s else f"{span(known)} known, {span(minimum_s)} needed."


def share_of_time(windows: pd.DataFrame, chosen: pd.Series[bool]) -> float:
    """Return the share of the observed time in the chosen windows."""
    return known_s(windows[chosen]) / known_s(windows)


def threshold(contents: Contents, what: str) -> float:
    """Return the threshold of overload (`usage`) or of uneven load (`imbalance`) that the tables were made with."""
    rows = table(contents, "time_above")
    own = rows[rows["what"] == what]
    return float(own["threshold"].iloc[0]) if len(own) else _DEFAULTS[what]


def judge_health(contents: Contents) -> FleetHealth:
    """Apply the rules at the top of this module."""
    period, used = Period.of(table(contents, "imbalance")), _period_with_usage(contents)
    missing = missing_time(used.now)
    if missing:
        return FleetHealth("unknown", f"Too early to tell: {missing}")
    state, sentence = _find_trouble(period, used, contents) or _find_no_trouble(used, contents)
    return FleetHealth(state, sentence, _highest_usage(used.now, contents))


def _period_with_usage(contents: Contents) -> Period:
    """Return the latest period of the windows in which the usage of some broker is known."""
    return Period.of(table(contents, "imbalance").dropna(subset="worst_usage"))


def _find_trouble(period: Period, used: Period, contents: Contents) -> tuple[FleetState, str] | None:
    overloaded, exhausted_on = _overloaded(used.now), _exhausted_on(contents)
    uneven = share_of_time(period.now, period.now["max_over_mean"] > threshold(contents, "imbalance"))
    if overloaded > OFTEN_OVERLOADED:
        return "bad", _describe_overload(used, contents)
    if exhausted_on is not None and exhausted_on == median_plan(contents)["day"].iloc[0]:
        return "bad", f"The fleet is too small for the load forecast today, {exhausted_on}."
    if overloaded > 0:
        return "watch", _describe_overload(used, contents)
    if exhausted_on is not None:
        return "watch", f"No broker was overloaded, but the fleet is too small from {exhausted_on} on."
    if uneven > OFTEN_UNEVEN:
        limit = times(threshold(contents, "imbalance"))
        return "watch", f"Load was uneven: the imbalance was above {limit} for {share(uneven)} of {period.name}."
    return None


def _find_no_trouble(used: Period, contents: Contents) -> tuple[FleetState, str]:
    calm = f"No broker was above {share(threshold(contents, 'usage'))} in any 5 minutes of {used.name}"
    missing = missing_time(used.now, GOOD_MINIMUM_S)
    return ("unknown", f"Too early to tell: {missing} {calm}.") if missing else ("good", f"{calm}, and load was even.")


def _describe_overload(period: Period, contents: Contents) -> str:
    rows = period.now[period.now["overloaded_brokers"] > 0]
    most, limit = rows["worst_used_broker"].mode().iloc[0], share(threshold(contents, "usage"))
    part, duration = share(_overloaded(period.now)), span(known_s(rows))
    return f"Overloaded: a broker was above {limit} for {part} of {period.name} ({duration}), most often {most}."


def _highest_usage(windows: pd.DataFrame, contents: Contents) -> str:
    """Name the broker with the highest mean of 5 minutes, and the one with the highest report."""
    worst, reports = windows.loc[windows["worst_usage"].idxmax()], table(contents, "highest_reports")
    found = f"Highest mean of 5 minutes: {share(worst['worst_usage'])} ({worst['worst_used_broker']})."
    reports = reports[reports["start_ms"].isin(windows["start_ms"])]
    if len(reports):
        worst = reports.loc[reports["max_usage"].idxmax()]
        found += f" Highest report: {share(worst['max_usage'])} ({worst['broker']})."
    return found


def find_numbers(contents: Contents) -> list[Number]:
    """Return the three numbers of the first screen."""
    period = Period.of(table(contents, "imbalance"))
    over = f"of {{}} a broker was above {share(threshold(contents, 'usage'))}"
    return [
        _measure("Overloaded", over, _period_with_usage(contents), _overloaded, share, "brokers"),
        _measure("Imbalance", "median of highest / mean load in {}", period, _imbalance, times, "imbalance"),
        _brokers_needed(contents),
    ]


def _measure(
    name: str,
    about: str,
    period: Period,
    measure: Callable[[pd.DataFrame], float],
    text: Callable[[float], str],
    section: str,
) -> Number:
    about, missing = about.format(period.name), missing_time(period.now)
    if missing:
        return Number(name, "?", about, missing, "unknown", section)
    now = measure(period.now)
    if not len(period.before):
        trend = f"No trend yet: it needs {WHOLE_DAY_HOURS} known hours in each of the last 2 days."
        return Number(name, text(now), about, trend, "unknown", section)
    before = measure(period.before)
    if abs(now - before) <= _SAME * max(before, now):
        return Number(name, text(now), about, "as in the period before", "same", section)
    trend = f"{'▲' if now > before else '▼'} from {text(before)} in the period before"
    return Number(name, text(now), about, trend, "worse" if now > before else "better", section)


def _brokers_needed(contents: Contents) -> Number:
    name, median = "Brokers needed", median_plan(contents)
    if not len(median):
        return Number(name, "?", "today and on the next days", "unknown, see Capacity", "unknown", "capacity")
    first, last = median.iloc[0], median.iloc[-1]
    about = f"today, with {share(float(first['headroom']))} of each kept free"
    value, after = f"{needed_text(first['needed'])} of {int(first['have'])}", f"in {count(len(median), 'day')}"
    now, then = (float("inf") if pd.isna(each["needed"]) else float(each["needed"]) for each in (first, last))
    if then == now:
        return Number(name, value, about, f"as many {after}", "same", "capacity")
    trend = f"{'▲' if then > now else '▼'} {needed_text(last['needed'])} {after}"
    return Number(name, value, about, trend, "worse" if then > now else "better", "capacity")


def needed_text(needed: float) -> str:
    """Format a number of brokers; none is enough where an idle broker already leaves too little free."""
    return "no number" if pd.isna(needed) else number(needed)


def median_plan(contents: Contents) -> pd.DataFrame:
    """Return the capacity plan by the median forecast, one row for each day."""
    rows = table(contents, "capacity")
    return rows[rows["quantile"] == MEDIAN]


def _exhausted_on(contents: Contents) -> str | None:
    days = median_plan(contents)["exhausted_on"].dropna()
    return str(days.iloc[0]) if len(days) else None


def _overloaded(rows: pd.DataFrame) -> float:
    return share_of_time(rows, rows["overloaded_brokers"] > 0)


def _imbalance(rows: pd.DataFrame) -> float:
    return float(rows["max_over_mean"].median())
