"""Result of a simulation: time series and their recorder, completed moves, and quality figures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import CPU, MEMORY, BoolArray, FloatArray, IntArray, rated_weights
from loadmanager.core.planning.certificate.bounds import find_pigeonhole
from loadmanager.core.planning.repeated_moves import NEVER, is_back, share_again, share_back
from loadmanager.core.strategies.level.level_load import bound_level
from loadmanager.lab.simulate.sim_brokers import Carried
from loadmanager.lab.simulate.world_state import WorldState


@dataclass(frozen=True, slots=True)
class CompletedMove:
    """Move of a bundle from `source` to `destination` (None: left to placement), completed at `at_s`.

    `share` is the bundle's share of all load (bytes/s, in and out) at that time, a fraction; `clients` its producers
    and consumers. `is_own`: by the balancer, not for an operator. `moved_s` is the last time the balancer moved it
    before, `left_s` the last time it left the destination (see `core.planning.repeated_moves`).
    """

    at_s: float
    bundle: str
    source: BrokerId
    destination: BrokerId | None
    reason: Reason
    share: float
    load: float
    clients: int
    is_own: bool
    moved_s: float = NEVER
    left_s: float = NEVER


@dataclass(frozen=True, slots=True)
class SplitDone:
    """Split of a bundle at these boundaries."""

    at_s: float
    bundle: str
    boundaries: tuple[int, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class FirstReport:
    """First report of a registration, at the time when the leader read it."""

    at_s: float
    broker: BrokerId
    incarnation: int


@dataclass(frozen=True, slots=True, eq=False)
class StepSeries:
    """Columns (T,) with a row per step, taken at its start, before any decision.

    The level is the usage that all brokers would have if the served load were spread evenly by capacity, for the
    scarcest resource and without idle usage. `imbalance` is the usage by load of the busiest broker over the level: 1
    is perfect, and that of an idle fleet. `lower_bound` is the lowest imbalance that any assignment of the current
    bundles can reach, NaN where it was not computed. `worst_usage` is the highest usage of a broker, including idle
    usage, as a fraction of its capacity; above 1 if it is overloaded. Resources without weight in the settings do not
    count. The backlog that clients send does not count either, since it only uses free capacity; it shows in `backlog`
    and in reports.

    `brokers` is the number of serving brokers. `moves`, `moved_load` (bytes/s) and `reports` are since the previous
    step. `unowned` are the bundles that no broker serves, `unowned_load` the load of their clients, which is a part of
    `load` and of no other figure. `backlog` (bytes) is what clients have buffered because a bundle has no owner.
    """

    t_s: FloatArray
    imbalance: FloatArray
    lower_bound: FloatArray
    level: FloatArray
    worst_usage: FloatArray
    brokers: IntArray
    load: FloatArray
    moves: IntArray
    moved_load: FloatArray
    unowned: IntArray
    unowned_load: FloatArray
    backlog: FloatArray
    reports: IntArray

    def __len__(self) -> int:
        return len(self.t_s)


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Result of a run.

    `verdicts` counts by the decision (shed, assign, split, drain, breaker), the reason, and if it acted.
    `unowned_bundle_s` is the sum over bundles of the seconds without service, `reconnections` the number of producers
    and consumers that had to reconnect, for any reason.
    """

    seed: int
    step_s: float
    duration_s: float
    series: StepSeries
    moves: tuple[CompletedMove, ...]
    splits: tuple[SplitDone, ...]
    first_reports: tuple[FirstReport, ...]
    placements: int
    rounds: int
    unowned_bundle_s: float
    reconnections: int
    bundles: int
    verdicts: Mapping[tuple[str, Reason, bool], int] = field(default_factory=dict)

    @property
    def moved_again(self) -> float:
        """Return the sum of the shares of all load that the balancer moved again within two hours."""
        return share_again(self.moves)

    @property
    def returns(self) -> int:
        """Return the number of moves by the balancer back to a broker that the bundle had left within four hours."""
        return sum(move.is_own and is_back(move) for move in self.moves)

    @property
    def thrash(self) -> float:
        """Return the sum of the shares of all load that these moves took back; ideally 0."""
        return share_back(self.moves)

    @property
    def moved_share(self) -> float:
        """Return the sum of the shares of all load that moved."""
        return sum((move.share for move in self.moves), 0.0)

    @property
    def clients_disturbed(self) -> int:
        return sum(move.clients for move in self.moves)

    @property
    def worst_usage(self) -> float:
        return float(self.series.worst_usage.max(initial=0.0))

    def time_above(self, imbalance: float) -> float:
        """Return the seconds for which the imbalance was above this one, and above the lower bound."""
        bound = np.where(np.isnan(self.series.lower_bound), 1.0, self.series.lower_bound)
        return self.step_s * int(np.count_nonzero(self.series.imbalance > np.maximum(imbalance, bound)))

    def time_overloaded(self, usage: float) -> float:
        """Return the seconds for which some broker used more than this fraction of its capacity."""
        return self.step_s * int(np.count_nonzero(self.series.worst_usage > usage))

    def find_since(self, after_s: float, holds: BoolArray) -> float | None:
        """Return the first time from `after_s` on after which a condition (T,) always holds, if any."""
        broken = np.flatnonzero(~holds)
        first = max(int(np.searchsorted(self.series.t_s, after_s)), int(broken[-1]) + 1 if len(broken) else 0)
        return float(self.series.t_s[first]) if first < len(self.series) else None

    def digest(self) -> str:
        """Return a hash that is equal for two runs if and only if they are exactly equal."""
        taken = hashlib.sha256()
        for column in fields(self.series):
            values = getattr(self.series, column.name)
            taken.update(f"{column.name} {values.dtype.str} {len(values)}\n".encode())
            taken.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
        numbers = (self.seed, self.step_s, self.duration_s, self.placements, self.rounds, self.unowned_bundle_s)
        disturbed = self.reconnections
        counts = sorted((asked, reason.value, acted, count) for (asked, reason, acted), count in self.verdicts.items())
        for part in (numbers, disturbed, self.bundles, counts, self.moves, self.splits, self.first_reports):
            taken.update(f"{part!r}\n".encode())
        return taken.hexdigest()


def mean_known(values: FloatArray, nothing: float = 1.0) -> float:
    """Return the mean of the values that are not NaN, summed in order; `nothing` if there are none."""
    known = values[~np.isnan(values)]
    return float(np.cumsum(known)[-1]) / len(known) if len(known) else nothing


_COUNTS = frozenset({"brokers", "moves", "unowned", "reports"})
"""Columns of a `StepSeries` with integers."""


class StepRecorder:
    """Recorder of one row per step."""

    def __init__(self, state: WorldState) -> None:
        self._state = state
        self._counted = counted_resources(state.settings)
        self._rows: list[dict[str, float]] = []
        self._moves = 0

    def step(self, carried: Carried, moves: list[CompletedMove], reports: int) -> None:
        """Record a step; `reports` is the number of reports since the last step."""
        state, loads = self._state, self._state.loads
        new, self._moves = moves[self._moves :], len(moves)
        served = state.table.serving >= 0
        load = loads.throughput()
        judged = self._measure_balance(carried, loads.load[served], loads.topics[served])
        self._rows.append(
            {
                "t_s": state.agenda.now_s,
                **judged,
                "load": loads.total_throughput,
                "moves": len(new),
                "moved_load": sum((move.load for move in new), 0.0),
                "unowned": state.unowned,
                "unowned_load": float(load[~served].sum()),
                "backlog": state.backlog(),
                "reports": reports,
            }
        )

    def last(self) -> dict[str, float]:
        return self._rows[-1]

    def series(self) -> StepSeries:
        def column(name: str) -> npt.NDArray[Any]:
            return np.array([row[name] for row in self._rows], np.int64 if name in _COUNTS else np.float64)

        return StepSeries(**{name: column(name) for name in self._rows[0]})

    def _measure_balance(self, carried: Carried, load: FloatArray, topics: IntArray) -> dict[str, float]:
        """Return the imbalance of the served load, and the usage of the busiest broker."""
        fleet, cost = self._state.fleet, self._state.cost
        up = np.flatnonzero(fleet.up())
        nothing = {"imbalance": np.nan, "lower_bound": np.nan, "level": np.nan, "worst_usage": 0.0, "brokers": 0}
        if not len(up):
            return nothing
        capacity = fleet.capacity[up].copy()
        worst = float((carried.usage[up] / capacity)[:, self._counted].max())
        capacity[:, CPU] *= fleet.speed[up]
        demand = cost.demand(carried.load[up], carried.topics[up])
        levels = np.cumsum(demand, axis=0)[-1] / np.cumsum(capacity, axis=0)[-1]
        resource = self._counted[int(np.argmax(levels[self._counted]))]
        level = float(levels[resource])
        found = {"level": level, "worst_usage": worst, "brokers": len(up), "imbalance": 1.0, "lower_bound": 1.0}
        if level > 0:
            found["imbalance"] = float((demand / capacity)[:, self._counted].max()) / level
            needs = {each: cost.demand_of(each, load, topics) for each in self._counted}
            found["lower_bound"] = max(level, _bound(needs, resource, capacity)) / level
        return found


def counted_resources(settings: PlannerSettings) -> list[int]:
    """Return the resources with a weight."""
    weights = {**rated_weights(settings.resource_weights), MEMORY: settings.memory_resource_weight}
    return sorted(resource for resource, weight in weights.items() if weight > 0) or [CPU]


def _bound(needs: Mapping[int, FloatArray], scarcest: int, capacity: FloatArray) -> float:
    """Return a lower bound of the busiest broker's usage if bundles with these needs could be placed anywhere.

    `needs` has those of each bundle by resource; `capacity` is (M, 5).
    """
    _, least_need = find_pigeonhole(np.sort(needs[scarcest])[::-1], len(capacity))
    indivisible = least_need / float(capacity[:, scarcest].max())
    return max(indivisible, bound_level(np.stack(list(needs.values()), axis=1), 1 / capacity[:, list(needs)]))
