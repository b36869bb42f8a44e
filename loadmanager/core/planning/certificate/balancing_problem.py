"""Load balancing problem in columns, the input of the bounds: bundle needs, broker capacities, eligibility.

N bundles, M brokers, R resources, K classes of eligibility. The usage of a resource is the total need of the broker's
bundles times `per_need`, the inverse of its capacity. The **peak** of an assignment is the highest usage of any
resource of any broker. Heat is the peak over the level (`core.strategies.level.level_load`).

A bundle may always stay where it is, unless its owner is to be `emptied`. So bounds hold for every plan, including one
that leaves a bundle on a broker that the rules do not allow.

Only rules that do not depend on the current owners count: operator controls, isolation policies, the load manager's
class, pins and frozen bundles. Further limits (topics, anti-affinity groups) would only restrict the choice, so the
bounds also hold with them. The plan's own moves are always allowed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from loadmanager.core.constraints.filters import PlacementQuestion, lasting_brokers, rules_of
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.fleet_load import carried_load, total_load
from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import NOBODY, Snapshot
from loadmanager.core.planning.movable_bundles import as_if_draining
from loadmanager.core.strategies.level.level_load import LevelLoads
from loadmanager.core.strategies.placement import placement_strategy

Rows = npt.NDArray[np.integer]

LEAST_CERTIFIED_LEVEL = 0.02
"""Lower limit of the level in a certificate, since heat would otherwise be a ratio of two tiny figures."""


@dataclass(frozen=True, eq=False)
class BalancingProblem:
    """`need` (N, R) and `per_need` (M, R), neither negative; 0 for a broker whose usage does not grow.

    `owner` (N,) is a broker's row, -1 for an unowned bundle, which does not count. `classes` (N,) is a row of `may_own`
    (K, M): the brokers that may own the bundle, at least one. `cost` (N,) is its share of all load, the price of moving
    it.
    """

    need: FloatArray
    per_need: FloatArray
    owner: Rows
    classes: Rows
    may_own: BoolArray
    cost: FloatArray

    @cached_property
    def owned(self) -> BoolArray:
        """Return a mask (N,) of the owned bundles."""
        return np.asarray(self.owner >= 0)

    @cached_property
    def must_leave(self) -> BoolArray:
        """Return a mask (N,) of the bundles that cannot stay."""
        return np.asarray(self.owned & ~self.may_own[self.classes, self.owner])

    @cached_property
    def may_leave(self) -> BoolArray:
        """Return a mask (N,) of the bundles that may stay or leave."""
        has_choice = self.may_own.sum(axis=1) > 1
        return np.asarray(self.owned & ~self.must_leave & has_choice[self.classes])

    @cached_property
    def staying(self) -> FloatArray:
        """Return the load (M, R) of bundles that can stay at each broker."""
        return self.load(np.where(self.must_leave, NOBODY, self.owner))

    @cached_property
    def peak_before(self) -> float:
        """Return the highest usage of any broker with the present owners."""
        return self.peak(self.owner)

    @cached_property
    def capacity(self) -> FloatArray:
        """Return capacities (M, R); infinite where usage does not grow."""
        return np.divide(1.0, self.per_need, out=np.full_like(self.per_need, np.inf), where=self.per_need > 0)

    @cached_property
    def level(self) -> float:
        """Return the peak if all load were divisible and spread evenly over the brokers, bounded from below."""
        used, having = self.need[self.owned].sum(axis=0), self.capacity.sum(axis=0)
        levels = np.divide(used, having, out=np.zeros_like(used), where=having > 0)
        return max(float(levels.max(initial=0.0)), LEAST_CERTIFIED_LEVEL)

    @property
    def size(self) -> FloatArray:
        """Return the need of each bundle over all resources, relative to the total (N,); 0 for an unowned one."""
        need = np.where(self.owned[:, None], self.need, 0.0)
        total = need.sum(axis=0)[:, None]
        return np.asarray(np.divide(need.T, total, out=np.zeros(need.T.shape), where=total > 0).sum(axis=0))

    def load(self, owner: Rows) -> FloatArray:
        """Return the load of each broker (M, R) with these owners (N,)."""
        bins, brokers = owner + 1, len(self.per_need)
        sums = [np.bincount(bins, weights=each, minlength=brokers + 1)[1:] for each in self.need.T]
        return np.stack(sums, axis=1).astype(np.float64)

    def peak(self, owner: Rows) -> float:
        """Return the highest usage of any broker with these owners (N,)."""
        return float((self.load(owner) * self.per_need).max(initial=0.0))


def build_problem(
    snapshot: Snapshot, settings: PlannerSettings, loads: LevelLoads, after: Rows, emptied: Collection[str] = ()
) -> BalancingProblem:
    """Build the problem; `after` (N,) are the owners after the plan, `emptied` brokers are to own nothing.

    Needs and capacities are rounded to single precision, as in answers and histories. Without brokers there are no
    bundles.
    """
    if not len(snapshot.brokers):
        nothing = np.zeros((0, len(loads.resources)))
        return BalancingProblem(nothing, nothing, after, after, np.zeros((0, 0), dtype=bool), np.zeros(0))
    owner = snapshot.bundles.assigned.astype(np.int64)
    classes, may_own = _by_rules(snapshot, settings, emptied)
    classes, may_own = _keep_in_place(snapshot, owner, emptied, classes, may_own)
    may_stay = np.isin(owner, _rows_of(snapshot, emptied), invert=True) | (may_own.sum(axis=1) == 0)[classes]
    classes, may_own = _allow_broker(classes, may_own, np.where(may_stay, owner, NOBODY))
    classes, may_own = _allow_broker(classes, may_own, after)
    may_own |= ~may_own.any(axis=1, keepdims=True)  # classes of unowned bundles
    total = total_load(snapshot)
    cost = carried_load(snapshot) / total if total > 0 else np.zeros(len(owner))
    return BalancingProblem(_single(loads.need), _single(loads.per_need), owner, classes, may_own, _single(cost))


def _single(figures: FloatArray) -> FloatArray:
    return figures.clip(0.0, float(np.finfo(np.float32).max)).astype(np.float32).astype(np.float64)


def _rows_of(snapshot: Snapshot, brokers: Collection[str]) -> list[int]:
    return [row for row, broker in enumerate(snapshot.brokers.ids) if broker in brokers]


def _by_rules(snapshot: Snapshot, settings: PlannerSettings, emptied: Collection[str]) -> tuple[Rows, BoolArray]:
    """Return the class of each bundle (N,) and the eligibility of each class (K, M), by namespace policies."""
    seen = as_if_draining(snapshot, [snapshot.brokers.ids[row] for row in _rows_of(snapshot, emptied)])
    rules, projection = rules_of(settings, placement_strategy(settings)[0]), Projection(seen)
    of_policy: dict[str | None, int] = {}
    may_own: list[BoolArray] = []
    of_namespace = []
    for namespace in snapshot.bundles.namespaces:
        policy = snapshot.policies.find_policy(namespace)
        name = None if policy is None else policy.name
        if name not in of_policy:
            of_policy[name] = len(may_own)
            may_own.append(lasting_brokers(rules, PlacementQuestion(namespace, projection, settings)))
        of_namespace.append(of_policy[name])
    classes = np.array(of_namespace, dtype=np.int64)[snapshot.bundles.namespace]
    return classes, np.array(may_own, dtype=bool).reshape(-1, len(snapshot.brokers))


def _keep_in_place(
    snapshot: Snapshot, owner: Rows, emptied: Collection[str], classes: Rows, may_own: BoolArray
) -> tuple[Rows, BoolArray]:
    """Restrict pinned and frozen bundles to their current or home broker."""
    controls, ids = snapshot.controls, snapshot.brokers
    more: list[BoolArray] = []
    classes = classes.copy()
    for name in sorted(controls.pinned.keys() | controls.frozen_bundles.keys()):
        row = snapshot.bundles.find_row(name)
        if row is None or owner[row] < 0 or ids.ids[owner[row]] in emptied:
            continue
        allowed = np.zeros((1, may_own.shape[1]), dtype=bool)
        home = ids.find_row(controls.pinned[name]) if name in controls.pinned else None
        allowed[0, owner[row] if home is None or name in controls.frozen_bundles else home] = True
        classes[row] = len(may_own) + len(more)
        more.append(allowed)
    return classes, np.concatenate([may_own, *more])


def _allow_broker(classes: Rows, may_own: BoolArray, broker: Rows) -> tuple[Rows, BoolArray]:
    """Split classes so that each bundle may also be at this broker (N,); -1 adds nothing."""
    is_new = (broker >= 0) & ~may_own[classes, broker]
    if not is_new.any():
        return classes, may_own
    rows = np.flatnonzero(is_new)
    pairs, which = np.unique(np.stack([classes[rows], broker[rows]], axis=1), axis=0, return_inverse=True)
    opened = may_own[pairs[:, 0]].copy()
    opened[np.arange(len(pairs)), pairs[:, 1]] = True
    classes = classes.copy()
    classes[rows] = len(may_own) + which.ravel()
    return classes, np.concatenate([may_own, opened])
