"""League of configurations: table, paired differences with confidence intervals, and recommendation.

docs/pipeline.md has the rules of comparison and recommendation, under "What if" and "What is shown". The seeds of a day
are averaged, as they depend on each other. With one day the seeds are the pairs, and show nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import render_fields
from loadmanager.history.files import DAY_MS
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.minimum_history import WHOLE_DAY_HOURS
from loadmanager.pipeline.paired import CONFIDENCE, FEWEST_PAIRS, MeanDifference, Significance, interval

PER_HOUR_S = 3600.0
FEWEST_DAYS, FEWEST_SEEDS = FEWEST_PAIRS, 3

FULL, HOT, ABOVE, WORST, REGRET = "time_full", "time_hot", "time_above", "worst_usage", "regret"
MOVED, MOVES, CLIENTS = "moved_share", "moves", "clients_disturbed"
AGAIN, RETURNS = "moved_again", "returns"

METRICS = [FULL, HOT, REGRET, ABOVE, WORST, MOVED, MOVES, AGAIN, RETURNS, CLIENTS]
"""Compared metrics, which docs/pipeline.md describes. Less is better throughout."""

MARGINS = {FULL: 0.002, HOT: 0.01, REGRET: 0.02, ABOVE: 0.02, WORST: 0.02}
"""Differences up to these do not matter; of other metrics any does. The first three decide, in their order."""
_DECIDE = (FULL, HOT, REGRET)

NOTHING = "Nothing is recommended"
_LEARNT_BY = 2
"""Minimum days of history before a configuration is chosen."""
_ALWAYS_NAMED = ("load_balancer_load_shedding_strategy", "load_balancer_load_placement_strategy")


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Configuration to use with this fleet, None for none, with the reasons, a sentence each.

    `days` are whole ones, `seeds` those of each.
    """

    fleet: str
    configuration: str | None
    why: tuple[str, ...]
    days: int
    seeds: int


def league_table(outcomes: pd.DataFrame, best: Recommendation) -> pd.DataFrame:
    """Return a row per fleet and configuration, best first, from a row per scenario. `best` alone is marked.

    The places are by time above 100 %, above 85 %, then regret, then load moved, then the order of the names. Of worst
    usages it has the highest; everything else is over the whole time of the scenarios.
    """
    tables = []
    for fleet, rows in _rates(outcomes).groupby("fleet", sort=False):
        scenarios = rows.groupby("configuration")
        hours, worst = scenarios["duration_s"].sum() / PER_HOUR_S, scenarios[WORST].max()
        table = _means(rows, "configuration").assign(scenarios=scenarios.size(), hours=hours, **{WORST: worst})
        table = table.reset_index().sort_values([*_DECIDE, MOVED, "configuration"], kind="stable")
        table["recommended"] = (fleet == best.fleet) & (table["configuration"] == best.configuration)
        table["fleet"], table["place"] = fleet, range(1, len(table) + 1)
        tables.append(table[schema_of("league").names])
    return pd.concat(tables, ignore_index=True)


def paired_differences(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Return a row per fleet, metric and two configurations, the first one less the second."""
    found = []
    rates = _rates(outcomes)
    names = list(dict.fromkeys(rates["configuration"]))
    for fleet, rows in rates.groupby("fleet", sort=False):
        over = "day" if len(set(rows["day"])) > 1 else "seed"
        pairs = _means_by(over, rows)
        for metric, (one, other) in itertools.product(METRICS, itertools.combinations(names, 2)):
            each = interval((pairs[metric][one] - pairs[metric][other]).dropna().to_numpy())
            shown = each.shows(MARGINS.get(metric, 0.0)) if over == "day" else Significance.INCONCLUSIVE
            found.append(
                (fleet, metric, one, other, each.mean, each.low, each.high, each.pairs, f"{over}s", str(shown))
            )
    return pd.DataFrame(found, columns=schema_of("paired_differences").names)


def recommendations(outcomes: pd.DataFrame) -> list[Recommendation]:
    """Recommend a configuration for each fleet by the rules above; of equal ones, the first one given."""
    return [_recommend(str(fleet), rows) for fleet, rows in _rates(outcomes).groupby("fleet", sort=False)]


def recommendation_table(recommended: Iterable[Recommendation]) -> pd.DataFrame:
    """Return a row per fleet."""
    rows = [(each.fleet, each.configuration, each.days, each.seeds, "\n".join(each.why)) for each in recommended]
    return pd.DataFrame(rows, columns=schema_of("recommendation").names)


def _recommend(fleet: str, rows: pd.DataFrame) -> Recommendation:
    whole, seeds = _whole_days(rows), len(set(rows["seed"]))
    why = _too_little(len(whole), seeds, len(set(rows["configuration"])))
    if why:
        return Recommendation(fleet, None, (why,), len(whole), seeds)
    days = _means_by("day", rows[rows["day"].isin(whole)])
    choice, forward = _choose(days), _walk_forward(days)
    if forward.helps or (forward.helps is None and choice.is_shown):
        about = [*_about(rows[rows["configuration"] == choice.chosen]), *choice.reasons, forward.sentence]
        return Recommendation(fleet, choice.chosen, tuple(about), len(whole), seeds)
    why = f"{NOTHING}: what was best so far is no better on the next day."
    return Recommendation(fleet, None, (why, forward.sentence), len(whole), seeds)


def recommended_yaml(recommendation: Recommendation, settings: Settings, source: Iterable[str]) -> str:
    """Render a configuration file: the reasons, and the settings that differ from the defaults, with the strategies.

    `source` says what it was learnt from.
    """
    defaults = settings_of({}, "defaults")
    names = [
        name
        for name in Settings.model_fields
        if name in _ALWAYS_NAMED or getattr(settings, name) != getattr(defaults, name)
    ]
    lines = [
        f"Recommended by loadmanager pipeline: {recommendation.configuration}",
        "Keys that are not here keep their defaults.",
        "",
        *recommendation.why,
        "",
        *source,
    ]
    comments = [f"# {line}".rstrip() for text in lines for line in text.splitlines() or [""]]
    return "\n".join(comments) + "\n\n" + render_fields(settings, names)


def _rates(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Return the metrics of each scenario per time, and its day."""
    rates = outcomes[["fleet", "configuration", "stretch", "seed", "duration_s", WORST, REGRET]].copy()
    rates["day"] = (outcomes["from_ms"] - outcomes["from_ms"].min()) // DAY_MS
    for metric in (FULL, HOT, ABOVE):
        rates[metric] = outcomes[f"{metric}_s"] / outcomes["duration_s"]
    for metric in (MOVED, MOVES, AGAIN, RETURNS, CLIENTS):
        rates[metric] = outcomes[metric] * (PER_HOUR_S / outcomes["duration_s"])
    return rates


def _means(rates: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return the mean over time of each metric by these columns, in the order in which their values come first."""
    areas = rates.assign(**{metric: rates[metric] * rates["duration_s"] for metric in METRICS})
    sums = areas.groupby(list(by), sort=False)[[*METRICS, "duration_s"]].sum()
    return sums[METRICS].div(sums["duration_s"], axis=0)


def _means_by(unit: str, rates: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each day or seed, with a column for each metric and configuration."""
    return _means(rates, unit, "configuration").unstack().sort_index()  # noqa: PD010 - keeps the order of configurations


def _whole_days(rows: pd.DataFrame) -> list[int]:
    """Return the days that are whole for every configuration and seed."""
    table = rows.pivot_table(
        index="day", columns=["configuration", "seed"], values="duration_s", aggfunc="sum", fill_value=0
    )
    return [int(day) for day in table.index[(table >= WHOLE_DAY_HOURS * PER_HOUR_S).all(axis=1)]]


def _too_little(days: int, seeds: int, configurations: int) -> str:
    """Return why nothing can be recommended; empty when something can."""
    if days < FEWEST_DAYS:
        return f"{NOTHING}: {days} whole days were replayed, at least {FEWEST_DAYS} are needed."
    if seeds < FEWEST_SEEDS:
        return f"{NOTHING}: {seeds} seeds were tried, at least {FEWEST_SEEDS} are needed."
    return f"{NOTHING}: there is nothing to compare it with." if configurations == 1 else ""


class _Choice(NamedTuple):
    """Choice by the rules: the configuration, a sentence on the others, and whether all are shown equal or worse."""

    chosen: str
    reasons: list[str]
    is_shown: bool


def _choose(days: pd.DataFrame) -> _Choice:
    left, reasons, is_shown = list(days[FULL].columns), list[str](), True
    for metric in _DECIDE:
        best = str(days[metric][left].mean().idxmin())
        behind = {name: interval((days[metric][name] - days[metric][best]).to_numpy()) for name in left}
        kept = [name for name in left if name == best or _is_equal(behind[name], MARGINS[metric])]
        for name in left:
            if name not in kept:
                is_worse = behind[name].shows(MARGINS[metric]) is Significance.WORSE
                is_shown = is_shown and is_worse
                how = "is worse than" if is_worse else "is not shown equal to"
                reasons.append(f"{name} {how} {best} in {metric}: {_text(behind[name])}.")
        left = kept
    chosen = min(left, key=lambda name: [days[metric][name].mean() for metric in (RETURNS, MOVED, CLIENTS)])
    others = [name for name in left if name != chosen]
    reasons += [f"Shown equal, and no calmer: {', '.join(others)}."] if others else []
    return _Choice(chosen, reasons, is_shown)


def _is_equal(behind: MeanDifference, margin: float) -> bool:
    """Compare by the mean where too few days show anything, as in walk-forward validation."""
    return behind.mean <= margin if behind.pairs < FEWEST_PAIRS else behind.shows(margin) is Significance.EQUAL


class _Forward(NamedTuple):
    """Result of walk-forward validation: better or worse than the mean of all, None for no difference."""

    helps: bool | None
    sentence: str


def _walk_forward(days: pd.DataFrame) -> _Forward:
    tried = range(_LEARNT_BY, len(days))
    picked = [_choose(days.iloc[:day]).chosen for day in tried]
    ours = {
        metric: float(np.mean([days[metric][pick].iloc[day] for day, pick in zip(tried, picked, strict=True)]))
        for metric in _DECIDE
    }
    mean = {metric: float(days[metric].iloc[_LEARNT_BY:].to_numpy().mean()) for metric in _DECIDE}
    matters = (metric for metric in _DECIDE if abs(ours[metric] - mean[metric]) > MARGINS[metric])
    decisive = next(matters, None)
    sentence = (
        f"On the {len(picked)} days that came next: {_figures(ours)} with what the days before would have chosen"
        f" ({', '.join(dict.fromkeys(picked))}), {_figures(mean)} with all of them on the mean."
    )
    return _Forward(None if decisive is None else ours[decisive] < mean[decisive], sentence)


def _about(rows: pd.DataFrame) -> Iterable[str]:
    """Describe a configuration by its metrics."""
    means = _means(rows, "configuration").iloc[0]
    yield (
        f"{_figures(means).capitalize()}; an hour {100 * means[MOVED]:.1f} % of all load moved,"
        f" {100 * means[AGAIN]:.1f} % again within two hours, in {means[MOVES]:.2f} moves, {means[RETURNS]:.2f} of them"
        " back to a former owner."
    )
    yield f"The busiest broker used {100 * float(rows[WORST].max()):.0f} % of what it has at the most."


def _figures(means: Mapping[str, float] | pd.Series[float]) -> str:
    return (
        f"above 100 % of a broker {100 * means[FULL]:.2f} % of the time, above 85 % {100 * means[HOT]:.2f} %,"
        f" regret {means[REGRET]:.3f}"
    )


def _text(difference: MeanDifference) -> str:
    if difference.low is None or difference.high is None:
        return f"{difference.mean:.4g} more (one pair: no interval)"
    interval = f"{100 * CONFIDENCE:.0f} % interval {difference.low:.4g} to {difference.high:.4g}"
    return f"{difference.mean:.4g} more ({interval}, {difference.pairs} days)"
