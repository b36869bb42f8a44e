"""Figures of a recorded range, observed and simulated, by the simulator's cost model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmanager.config.dynamic_settings import values_as_text, with_overrides
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import CPU, FloatArray
from loadmanager.core.planning.repeated_moves import Completed, MoveTrail, PastMove, is_again, is_back
from loadmanager.errors import HistoryError
from loadmanager.history.reader import History, OnFault, columns_of
from loadmanager.history.table_schemas import BROKER_REPORTS, MOVES
from loadmanager.lab.simulate.calibration import ReportSeries, fitted_cost
from loadmanager.lab.simulate.recorded_world import GONE_S, HOLD_S, RecordedRange
from loadmanager.lab.simulate.run_rules import CostModel, Rules
from loadmanager.lab.simulate.scenario_run import with_strategy
from loadmanager.lab.simulate.sim_result import counted_resources, mean_known
from loadmanager.lab.simulate.trial import Trial
from loadmanager.lab.simulate.world import Progress
from loadmanager.lab.simulate.world_builder import world_rules
from loadmanager.lab.whatif.recorded_ranges import Stretch, read_range, read_reports

_MIB = 1024 * 1024
_NONE: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class RangeFigures:
    """Figures of one course of a range, observed or simulated.

    `imbalance` is the mean over time (see `lab.simulate.sim_result`), `worst_usage` the highest usage of any broker, a
    fraction. `moves` counts the completed moves; the loads are those of all moved bundles, of those moved again, and of
    those moved back (`core.planning.repeated_moves`).
    """

    imbalance: float
    worst_usage: float
    moves: float
    moved_mib_per_s: float
    again_mib_per_s: float
    back_mib_per_s: float


def settings_with(settings: Settings, strategy: str, overrides: Mapping[str, str] = _NONE) -> Settings:
    """Return the settings with this strategy, or SHEDDING+PLACEMENT (empty: unchanged), and with these overrides.

    Raises `ScenarioError` or `ConfigurationError`, which name the fault.
    """
    texts = values_as_text(settings)
    chosen = {key: str(value) for key, value in with_strategy(texts, strategy).items() if texts.get(key) != value}
    return with_overrides(settings, {**chosen, **overrides}, "--set")


def simulate(
    recorded: RecordedRange, settings: Settings, step_s: float, observe: Callable[[Progress], None] | None = None
) -> RangeFigures:
    """Simulate the recorded loads with the calibration of the recorded fleet."""
    calibration = recorded.calibration
    rules = calibration.applied_to(world_rules(Rules(), settings))
    trial = Trial(settings.planner_settings(), rules, calibration.cost, step_s=step_s)
    result = trial.run(recorded, observe)
    return RangeFigures(
        mean_known(result.series.imbalance),
        result.worst_usage,
        float(len(result.moves)),
        *(each / _MIB for each in loads_moved([(move, move.load) for move in result.moves])),
    )


def read_observed(
    history: History, stretch: Stretch, settings: Settings, step_s: float, on_fault: OnFault | None = None
) -> tuple[FloatArray, FloatArray]:
    """Compute the figures of `observe_range` from broker reports. Raises `ValueError` without any."""
    read = read_reports(history, stretch, on_fault)
    if not len(read.reported.at_s):
        raise ValueError("no broker has reported in the range")
    numbers = {str(name): number for name, number in zip(read.rows.broker, read.reported.broker, strict=True)}
    turns = [(each.at_s, numbers[each.broker], each.is_there) for each in read.presence if each.broker in numbers]
    cost = fitted_cost(read.reported)
    return observe_range(read.reported, settings.planner_settings(), cost, stretch.duration_s, step_s, turns)


def loads_moved(moves: Sequence[tuple[Completed, float]]) -> tuple[float, float, float]:
    """Add up the loads of moves: in all, of bundles moved again, and of bundles moved back."""
    own = [(move, load) for move, load in moves if move.is_own]
    again, back = (sum((load for move, load in own if holds(move)), 0.0) for holds in (is_again, is_back))
    return sum((load for _, load in moves), 0.0), again, back


def moves_done(history: History, stretch: Stretch, on_fault: OnFault | None = None) -> list[tuple[PastMove, float]]:
    """Return our completed moves in the range, each with the load of its bundle at the start, in bytes/s."""
    done: list[tuple[PastMove, float]] = []
    trail = MoveTrail()
    began: dict[tuple[int, int], float] = {}
    for row in history.rows(MOVES, stretch.from_ms, stretch.to_ms, on_fault=on_fault):
        if row["kind"] == "began":
            began[row["epoch"], row["sequence"]] = (row["msg_throughput_in"] or 0) + (row["msg_throughput_out"] or 0)
        elif row["kind"] == "done":
            load = began.get((row["epoch"], row["move"]), 0.0)
            done.append((_past(trail, row), load))
    return done


def _past(trail: MoveTrail, row: Mapping[str, Any]) -> PastMove:
    detail = json.loads(row["detail"])
    source, destination = (
        None if end is None else Registration(BrokerId(end[0]), end[1])
        for end in (detail["source"], detail["destination"])
    )
    assert source is not None, "what is released has an owner"
    return trail.add(detail["atS"], row["bundle"], source, destination, is_own=detail["isOwn"])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Figures of a recorded range: observed, and simulated with the recorded and with changed settings."""

    from_ms: int
    to_ms: int
    step_s: float
    change: str
    observed: RangeFigures
    as_recorded: RangeFigures
    changed: RangeFigures

    def figures(self) -> tuple[RangeFigures, RangeFigures, RangeFigures]:
        return self.observed, self.as_recorded, self.changed


def what_if(
    history: History,
    from_ms: int,
    to_ms: int | None,
    before: Settings,
    overrides: Mapping[str, str],
    strategy: str,
    step_s: float | None,
    advance: Callable[[float], None],
    on_fault: OnFault | None = None,
) -> Comparison:
    """Simulate a recorded range with the settings `before` and with changed ones. Without `step_s` a step is the
    brokers' measuring interval. Raises `ConfigurationError` or `HistoryError`.
    """
    changed = settings_with(before, strategy, overrides)
    at_ms = columns_of(history, BROKER_REPORTS, from_ms, to_ms, ["at_ms"], on_fault)["at_ms"]
    if not len(at_ms):
        raise HistoryError(f"{history.directory}: no broker has reported in the range")
    stretch = Stretch(0, from_ms, to_ms or int(at_ms[-1]) + 1).once_begun(history, on_fault)
    try:
        recorded = read_range(history, stretch, before, on_fault)
        step_s = _step_of(recorded, step_s)
        worlds = [
            simulate(recorded, settings, step_s, lambda at, n=n: advance((n + at.t_s / at.duration_s) / 2))  # type: ignore[misc]
            for n, settings in enumerate((before, changed))
        ]
        observed = _observe(history, stretch, before, step_s, on_fault)
    except ValueError as error:
        raise HistoryError(f"{history.directory}: {error}") from None
    change = " ".join([*([strategy] if strategy else []), *(f"{key}={text}" for key, text in overrides.items())])
    return Comparison(stretch.from_ms, stretch.to_ms, step_s, change, observed, *worlds)


def _step_of(recorded: RecordedRange, step_s: float | None) -> float:
    """Raises `ValueError` when the range is shorter."""
    found = step_s or float(round(recorded.calibration.stats_interval_s))
    if recorded.duration_s < found:
        raise ValueError(f"the range is {recorded.duration_s:g} s long; take a --step below {found:g}")
    return found


def _observe(
    history: History, stretch: Stretch, settings: Settings, step_s: float, on_fault: OnFault | None
) -> RangeFigures:
    imbalance, usage = read_observed(history, stretch, settings, step_s, on_fault)
    done = moves_done(history, stretch, on_fault)
    loads = (each / _MIB for each in loads_moved(done))
    return RangeFigures(mean_known(imbalance), float(np.nanmax(usage, initial=0.0)), float(len(done)), *loads)


def observe_range(
    rows: ReportSeries,
    settings: PlannerSettings,
    cost: CostModel,
    duration_s: float,
    step_s: float,
    turns: Sequence[tuple[float, int, bool]] = (),
) -> tuple[FloatArray, FloatArray]:
    """Compute the imbalance and the highest usage (a fraction of the most used resource) at each step.

    A report is valid until the broker's next one, until the broker leaves, or until it has been silent for twice
    `HOLD_S`. `turns` are the times, in order, when brokers, by number, registered (True) or left; the last report of a
    broker ends then.

    A broker that first reports within `HOLD_S` counts as registered from the start, unless the time is known.
    """
    counted = counted_resources(settings)
    demand = cost.demand(rows.load, rows.topics)
    usage = np.where(rows.limits > 0, rows.used / np.where(rows.limits > 0, rows.limits, 1.0), 0.0)
    first = np.unique(rows.broker, return_index=True)[1]
    begins = {broker: not is_there for _, broker, is_there in reversed(turns)}
    was_there = np.array([begins.get(broker, rows.at_s[row] <= HOLD_S) for broker, row in enumerate(first.tolist())])
    last = np.where(was_there, first, -1)
    steps = np.arange(int(np.ceil(duration_s / step_s)), dtype=np.float64) * step_s
    found = np.full((len(steps), 2), np.nan)
    done = turned = 0
    for number, t_s in enumerate(steps.tolist()):
        end = int(np.searchsorted(rows.at_s, t_s, side="right"))
        last[rows.broker[done:end]] = np.arange(done, end)  # the last of several reports of a broker counts
        done = end
        while turned < len(turns) and turns[turned][0] <= t_s:
            at_s, broker, _ = turns[turned]
            if rows.at_s[last[broker]] <= at_s:
                last[broker] = -1
            turned += 1
        up = last[(last >= 0) & (rows.at_s[last] > t_s - GONE_S)]
        if len(up):
            highest = usage[up][:, counted].max(initial=0.0)
            found[number] = _imbalance(demand[up], rows.limits[up], counted), highest
    return found[:, 0], found[:, 1]


def _imbalance(demand: FloatArray, capacity: FloatArray, counted: list[int]) -> float:
    """Return the imbalance as the simulator computes it; a resource without any known limit is left out."""
    limits = np.where(capacity > 0, capacity, np.inf)
    total = np.where(np.isfinite(limits), limits, 0.0).sum(axis=0)
    levels = np.divide(demand.sum(axis=0), total, out=np.zeros(len(total)), where=total > 0)
    level = float(levels[counted].max(initial=0.0)) if len(counted) else float(levels[CPU])
    return float((demand / limits)[:, counted].max()) / level if level > 0 else 1.0
