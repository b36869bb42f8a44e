"""Which configuration did best: a league table, differences with their confidence, and the one to recommend.

Configurations meet in pairs: on the same stretch of the history, with the same seed and the same fleet. A difference
is the mean over pairs, with Student's t-interval. Where the range has several stretches, a stretch is a pair, with its
seeds averaged: seeds of one stretch are not independent of each other. With one stretch alone the seeds are the pairs,
and the interval says nothing of other days.

Everything here is pure, and small: a row per scenario.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from loadmanager.config import Settings, render_fields, settings_of

CONFIDENCE = 0.95
PER_HOUR_S = 3600.0

ABOVE, WORST, REGRET = "time_above", "worst_usage", "regret"
MOVED, MOVES, CLIENTS = "moved_share", "moves", "clients_disturbed"
AGAIN, RETURNS = "moved_again", "returns"

METRICS: dict[str, str] = {
    ABOVE: "time above the band, a share of all time",
    WORST: "highest usage of a broker",
    REGRET: "imbalance above the least that any distribution of the bundles has, the mean over time",
    MOVED: "load moved an hour, in shares of all load",
    MOVES: "moves an hour",
    AGAIN: "load moved again within two hours, an hour, in shares of all load",
    RETURNS: "moves back to a former owner within four hours, an hour",
    CLIENTS: "clients disturbed an hour",
}
"""What is compared, and what each is. Less is better throughout."""

PAIR_KEYS = ["fleet", "stretch", "seed"]
LEAGUE_COLUMNS = ["fleet", "place", "configuration", "scenarios", "hours", *METRICS, "recommended"]
DIFFERENCE_COLUMNS = [
    "fleet", "metric", "configuration", "other", "difference", "low", "high", "pairs", "paired_over", "differs",
]  # fmt: skip

_EVENNESS = {ABOVE: (0.005, 0.02), REGRET: (0.02, 0.1)}
"""What is as even as the best: up to the first difference in any case, up to the second where it may be chance, so that
few pairs do not make everything equal.
"""
_ALWAYS_NAMED = ("load_balancer_load_shedding_strategy", "load_balancer_load_placement_strategy")


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """`configuration` less `other`, the mean over pairs; None for the interval where there is one pair only."""

    mean: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def differs(self) -> bool:
        """Whether chance alone is unlikely to make such a difference."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The configuration to use with this fleet, and why, a sentence each."""

    fleet: str
    configuration: str
    why: tuple[str, ...]


def league_table(outcomes: pd.DataFrame) -> pd.DataFrame:
    """`LEAGUE_COLUMNS`: a row per fleet and configuration, best first, from a row per scenario.

    The places are by time above the band, then regret, then load moved, then the order of the names. Of worst usages it
    has the highest; everything else is over the whole time of the scenarios.
    """
    tables = []
    for fleet, rows in _rates(outcomes).groupby("fleet", sort=False):
        hours = rows.groupby("configuration")["duration_s"].sum() / PER_HOUR_S
        table = pd.DataFrame({"scenarios": rows.groupby("configuration").size(), "hours": hours})
        for metric in METRICS:
            weighed = (rows[metric] * rows["duration_s"]).groupby(rows["configuration"]).sum() / PER_HOUR_S / hours
            table[metric] = rows.groupby("configuration")[metric].max() if metric == WORST else weighed
        table = table.reset_index().sort_values([ABOVE, REGRET, MOVED, "configuration"], kind="stable")
        chosen = recommend(outcomes, str(fleet)).configuration
        table["recommended"] = table["configuration"] == chosen
        table["fleet"], table["place"] = fleet, range(1, len(table) + 1)
        tables.append(table[LEAGUE_COLUMNS])
    return pd.concat(tables, ignore_index=True)


def paired_differences(outcomes: pd.DataFrame) -> pd.DataFrame:
    """`DIFFERENCE_COLUMNS`: a row per fleet, metric and two configurations, the first one less the second."""
    found = []
    rates = _rates(outcomes)
    names = list(dict.fromkeys(rates["configuration"]))
    for fleet, rows in rates.groupby("fleet", sort=False):
        over = _paired_over(rows)
        for metric, (one, other) in itertools.product(METRICS, itertools.combinations(names, 2)):
            each = _difference(rows, metric, one, other)
            found.append((fleet, metric, one, other, each.mean, each.low, each.high, each.pairs, over, each.differs))
    return pd.DataFrame(found, columns=DIFFERENCE_COLUMNS)


def interval(differences: Sequence[float] | np.typing.NDArray[np.float64]) -> MeanDifference:
    """Their mean with Student's t-interval; raises `ValueError` for none."""
    values = np.asarray(differences, dtype=np.float64)
    if not len(values):
        raise ValueError("differences: there are no pairs")
    mean = float(values.mean())
    if len(values) == 1:
        return MeanDifference(mean, None, None, 1)
    error = float(values.std(ddof=1)) / float(np.sqrt(len(values)))
    margin = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)) * error
    return MeanDifference(mean, mean - margin, mean + margin, len(values))


def recommend(outcomes: pd.DataFrame, fleet: str) -> Recommendation:
    """Of those that keep the load as even as the best does, the one that disturbs least.

    As even: the time above the band is within half a percent of all time of the least, or within two percent where the
    paired difference may be chance; and of those, regret is within 0.02 of the least, or within 0.1. Of those: fewest
    returns, then least load moved, then fewest clients disturbed, then the order in which they were given. Raises
    `ValueError` for a fleet that has no rows.
    """
    rates = _rates(outcomes)
    rows = rates[rates["fleet"] == fleet]
    if rows.empty:
        raise ValueError(f"fleet {fleet!r}: has no scenarios; there are {', '.join(dict.fromkeys(rates['fleet']))}")
    names = list(dict.fromkeys(rows["configuration"]))
    means = {name: _means(rows[rows["configuration"] == name]) for name in names}
    left, said = names, []
    for metric, (within, within_chance) in _EVENNESS.items():
        best = min(left, key=lambda name: means[name][metric])
        behind = {name: _difference(rows, metric, name, best) for name in left}
        kept = [name for name in left if _is_close(behind[name], within, within_chance)]
        said += [f"{name} is behind {best} in {metric}: {_text(behind[name])}." for name in left if name not in kept]
        left = kept
    chosen = min(left, key=lambda name: [means[name][metric] for metric in (RETURNS, MOVED, CLIENTS)])
    others = [name for name in left if name != chosen]
    if others:
        said.append(f"About as even, and more disturbing: {', '.join(others)}.")
    return Recommendation(fleet, chosen, (*_about(rows, chosen, means[chosen]), *said))


def recommended_yaml(recommendation: Recommendation, values: Mapping[str, object], source: Iterable[str]) -> str:
    """A configuration file: why, and what of it differs from the defaults; strategies are always named.

    `values` are the configuration's keys, `source` says what it was learnt from. Raises `ConfigurationError`.
    """
    settings = settings_of(values, f"configuration {recommendation.configuration}")
    defaults = settings_of({}, "defaults")
    names = [
        name
        for name in Settings.model_fields
        if name in _ALWAYS_NAMED or getattr(settings, name) != getattr(defaults, name)
    ]
    said = [
        f"Recommended by loadmanager pipeline whatif: {recommendation.configuration}",
        "Keys that are not here keep their defaults.",
        "",
        *recommendation.why,
        "",
        *source,
    ]
    comments = [f"# {line}".rstrip() for text in said for line in text.splitlines() or [""]]
    return "\n".join(comments) + "\n\n" + render_fields(settings, names)


def _rates(outcomes: pd.DataFrame) -> pd.DataFrame:
    """The metrics of each scenario, so that scenarios of different length can be compared."""
    rates = outcomes[["fleet", "configuration", "stretch", "seed", "duration_s", WORST, REGRET]].copy()
    rates[ABOVE] = outcomes["time_above_s"] / outcomes["duration_s"]
    for metric in (MOVED, MOVES, AGAIN, RETURNS, CLIENTS):
        rates[metric] = outcomes[metric] * (PER_HOUR_S / outcomes["duration_s"])
    return rates


def _means(rows: pd.DataFrame) -> dict[str, float]:
    weights = rows["duration_s"] / rows["duration_s"].sum()
    return {metric: float((rows[metric] * weights).sum()) for metric in METRICS}


def _paired_over(rows: pd.DataFrame) -> str:
    return "stretches" if len(set(rows["stretch"])) > 1 else "seeds"


def _difference(rows: pd.DataFrame, metric: str, one: str, other: str) -> MeanDifference:
    """Raises `ValueError` when they have no scenario in common."""
    unit = "stretch" if _paired_over(rows) == "stretches" else "seed"
    each = [rows[rows["configuration"] == name].set_index(PAIR_KEYS)[metric].sort_index() for name in (one, other)]
    return interval((each[0] - each[1]).dropna().groupby(level=unit).mean().to_numpy())


def _is_close(behind: MeanDifference, within: float, within_chance: float) -> bool:
    may_be_chance = behind.low is not None and not behind.differs
    return behind.mean <= (within_chance if may_be_chance else within)


def _about(rows: pd.DataFrame, name: str, means: Mapping[str, float]) -> Iterable[str]:
    """What the configuration does, and how much is known of it."""
    yield (
        f"Above the band {100 * means[ABOVE]:.2f} % of the time, regret {means[REGRET]:.3f}; an hour"
        f" {100 * means[MOVED]:.1f} % of all load moved, {100 * means[AGAIN]:.1f} % again within two hours, in"
        f" {means[MOVES]:.2f} moves, {means[RETURNS]:.2f} of them back to a former owner."
    )
    worst = float(rows.loc[rows["configuration"] == name, WORST].max())
    yield f"The busiest broker used {100 * worst:.0f} % of what it has at the most."
    if _paired_over(rows) == "seeds":
        yield "All of this is of one stretch of the history: it says what chance does, and nothing of other days."


def _text(difference: MeanDifference) -> str:
    if difference.low is None or difference.high is None:
        return f"{difference.mean:.4g} more (one pair: no interval)"
    interval = f"{100 * CONFIDENCE:.0f} % interval {difference.low:.4g} to {difference.high:.4g}"
    return f"{difference.mean:.4g} more ({interval}, {difference.pairs} pairs)"
