"""What the first screen says: how the fleet is, in a sentence, and three numbers with where they are going.

| health | the first of these that holds |
|---|---|
| bad | a broker was above the threshold of usage for more than 5 % of the latest time; or the fleet is too small |
| watch | a broker was above it at all; or the fleet will be too small; or load was uneven for more than a quarter |
| unknown | less than a day is known |
| good | none of these |

The latest time are the last 7 days, compared with the 7 before, where 14 are known; else the last day and the day
before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from loadmanager.core.effect import UNEVEN
from loadmanager.core.resources import HOT
from loadmanager.history.files import DAY_MS
from loadmanager.pipeline.reporting.about import Contents, table
from loadmanager.pipeline.reporting.units import number, share, span, times

State = Literal["good", "watch", "bad", "unknown"]
Trend = Literal["better", "worse", "same", "unknown"]

_WINDOW_MS = 300_000
MEDIAN = 0.5
OFTEN_OVERLOADED, OFTEN_UNEVEN = 0.05, 0.25
_AS_BEFORE = 0.05
"""Differences of less than this part are none."""
_THRESHOLDS = {"usage": HOT, "imbalance": UNEVEN}
"""Where no table says which one held."""


@dataclass(frozen=True, slots=True)
class Health:
    state: State
    sentence: str


@dataclass(frozen=True, slots=True)
class Number:
    """`section` has what it is taken from. `trend` says what became of it, `going` whether that is good."""

    name: str
    value: str
    about: str
    trend: str
    going: Trend
    section: str


@dataclass(frozen=True, slots=True, eq=False)
class Latest:
    """The latest time that is judged, and as much before it; `before` is empty where less is known."""

    now: pd.DataFrame
    before: pd.DataFrame
    name: str

    @classmethod
    def of(cls, imbalance: pd.DataFrame) -> Latest:
        if not len(imbalance) or not known_s(imbalance):
            return cls(imbalance.iloc[:0], imbalance.iloc[:0], "")
        start = imbalance["start_ms"]
        end = int(start.max()) + _WINDOW_MS
        known_ms = end - int(start.min())
        length, name = (7 * DAY_MS, "7 days") if known_ms >= 14 * DAY_MS else (DAY_MS, "day")
        if known_ms < 2 * length:
            return cls(imbalance, imbalance.iloc[:0], span(min(known_ms / 1000, known_s(imbalance))))
        is_now, is_before = start >= end - length, start >= end - 2 * length
        return cls(imbalance[is_now], imbalance[is_before & ~is_now], name)


def known_s(windows: pd.DataFrame) -> float:
    """For how long of these windows reports stood."""
    return float(windows["covered_s"].sum())


def part_of(windows: pd.DataFrame, chosen: pd.Series[bool]) -> float:
    """The part of what is known of these windows that the chosen ones are."""
    return known_s(windows[chosen]) / known_s(windows)


def threshold(contents: Contents, what: str) -> float:
    """Above which a broker is overloaded (`usage`), or load uneven (`imbalance`)."""
    rows = table(contents, "time_above")
    own = rows[rows["what"] == what] if "threshold" in rows else rows
    return float(own["threshold"].iloc[0]) if len(own) else _THRESHOLDS[what]


def judge_health(contents: Contents) -> Health:
    """By the table at the top."""
    latest = Latest.of(table(contents, "imbalance"))
    if not len(latest.now):
        return Health("unknown", "Nothing is known: no broker reported in the range.")
    return _trouble(latest, contents) or _calm(latest)


def _trouble(latest: Latest, contents: Contents) -> Health | None:
    overloaded, too_small_from = _overloaded(latest.now), _too_small_from(contents)
    uneven = part_of(latest.now, latest.now["max_over_mean"] > threshold(contents, "imbalance"))
    if overloaded > OFTEN_OVERLOADED:
        return Health("bad", _overload(latest, contents))
    if too_small_from is not None and too_small_from == median_plan(contents)["day"].iloc[0]:
        return Health("bad", f"The fleet is too small for what is expected today, {too_small_from}.")
    if overloaded > 0:
        return Health("watch", _overload(latest, contents))
    if too_small_from is not None:
        return Health("watch", f"Well today, but too small from {too_small_from} on, by the median forecast.")
    if uneven > OFTEN_UNEVEN:
        limit = times(threshold(contents, "imbalance"))
        said = f"No broker was overloaded, but load was uneven: above {limit} the mean for {share(uneven)} of the time."
        return Health("watch", said)
    return None


def _calm(latest: Latest) -> Health:
    if not len(latest.before) and known_s(latest.now) * 1000 < DAY_MS:
        known = f"{span(known_s(latest.now))} known, in which no broker was overloaded."
        return Health("unknown", f"Too early to tell: {known}")
    return Health("good", f"All is well: in the last {latest.name} no broker was overloaded, and load was even.")


def _overload(latest: Latest, contents: Contents) -> str:
    rows = latest.now[latest.now["overloaded_brokers"] > 0]
    most = rows["worst_used_broker"].mode().iloc[0]
    return (
        f"Overloaded: in the last {latest.name} a broker was above {share(threshold(contents, 'usage'))} of what it has"
        f" for {share(_overloaded(latest.now))} of the time ({span(known_s(rows))}), most often {most}."
    )


def find_numbers(contents: Contents) -> list[Number]:
    """The three of the first screen."""
    imbalance = table(contents, "imbalance")
    latest = Latest.of(imbalance)
    over = f"of the time a broker was above {share(threshold(contents, 'usage'))}"
    return [
        _measured("Overloaded", over, latest, _overloaded, share, "brokers"),
        _measured("Imbalance", "the busiest broker over the mean, median", latest, _imbalance, times, "imbalance"),
        _brokers_needed(contents),
    ]


def _measured(
    name: str,
    about: str,
    latest: Latest,
    measure: Callable[[pd.DataFrame], float],
    said: Callable[[float], str],
    section: str,
) -> Number:
    if not len(latest.now):
        return Number(name, "?", about, "nothing is known", "unknown", section)
    now = measure(latest.now)
    about = f"{about}, last {latest.name}"
    if not len(latest.before):
        return Number(name, said(now), about, "no trend yet: two days are needed", "unknown", section)
    before = measure(latest.before)
    if abs(now - before) <= _AS_BEFORE * max(before, now):
        return Number(name, said(now), about, f"as in the {latest.name} before", "same", section)
    trend = f"from {said(before)} in the {latest.name} before"
    if now > before:
        return Number(name, said(now), about, f"▲ {trend}", "worse", section)
    return Number(name, said(now), about, f"▼ {trend}", "better", section)


def _brokers_needed(contents: Contents) -> Number:
    name, median = "Brokers needed", median_plan(contents)
    if not len(median):
        return Number(name, "?", "today and on the days to come", "not known, see Capacity", "unknown", "capacity")
    have, first, last = int(median["have"].iloc[0]), median.iloc[0], median.iloc[-1]
    about = f"today, with {share(float(first['headroom']))} of each kept free"
    value = f"{number(first['needed'])} of {have}"
    after = f"in {len(median)} days" if len(median) > 1 else "then"
    if last["needed"] == first["needed"]:
        return Number(name, value, about, f"as many {after}", "same", "capacity")
    trend = f"{number(last['needed'])} {after}"
    if last["needed"] > first["needed"]:
        return Number(name, value, about, f"▲ {trend}", "worse", "capacity")
    return Number(name, value, about, f"▼ {trend}", "better", "capacity")


def median_plan(contents: Contents) -> pd.DataFrame:
    """Of each day to come what the median forecast needs, where any number of brokers will do."""
    rows = table(contents, "capacity")
    return rows[(rows["quantile"] == MEDIAN) & rows["needed"].notna()] if len(rows) else rows


def _too_small_from(contents: Contents) -> str | None:
    days = median_plan(contents)
    known = days["exhausted_on"].dropna() if len(days) else days
    return str(known.iloc[0]) if len(known) else None


def _overloaded(rows: pd.DataFrame) -> float:
    return part_of(rows, rows["overloaded_brokers"] > 0)


def _imbalance(rows: pd.DataFrame) -> float:
    return float(rows["max_over_mean"].median())


def what_is_compared(league: pd.DataFrame) -> tuple[str, str]:
    """The column of the league that a reader looks at first, and what it is; earlier runs did not tell of overload."""
    if "time_hot" in league:
        return "time_hot", "some broker was above 85 % of what it has"
    return "time_above", "load was more uneven than need be"
