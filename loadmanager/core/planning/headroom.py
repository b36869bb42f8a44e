"""Headroom: capacity of the remaining brokers to carry the load of a lost broker or failure domain.

The bundles of lost brokers go to the remaining ones, which keep their own. Two figures bracket the highest usage
afterwards, as a fraction of capacity: the **bound** is a lower bound for any distribution; **placed** is the result of
a greedy distribution, heaviest first to the least used broker. If placed is at most 1, no broker is overloaded. Bundles
that only lost brokers may own are **stranded**: no broker would serve them. Idle usage is not counted, as everywhere in
Level.

The bound is computed for every loss, placed only for the losses with the highest bounds.

`size_fleet` returns the number of brokers needed to keep such a reserve at the current peak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.policies import DEFAULT_DOMAIN
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import RATED, BoolArray, FloatArray, rated_weights
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, Rows, build_problem
from loadmanager.core.planning.plan_effect import owners_after
from loadmanager.core.strategies.level.level_load import LevelLoads

_PLACED = 3
"""Number of losses that are placed."""
_AT_ONCE = 2
"""Divisor of the brokers per batch of the greedy distribution."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a broker or failure domain, by name: usages as fractions, and the number of stranded bundles."""

    lost: str
    bound: float
    placed: float
    stranded: int

    @property
    def is_borne(self) -> bool:
        """Return True if the remaining brokers can carry the load."""
        return self.placed <= 1 and not self.stranded


@dataclass(frozen=True, slots=True)
class Reserve:
    """Worst loss of one broker, and of one failure domain; None if no broker would remain."""

    broker: Loss | None
    domain: Loss | None


def compute_reserve(snapshot: Snapshot, settings: PlannerSettings) -> Reserve:
    """Compute the headroom of the cluster."""
    ids = snapshot.brokers.ids
    named = [snapshot.policies.failure_domain(broker) for broker in ids]
    names = sorted(set(named) - {DEFAULT_DOMAIN})
    domains = np.array([[name == each for each in named] for name in names], dtype=bool).reshape(len(names), len(ids))
    look = _HeadroomCheck(snapshot, settings, LevelLoads.of(snapshot, settings))
    return Reserve(look.worst(ids, np.eye(len(ids), dtype=bool)), look.worst(names, domains))


class _HeadroomCheck:
    """Headroom computation over one snapshot."""

    def __init__(self, snapshot: Snapshot, settings: PlannerSettings, loads: LevelLoads) -> None:
        self._snapshot, self._settings, self._loads = snapshot, settings, loads
        self._owner = owners_after(snapshot, ())
        self._instance = self._without([])

    def _without(self, lost: Sequence[str]) -> BalancingProblem:
        return build_problem(self._snapshot, self._settings, self._loads, self._owner, lost)

    def worst(self, names: Sequence[str], losses: BoolArray) -> Loss | None:
        """Find the worst of losses (k, M) of brokers that leave at least one broker."""
        possible = np.flatnonzero(~losses.all(axis=1))
        if not len(possible):
            return None
        bounds = _bounds(self._instance, losses)
        most = possible[np.argsort(-bounds[possible], kind="stable")][:_PLACED]
        found = [self._place(names[row], losses[row], float(bounds[row])) for row in most.tolist()]
        return max(found, key=lambda loss: (loss.stranded > 0, loss.placed))

    def _place(self, name: str, lost: BoolArray, bound: float) -> Loss:
        """Place the load of lost brokers (M,). Secondary brokers of isolation policies become eligible."""
        ids = self._snapshot.brokers.ids
        placed, stranded = _place(self._without([ids[row] for row in np.flatnonzero(lost)]), self._owner, lost)
        return Loss(name, bound, max(bound, placed), stranded)


def _bounds(problem: BalancingProblem, losses: BoolArray) -> FloatArray:
    """Return the bounds (k,): total load over remaining capacity, or the usage that a remaining broker has already."""
    load = problem.load(problem.owner)
    capacity, kept = problem.capacity, ~losses
    having = np.stack([np.where(kept, each, 0.0).sum(axis=1) for each in capacity.T], axis=1)
    spread = np.divide(load.sum(axis=0), having, out=np.zeros_like(having), where=having > 0).max(axis=1)
    usage = (load * problem.per_need).max(axis=1)
    return np.asarray(np.maximum(spread, np.where(kept, usage, 0.0).max(axis=1)))


def _place(problem: BalancingProblem, owner: Rows, lost: BoolArray) -> tuple[float, int]:
    """Distribute the bundles of lost brokers (M,); return the highest usage afterwards, and the number of bundles that
    no remaining broker may own.
    """
    rows = np.flatnonzero((owner >= 0) & lost[owner])
    load = problem.load(np.where(np.isin(np.arange(len(owner)), rows), -1, owner))
    allowed = problem.may_own & ~lost
    is_stranded = (allowed.sum(axis=1) == 0)[problem.classes[rows]]
    rows, stranded = rows[~is_stranded], int(is_stranded.sum())
    rows = rows[np.argsort(-(problem.need[rows] * problem.per_need[~lost].mean(axis=0)).max(axis=1), kind="stable")]
    at_once = max(1, int((~lost).sum()) // _AT_ONCE)
    for first in range(0, len(rows), at_once):
        batch = rows[first : first + at_once]
        for kind in np.unique(problem.classes[batch]).tolist():
            _share_out(problem, load, batch[problem.classes[batch] == kind], np.flatnonzero(allowed[kind]))
    return float((load * problem.per_need)[~lost].max(initial=0.0)), stranded


def _share_out(problem: BalancingProblem, load: FloatArray, bundles: Rows, brokers: Rows) -> None:
    """Distribute the bundles, heaviest first, to the brokers that would be least used; one each per pass."""
    for first in range(0, len(bundles), len(brokers)):
        some = bundles[first : first + len(brokers)]
        middling = problem.need[some].mean(axis=0)
        after = ((load[brokers] + middling) * problem.per_need[brokers]).max(axis=1)
        takers = brokers[np.argsort(after, kind="stable")[: len(some)]]
        load[takers] += problem.need[some]


WINDOW_S = 600.0
_SLACK = 1.1
"""Multiple of the peak that a smaller fleet must carry."""
_FEWEST = 2
_MOST_PERCENT = 1000
_DECIMALS = 4
_RESOURCES = ("CPU", "direct memory", "network in", "network out")
"""Names of the rated resources."""


@dataclass(frozen=True, slots=True)
class FleetSize:
    """Number of brokers `needed`, and its reason."""

    needed: int
    sentence: str


@dataclass(frozen=True, slots=True)
class SizeMemory:
    """Memory between two calls: the last number, the time of the first call, and the loads of the last `WINDOW_S` with
    their times.
    """

    needed: int
    since_s: float
    loads: tuple[tuple[float, FloatArray], ...]


def size_fleet(
    snapshot: Snapshot, settings: PlannerSettings, memory: SizeMemory | None
) -> tuple[FleetSize, SizeMemory] | None:
    """Return the fleet size and the memory for the next call; None while no broker has reported.

    Load is counted in brokers: the usages of all brokers, added up for each resource. The fleet is large enough if the
    brokers that remain after the loss of any one broker stay within `loadBalancerBrokerOverloadedThresholdPercentage`;
    with failure domains, after the loss of any one domain, brokers being spread evenly over them. Brokers count as
    alike, and load as divisible.

    Hysteresis: the number rises at once. It falls only after `WINDOW_S` of observation, and only to a number that
    carries the peak of that time plus a tenth. So a new leader, or a short pause of the load, never reduces the fleet.
    """
    now_s, brokers = snapshot.taken_at_s, len(snapshot.brokers.ids)
    if not brokers:
        return None
    before = memory or SizeMemory(brokers, now_s, ())
    recent = (each for each in before.loads if each[0] > now_s - WINDOW_S)
    loads = (*recent, (now_s, _load_in_brokers(snapshot, settings)))
    peaks = np.max([load for _, load in loads], axis=0)
    peak, resource = float(peaks.max()), _RESOURCES[int(peaks.argmax())]
    domains = len({snapshot.policies.failure_domain(broker) for broker in snapshot.brokers.ids} - {DEFAULT_DOMAIN})
    limit_percent = max(settings.broker_overloaded_threshold_percentage, 1)
    least, most = (count_brokers(100 * load / limit_percent, domains) for load in (peak, _SLACK * peak))
    needed = max(before.needed, least)
    if now_s - before.since_s >= WINDOW_S:
        needed = min(needed, most)
    loss = "a failure domain" if domains > 1 else "a broker"
    sentence = (
        f"{needed} brokers carry the peak of the last {WINDOW_S / 60:.0f} min, {peak:.3g} brokers of {resource}, and"
        f" stay within {limit_percent:g} % after the loss of {loss}"
    )
    return FleetSize(needed, sentence), SizeMemory(needed, before.since_s, loads)


def count_brokers(load: float, domains: int) -> int:
    """Return the minimum number of brokers such that those remaining after a loss carry `load`, in brokers."""
    count = max(_FEWEST, math.ceil(load))
    while count - (math.ceil(count / domains) if domains > 1 else 1) < load:
        count += 1
    return count


def _load_in_brokers(snapshot: Snapshot, settings: PlannerSettings) -> FloatArray:
    """Return the weighted load of all brokers, in brokers, (4,) by rated resource."""
    usage = np.nan_to_num(snapshot.brokers.usage_percent[:, [*RATED]].astype(np.float64))
    factors = np.array([*rated_weights(settings.resource_weights).values()])
    return np.asarray(np.round(np.clip(usage, 0, _MOST_PERCENT).sum(axis=0) * factors / 100, _DECIMALS))
