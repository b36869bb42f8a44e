"""Whether the others could carry what a broker has, or all of a failure domain, if it were lost.

Whoever is lost leaves its bundles to the others, which keep theirs. Two figures bracket how high the most used of them
would stand, as a fraction of what it has: the **bound**, which no way of sharing them out is below, and **placed**,
which one way comes to: heaviest first, each to a broker that would be least used. If that is not above 1, nobody would
be overloaded. Bundles that only who is lost may own are **stranded**: nobody would serve them. What an idle broker uses
is not counted, as everywhere in Level.

Every loss is bounded; the ones with the highest bounds are placed as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.policies import DEFAULT_DOMAIN
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, Rows
from loadmanager.core.planning.certificate.problem_builder import instance_of, owners_after
from loadmanager.core.strategies.level.level_load import LevelLoads

_PLACED = 3
"""Of how many losses it is tried where their bundles would go."""
_AT_ONCE = 2
"""A batch of bundles goes to a part of the brokers, one to each: to one in so many."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Of a broker, or a failure domain, by its name: usages as fractions, and how many bundles nobody else may own."""

    lost: str
    bound: float
    placed: float
    stranded: int

    @property
    def is_borne(self) -> bool:
        """Whether the others could carry it all."""
        return self.placed <= 1 and not self.stranded


@dataclass(frozen=True, slots=True)
class Reserve:
    """The worst loss of one broker, and of one failure domain; None where nothing is left to lose it to."""

    broker: Loss | None
    domain: Loss | None


def reserve_of(snapshot: Snapshot, settings: PlannerSettings) -> Reserve:
    """Of the cluster as it is."""
    ids = snapshot.brokers.ids
    named = [snapshot.policies.failure_domain(broker) for broker in ids]
    names = sorted(set(named) - {DEFAULT_DOMAIN})
    domains = np.array([[name == each for each in named] for name in names], dtype=bool).reshape(len(names), len(ids))
    look = _Look(snapshot, settings, LevelLoads.of(snapshot, settings))
    return Reserve(look.worst(ids, np.eye(len(ids), dtype=bool)), look.worst(names, domains))


class _Look:
    """One look at the cluster."""

    def __init__(self, snapshot: Snapshot, settings: PlannerSettings, loads: LevelLoads) -> None:
        self._snapshot, self._settings, self._loads = snapshot, settings, loads
        self._owner = owners_after(snapshot, ())
        self._instance = self._without([])

    def _without(self, lost: Sequence[str]) -> BalancingProblem:
        return instance_of(self._snapshot, self._settings, self._loads, self._owner, lost)

    def worst(self, names: Sequence[str], losses: BoolArray) -> Loss | None:
        """Of losses (k, M) of brokers, if one does not take all of them."""
        possible = np.flatnonzero(~losses.all(axis=1))
        if not len(possible):
            return None
        bounds = _bounds(self._instance, losses)
        most = possible[np.argsort(-bounds[possible], kind="stable")][:_PLACED]
        found = [self._place(names[row], losses[row], float(bounds[row])) for row in most.tolist()]
        return max(found, key=lambda loss: (loss.stranded > 0, loss.placed))

    def _place(self, name: str, lost: BoolArray, bound: float) -> Loss:
        """With who may own what once they are lost (M,): those that are secondary by a policy step in."""
        ids = self._snapshot.brokers.ids
        placed, stranded = _place(self._without([ids[row] for row in np.flatnonzero(lost)]), self._owner, lost)
        return Loss(name, bound, max(bound, placed), stranded)


def _bounds(instance: BalancingProblem, losses: BoolArray) -> FloatArray:
    """(k,): all load over what those have that are left, and what those keep."""
    load = instance.load(instance.owner)
    capacity, kept = instance.capacity, ~losses
    having = np.stack([np.where(kept, each, 0.0).sum(axis=1) for each in capacity.T], axis=1)
    spread = np.divide(load.sum(axis=0), having, out=np.zeros_like(having), where=having > 0).max(axis=1)
    usage = (load * instance.per_need).max(axis=1)
    return np.asarray(np.maximum(spread, np.where(kept, usage, 0.0).max(axis=1)))


def _place(instance: BalancingProblem, owner: Rows, lost: BoolArray) -> tuple[float, int]:
    """Tries where the bundles would go that those own who are lost (M,): how high the most used of the others gets, and
    how many bundles none of them may own.
    """
    rows = np.flatnonzero((owner >= 0) & lost[owner])
    load = instance.load(np.where(np.isin(np.arange(len(owner)), rows), -1, owner))
    allowed = instance.may_own & ~lost
    is_stranded = (allowed.sum(axis=1) == 0)[instance.classes[rows]]
    rows, stranded = rows[~is_stranded], int(is_stranded.sum())
    rows = rows[np.argsort(-(instance.need[rows] * instance.per_need[~lost].mean(axis=0)).max(axis=1), kind="stable")]
    at_once = max(1, int((~lost).sum()) // _AT_ONCE)
    for first in range(0, len(rows), at_once):
        batch = rows[first : first + at_once]
        for kind in np.unique(instance.classes[batch]).tolist():
            _share_out(instance, load, batch[instance.classes[batch] == kind], np.flatnonzero(allowed[kind]))
    return float((load * instance.per_need)[~lost].max(initial=0.0)), stranded


def _share_out(instance: BalancingProblem, load: FloatArray, bundles: Rows, brokers: Rows) -> None:
    """Add the bundles, heaviest first, to those that would be least used by a middling one of them; one to each, and
    again when there are more.
    """
    for first in range(0, len(bundles), len(brokers)):
        some = bundles[first : first + len(brokers)]
        middling = instance.need[some].mean(axis=0)
        after = ((load[brokers] + middling) * instance.per_need[brokers]).max(axis=1)
        takers = brokers[np.argsort(after, kind="stable")[: len(some)]]
        load[takers] += instance.need[some]
