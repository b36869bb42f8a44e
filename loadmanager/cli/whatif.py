"""What would have happened with other settings: the world of a recorded range, beside what happened."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmanager.cli.recorded import Start
from loadmanager.config import Settings, values_as_text, with_overrides
from loadmanager.errors import HistoryError
from loadmanager.history.reader import History, OnFault
from loadmanager.history.schemas import BROKER_REPORTS, EVENTS, LOAD_COLUMNS, MOVES, RESOURCE_COLUMNS
from loadmanager.overrides import settings_recorded
from loadmanager.pipeline.stretches import Stretch, read_range
from loadmanager.sim.composing import world_rules
from loadmanager.sim.cost import CostModel
from loadmanager.sim.happened import BrokerLoads, what_happened
from loadmanager.sim.recorded import BrokerRows, RecordedRange, recorded_world
from loadmanager.sim.running import with_strategy
from loadmanager.sim.scenario import Rules
from loadmanager.sim.world import Progress

_MIB = 1024 * 1024
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Compared:
    """The figures of what happened, and of worlds with the recorded settings and with the changed ones."""

    from_ms: int
    to_ms: int
    step_s: float
    change: str
    happened: Figures
    as_recorded: Figures
    changed: Figures

    def figures(self) -> tuple[Figures, Figures, Figures]:
        return self.happened, self.as_recorded, self.changed


def what_if(
    history: History,
    start: Start,
    from_ms: int | None,
    to_ms: int | None,
    overrides: Mapping[str, str],
    strategy: str,
    step_s: float,
    advance: Callable[[float], None],
    on_fault: OnFault | None = None,
) -> Compared:
    """Raises `ConfigurationError` or `HistoryError`, naming what is wrong."""
    before = _settings_at(history, start, on_fault)
    changed = _changed(before, overrides, strategy)
    rows = list(history.rows(BROKER_REPORTS, from_ms or start.at_ms, to_ms, on_fault=on_fault))
    if not rows:
        raise HistoryError(f"{history.directory}: no broker has reported in the range")
    stretch = Stretch(0, from_ms or start.at_ms, to_ms or rows[-1]["at_ms"] + 1)
    duration_s = stretch.duration_s
    if duration_s < step_s:
        raise HistoryError(f"{history.directory}: the range is {duration_s:g} s long; take a --step below {step_s:g}")
    try:
        recorded = read_range(history, stretch, on_fault)
        worlds = [
            _run(recorded, settings, step_s, lambda done, number=number: advance((number + done) / 2))  # type: ignore[misc]
            for number, settings in enumerate((before, changed))
        ]
    except ValueError as error:
        raise HistoryError(f"{history.directory}: {error}") from None
    happened = _happened(history, stretch, rows, before, step_s, on_fault)
    change = " ".join([*([strategy] if strategy else []), *(f"{key}={text}" for key, text in overrides.items())])
    return Compared(stretch.from_ms, stretch.to_ms, step_s, change, happened, *worlds)


def _settings_at(history: History, start: Start, on_fault: OnFault | None) -> Settings:
    for row in history.rows(EVENTS, start.at_ms, start.at_ms + 1, on_fault=on_fault):
        if (row["epoch"], row["sequence"]) == (start.epoch, start.sequence):
            return settings_recorded(json.loads(row["body"])["settings"])
    raise HistoryError(f"{history.directory}: the checkpoint of epoch {start.epoch} cannot be read")


def _changed(settings: Settings, overrides: Mapping[str, str], strategy: str) -> Settings:
    texts = values_as_text(settings)
    chosen = {key: str(value) for key, value in with_strategy(texts, strategy).items() if texts.get(key) != value}
    return with_overrides(settings, {**chosen, **overrides}, "--set")


def _run(recorded: RecordedRange, settings: Settings, step_s: float, advance: Callable[[float], None]) -> Figures:
    def observe(progress: Progress) -> None:
        advance(progress.t_s / progress.duration_s)

    world = recorded_world(recorded, settings.planner_settings(), rules=world_rules(Rules(), settings))
    result = world.run(recorded.duration_s, step_s, observe)
    imbalance = result.series.imbalance[~np.isnan(result.series.imbalance)]
    return {
        "imbalance": float(imbalance.mean()) if len(imbalance) else 1.0,
        "worst_usage": result.worst_usage,
        "moves": float(len(result.moves)),
        "moved_mib_per_s": sum(move.load for move in result.moves) / _MIB,
    }


def _happened(
    history: History,
    stretch: Stretch,
    rows: list[dict[str, Any]],
    settings: Settings,
    step_s: float,
    on_fault: OnFault | None,
) -> Figures:
    def columns(names: tuple[str, ...]) -> Any:  # noqa: ANN401 - numpy's array
        return np.array([[row[name] for name in names] for row in rows], dtype=np.float64)

    reports = BrokerRows(
        np.array([(row["at_ms"] - stretch.from_ms) / 1000 for row in rows]),
        np.array([row["broker"] for row in rows], dtype=object),
        columns(RESOURCE_COLUMNS[1::2]),
        np.array([row["version"] for row in rows], dtype=object),
        np.array([row["load_manager_class"] for row in rows], dtype=object),
    )
    topics = np.array([row["topics"] for row in rows], dtype=np.int64)
    loads = BrokerLoads(columns(LOAD_COLUMNS), topics, columns(RESOURCE_COLUMNS[0::2]))
    found = what_happened(reports, loads, settings.planner_settings(), CostModel(), stretch.duration_s, step_s)
    done, moved = 0, 0.0
    began: dict[tuple[int, int], float] = {}
    for row in history.rows(MOVES, stretch.from_ms, stretch.to_ms, on_fault=on_fault):
        if row["kind"] == "began":
            began[row["epoch"], row["sequence"]] = (row["msg_throughput_in"] or 0) + (row["msg_throughput_out"] or 0)
        elif row["kind"] == "done":
            done += 1
            moved += began.get((row["epoch"], row["move"]), 0.0)
    worst = found.worst_usage[~np.isnan(found.worst_usage)]
    return {
        "imbalance": found.mean_imbalance,
        "worst_usage": float(worst.max(initial=0.0)),
        "moves": float(done),
        "moved_mib_per_s": moved / _MIB,
    }
