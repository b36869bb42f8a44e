"""Certificate of a plan: its gap to the best possible plan.

All heats are peaks over the level, which is the peak if all load were divisible. Sentences for operators are built here
too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.domain.plan import Assign, Figure, Unload, Verdict
from loadmanager.core.domain.reasons import CertificateReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, Rows, build_problem
from loadmanager.core.planning.certificate.bounds import Bound, Heaviest, Pigeonhole, Volume, find_bounds
from loadmanager.core.planning.certificate.minimum_moves import MinimumMoves
from loadmanager.core.planning.headroom import Reserve, compute_reserve
from loadmanager.core.planning.movable_bundles import restrain
from loadmanager.core.planning.plan_effect import owners_after
from loadmanager.core.strategies.level.level_load import LevelLoads

_SPAN, _POINTS = 8.0, 512
"""Integration range in standard deviations, and number of points."""
_NONE = 1e-9
_DIGITS = 2
"""Digits to which deviations are rounded, so that equal ones share a computation."""


def noise_floor(problem: BalancingProblem, sigma: FloatArray) -> float:
    """Return the mean heat of the hottest broker over time; `sigma` (N,) are parts of each bundle's load.

    Each broker has its part of all load at the level. Bundles vary independently, each by its `sigma`, so a broker
    varies by s_b = sqrt(V / g_b) / W, where g_b is its part of all capacity, W all load and V the sum of (sigma w)^2.
    The floor is the expected maximum over independent normal variables of all brokers. Variation common to all, as by
    day and night, is not noise.
    """
    need = problem.need[problem.owned]
    total, varying = need.sum(axis=0), np.square(need * sigma[problem.owned, None]).sum(axis=0)
    capacity, floor = problem.capacity, 0.0
    for resource in range(need.shape[1]):
        having = float(capacity[:, resource].sum())
        if 0 < having < np.inf and total[resource] > 0:
            deviation = np.sqrt(varying[resource] / (capacity[:, resource] / having)) / total[resource]
            floor = max(floor, float(total[resource]) / having / problem.level * (1 + highest_of(deviation)))
    return floor


def highest_of(deviation: FloatArray) -> float:
    """Return the expected maximum of independent normal variables of mean 0 with these standard deviations."""
    largest = float(deviation.max(initial=0.0))
    if largest < _NONE:
        return 0.0
    scale = 10.0 ** (np.floor(np.log10(np.maximum(deviation, largest * 1e-6))) - _DIGITS + 1)
    distinct, times = np.unique(np.round(np.maximum(deviation, largest * 1e-6) / scale) * scale, return_counts=True)
    at = np.linspace(-_SPAN * largest, _SPAN * largest, _POINTS)
    below = np.exp((times * np.log(_normal(at[:, None] / distinct))).sum(axis=1))
    density = np.where(at >= 0, 1 - below, -below)
    return max(0.0, float(np.trapezoid(density, at)))


def _normal(at: FloatArray) -> FloatArray:
    """Return the standard normal distribution function, to 1e-7 (Abramowitz and Stegun, 26.2.17)."""
    t = 1 / (1 + 0.2316419 * np.abs(at))
    powers = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    above = np.exp(-at * at / 2) / np.sqrt(2 * np.pi) * powers
    return np.asarray(np.clip(np.where(at >= 0, 1 - above, above), 1e-300, 1.0))


@dataclass(frozen=True, slots=True)
class CertificateFigures:
    """Heats before and after the plan, their lower bounds for any plan and for plans that move no more load, and the
    noise floor. Moves are a fraction of all load and a number of bundles, each with its lower bound for the reached
    peak. `level` is a usage, a fraction.
    """

    level: float
    heat_before: float
    heat_after: float
    bound: float
    bound_in_budget: float
    noise_floor: float
    load_moved: float
    least_load: float
    bundles_moved: int
    least_bundles: int

    @property
    def gap(self) -> float:
        """Return the plan's heat over the lower bound; 1 is optimal."""
        return self.heat_after / self.bound if self.bound > 0 else 1.0

    @property
    def load_gap(self) -> float | None:
        """Return the moved load over the least load; None if the least load is 0 but some moved."""
        if self.least_load > 0:
            return self.load_moved / self.least_load
        return 1.0 if self.load_moved == 0 else None


def sum_certificates(rounds: Sequence[CertificateFigures]) -> dict[str, float]:
    """Summarize successive plans: the mean gaps to both bounds, the total load moved, and the least load for the
    reached heats.
    """
    in_budget = [each.heat_after / each.bound_in_budget for each in rounds if each.bound_in_budget > 0]
    return {
        "rounds": len(rounds),
        "gapMean": float(np.mean([each.gap for each in rounds])),
        "gapInBudgetMean": float(np.mean(in_budget or [1.0])),
        "loadMoved": sum(each.load_moved for each in rounds),
        "leastLoad": sum(each.least_load for each in rounds),
    }


@dataclass(frozen=True, slots=True, eq=False)
class CertificateSummary:
    """Figures of a certificate, the kind of the binding bound (empty without owned bundles), and a sentence."""

    figures: CertificateFigures
    bound_by: str
    verdict: Verdict


def certify(
    snapshot: Snapshot,
    settings: PlannerSettings,
    steps: Sequence[Assign | Unload],
    emptied: Collection[str] = (),
) -> CertificateSummary:
    """Certify the steps of a plan on this snapshot; `emptied` are brokers to be left with nothing."""
    loads = LevelLoads.of(snapshot, settings)
    after = owners_after(snapshot, steps)
    problem = build_problem(snapshot, settings, loads, after, emptied)
    bounds = find_bounds(problem)
    figures = _compute_figures(problem, bounds, after, snapshot.bundles.sigma.astype(np.float64)[: len(after)])
    if not bounds:
        return CertificateSummary(figures, "", _build_verdict(figures, "nobody owns anything"))
    cause = describe(bounds[0], snapshot.bundles.names, loads.names())
    return CertificateSummary(figures, type(bounds[0]).__name__.lower(), _build_verdict(figures, cause))


def _compute_figures(
    problem: BalancingProblem, bounds: Sequence[Bound], after: Rows, sigma: FloatArray
) -> CertificateFigures:
    """Compute the figures of a plan that results in these owners (N,)."""
    level, peak = problem.level, problem.peak(after)
    bound, lowest = (max(each.peak for each in bounds), bounds[0].peak) if bounds else (0.0, 0.0)
    moved = (after != problem.owner) & problem.owned
    load_moved = float(problem.cost[moved].sum())
    by_load = MinimumMoves(problem, min(lowest, peak))
    return CertificateFigures(
        level=level,
        heat_before=problem.peak_before / level,
        heat_after=peak / level,
        bound=bound / level,
        bound_in_budget=max(bound, by_load.least_peak(load_moved)) / level,
        noise_floor=noise_floor(problem, sigma),
        load_moved=load_moved,
        least_load=by_load.least_load(peak),
        bundles_moved=int(moved.sum()),
        least_bundles=MinimumMoves(problem, peak, in_moves=True).least_moves(peak),
    )


def _build_verdict(figures: CertificateFigures, bound_by: str) -> Verdict:
    """Return the certificate as a verdict on the cluster."""
    why: dict[str, Figure] = {
        "heat_before": figures.heat_before,
        "heat_after": figures.heat_after,
        "bound": figures.bound,
        "bound_by": bound_by,
        "bound_in_budget": figures.bound_in_budget,
        "load_moved_percent": 100 * figures.load_moved,
        "least_load_percent": 100 * figures.least_load,
        "noise_floor": figures.noise_floor,
    }
    moves = figures.bundles_moved > 0
    reason = CertificateReason.PLAN_CERTIFIED if moves else CertificateReason.NOTHING_MOVES
    return Verdict("cluster", reason, acted=moves, why=why)


def describe(bound: Bound, bundles: Sequence[str], resources: Sequence[str]) -> str:
    """Describe a bound in a sentence, by the names of bundles and resources."""
    match bound:
        case Heaviest():
            return f"bundle {bundles[bound.bundle]} alone, where it uses least"
        case Volume():
            whose = "all bundles" if bound.of_all else "bundles that only these may own"
            return f"{resources[bound.resource]} of {whose}, over {bound.brokers} brokers"
        case Pigeonhole():
            most = bound.each * bound.brokers + 1
            return f"{resources[bound.resource]}: of the {most} largest bundles {bound.each + 1} share a broker"
        case _:
            return "prices of resources, as brokers are not alike"


@dataclass(frozen=True, slots=True, eq=False)
class DecidedRound:
    """A decided shedding round: its input and its steps. Two concurrent callers may both compute its figures.

    Figures are computed on request, so decisions do not wait for them. The columns of the snapshot stay in memory;
    those of the computation do not.
    """

    snapshot: Snapshot
    settings: PlannerSettings
    steps: Sequence[Assign | Unload]
    _certified: list[CertificateSummary] = field(default_factory=list)
    _reserve: list[Reserve] = field(default_factory=list)

    def certified(self) -> CertificateSummary:
        """Return the certificate of its steps, over the brokers that shedding considers."""
        if not self._certified:
            self._certified.append(certify(restrain(self.snapshot.afresh()), self.settings, self.steps))
        return self._certified[0]

    def reserve(self) -> Reserve:
        """Return the headroom for the loss of a broker or failure domain, before the round."""
        if not self._reserve:
            self._reserve.append(compute_reserve(restrain(self.snapshot.afresh()), self.settings))
        return self._reserve[0]
