"""Report of a simulated range under other settings, compared with the observed course."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from loadmanager.cli.recorded_range import Start
from loadmanager.config import Settings
from loadmanager.config.overrides import settings_recorded
from loadmanager.errors import HistoryError
from loadmanager.history.reader import History, OnFault
from loadmanager.history.table_columns import columns_of
from loadmanager.history.table_schemas import BROKER_REPORTS, EVENTS
from loadmanager.lab.simulate.recorded_world import RecordedRange
from loadmanager.lab.simulate.world import Progress
from loadmanager.lab.whatif.range_figures import (
    RangeFigures,
    happened_in,
    loads_moved,
    moves_done,
    settings_with,
    simulate,
)
from loadmanager.lab.whatif.recorded_ranges import Stretch, read_range

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Compared:
    """The figures of what happened, and of worlds with the recorded settings and with the changed ones."""

    from_ms: int
    to_ms: int
    step_s: float
    change: str
    happened: RangeFigures
    as_recorded: RangeFigures
    changed: RangeFigures

    def figures(self) -> tuple[RangeFigures, RangeFigures, RangeFigures]:
        return self.happened, self.as_recorded, self.changed


def what_if(
    history: History,
    start: Start,
    from_ms: int | None,
    to_ms: int | None,
    overrides: Mapping[str, str],
    strategy: str,
    step_s: float | None,
    advance: Callable[[float], None],
    on_fault: OnFault | None = None,
) -> Compared:
    """In steps of `step_s`, or as the brokers measured. Raises `ConfigurationError` or `HistoryError`, naming what is
    wrong.
    """
    before = _settings_at(history, start, on_fault)
    changed = settings_with(before, strategy, overrides)
    at_ms = columns_of(history, BROKER_REPORTS, from_ms or start.at_ms, to_ms, ["at_ms"], on_fault)["at_ms"]
    if not len(at_ms):
        raise HistoryError(f"{history.directory}: no broker has reported in the range")
    stretch = Stretch(0, from_ms or start.at_ms, to_ms or int(at_ms[-1]) + 1).once_begun(history, on_fault)
    try:
        recorded = read_range(history, stretch, before, on_fault)
        step_s = _step_of(recorded, step_s)
        worlds = [
            simulate(recorded, settings, step_s, _half(number, advance))
            for number, settings in enumerate((before, changed))
        ]
        happened = _happened(history, stretch, before, step_s, on_fault)
    except ValueError as error:
        raise HistoryError(f"{history.directory}: {error}") from None
    change = " ".join([*([strategy] if strategy else []), *(f"{key}={text}" for key, text in overrides.items())])
    return Compared(stretch.from_ms, stretch.to_ms, step_s, change, happened, *worlds)


def _step_of(recorded: RecordedRange, step_s: float | None) -> float:
    """Raises `ValueError` when the range is shorter."""
    found = step_s or float(round(recorded.ways.stats_interval_s))
    if recorded.duration_s < found:
        raise ValueError(f"the range is {recorded.duration_s:g} s long; take a --step below {found:g}")
    return found


def _half(number: int, advance: Callable[[float], None]) -> Callable[[Progress], None]:
    """Return a progress callback that maps the first or the second of two runs to its half of the whole."""
    return lambda progress: advance((number + progress.t_s / progress.duration_s) / 2)


def _settings_at(history: History, start: Start, on_fault: OnFault | None) -> Settings:
    for row in history.rows(EVENTS, start.at_ms, start.at_ms + 1, on_fault=on_fault):
        if (row["epoch"], row["sequence"]) == (start.epoch, start.sequence):
            return settings_recorded(json.loads(row["body"])["settings"])
    raise HistoryError(f"{history.directory}: the checkpoint of epoch {start.epoch} cannot be read")


def _happened(
    history: History, stretch: Stretch, settings: Settings, step_s: float, on_fault: OnFault | None
) -> RangeFigures:
    found = happened_in(history, stretch, settings, step_s, on_fault)
    done = moves_done(history, stretch, on_fault)
    worst = found.worst_usage[~np.isnan(found.worst_usage)]
    loads = (each / _MIB for each in loads_moved(done))
    return RangeFigures(found.mean_imbalance, float(worst.max(initial=0.0)), float(len(done)), *loads)
