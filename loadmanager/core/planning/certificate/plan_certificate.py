"""Certificate of a plan: its gap to the best possible plan, with a proof.

All heats are peaks over the level, the peak if all load were divisible. The proof is found once; the figures follow
from columns, plan and proof alone, so that anybody with these three can recompute them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmanager.core.domain.plan import Assign, Unload
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, Rows
from loadmanager.core.planning.certificate.bound_search import find_bounds
from loadmanager.core.planning.certificate.bounds import Bound
from loadmanager.core.planning.certificate.minimum_moves import Relief, Reliefs, find_least_peak
from loadmanager.core.planning.certificate.noise_floor import noise_floor
from loadmanager.core.planning.certificate.problem_builder import build_problem, owners_after
from loadmanager.core.strategies.level.level_load import LevelLoads


@dataclass(frozen=True, slots=True, eq=False)
class Proof:
    """Bounds of the peak, the best of each kind, highest first; and the dual solutions for the lowest peak of the
    plan's load, for the least load, and for the fewest bundles to reach its peak.
    """

    bounds: tuple[Bound, ...]
    budget: Relief
    load: Relief
    moves: Relief


@dataclass(frozen=True, slots=True)
class CertificateFigures:
    """Heats before and after the plan; the lower bound of all assignments; that of plans that move no more; the noise
    floor. Moves are a fraction of all load and a number of bundles, each with its lower bound for the reached peak.
    `level` is a usage, a fraction.
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
        """Return the moved load over the least load; None if load moves though none has to."""
        return _ratio(self.load_moved, self.least_load)


def sum_certificates(rounds: Sequence[CertificateFigures]) -> dict[str, float]:
    """Summarize successive plans: mean gaps to the bound and to the bound within the moved load; load moved in all, and
    the least load for the reached heats.
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
class Certified:
    """A plan with its proof: the columns, the owners `after` it, and the names of the rows.

    `sigma` (N,) is how far each bundle's load usually is from its mean, as a part of that.
    """

    problem: BalancingProblem
    after: Rows
    sigma: FloatArray
    proof: Proof
    figures: CertificateFigures
    brokers: Sequence[str]
    bundles: Sequence[str]
    resources: Sequence[str]


def certify(
    snapshot: Snapshot,
    settings: PlannerSettings,
    steps: Sequence[Assign | Unload],
    emptied: Collection[str] = (),
) -> Certified:
    """Certify the steps of a plan on this snapshot; `emptied` are brokers to be left with nothing."""
    loads = LevelLoads.of(snapshot, settings)
    after = owners_after(snapshot, steps)
    problem = build_problem(snapshot, settings, loads, after, emptied)
    sigma = snapshot.bundles.sigma.astype(np.float64)[: len(after)]
    proof = find_proof(problem, after)
    names = loads.names()
    figures = compute_figures(problem, after, sigma, proof)
    return Certified(
        problem, after, sigma, proof, figures, snapshot.brokers.ids, snapshot.bundles.names[: len(after)], names
    )


def find_proof(problem: BalancingProblem, after: Rows) -> Proof:
    """Find the best proof for a plan that results in these owners (N,)."""
    bounds = find_bounds(problem)
    lowest = bounds[0][0] if bounds else 0.0
    peak, moved = problem.peak(after), _moved(problem, after)
    return Proof(
        bounds=tuple(bound for _, bound in bounds),
        budget=find_least_peak(problem, lowest, float(problem.cost[moved].sum())),
        load=Reliefs(problem, peak).relief(peak),
        moves=Reliefs(problem, peak, in_moves=True).relief(peak),
    )


def compute_figures(problem: BalancingProblem, after: Rows, sigma: FloatArray, proof: Proof) -> CertificateFigures:
    """Compute the figures of that plan, from any proof, also a weak or empty one."""
    level, moved = problem.level, _moved(problem, after)
    load_moved, peak = float(problem.cost[moved].sum()), problem.peak(after)
    bound = max((each.peak(problem) for each in proof.bounds), default=0.0)
    in_budget = proof.budget.peak if proof.budget.least_load(problem) > load_moved else 0.0
    return CertificateFigures(
        level=level,
        heat_before=problem.peak(problem.owner) / level,
        heat_after=peak / level,
        bound=bound / level,
        bound_in_budget=max(bound, in_budget) / level,
        noise_floor=noise_floor(problem, sigma),
        load_moved=load_moved,
        least_load=_of_peak(proof.load, peak).least_load(problem),
        bundles_moved=int(moved.sum()),
        least_bundles=_of_peak(proof.moves, peak).least_moves(problem),
    )


def _of_peak(relief: Relief, peak: float) -> Relief:
    """Return the same prices for a peak that is not below the plan's."""
    return Relief(max(relief.peak, peak), relief.resource, relief.price)


def _moved(problem: BalancingProblem, after: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray((after != problem.owner) & (problem.owner >= 0))


def _ratio(made: float, least: float) -> float | None:
    if least > 0:
        return made / least
    return 1.0 if made == 0 else None
