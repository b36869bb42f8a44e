"""Analysis of scenarios ("what if"): a range of the history replayed with other strategies, settings or brokers.

    file ──▶ stretches x fleets x strategies x variants x seeds = trials ──▶ a row each ──▶ league

A trial is a world of `loadmanager.lab.simulate` that carries the loads that were recorded. Trials are independent of
each other: Spark plays them in any order, and each comes out bit for bit as it does without Spark. The range is cut
into stretches, at gaps of the history too; workers read them (`pipeline.ranges`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from pyspark.sql import DataFrame

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.model.load import IntArray
from loadmanager.errors import PipelineError, ScenarioError
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BROKER_REPORTS
from loadmanager.lab.simulate.fleet_events import BrokerSpec
from loadmanager.lab.simulate.recorded_world import HOLD_S, RecordedRange
from loadmanager.lab.simulate.run_rules import CostModel
from loadmanager.lab.simulate.scenario import ScenarioBrokers
from loadmanager.lab.simulate.scenario_run import with_strategy
from loadmanager.lab.simulate.trial import FleetChange, Trial, figures
from loadmanager.lab.simulate.world import check_settings, require_unique
from loadmanager.lab.simulate.world_builder import broker_spec, world_rules
from loadmanager.lab.whatif.recorded_ranges import Stretch
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.history_tables import format_range, nothing_in
from loadmanager.pipeline.ranges import Cell, Outline, Ranges
from loadmanager.pipeline.whatif_file import FEWEST_STEPS, FleetChanges, Variant, WhatIf

MOST_TRIALS = 10_000
_SHORTEST_PART = 0.25
"""Least length of a stretch, as a part of the longest one: each counts as much as any other."""

OUTCOMES = schema_of("scenarios")
"""Columns of a trial and its result."""


@dataclass(frozen=True, slots=True, eq=False)
class WhatIfPlan:
    """Trials to play. `configurations` are by name; `left_out` says why some of the range is not played."""

    cells: tuple[Cell, ...]
    configurations: Mapping[str, Settings]
    band: float
    recommend_for: str
    left_out: tuple[str, ...]

    @property
    def replayed_ms(self) -> int:
        """Return the length of all stretches."""
        return sum(each.to_ms - each.from_ms for each in {cell.stretch for cell in self.cells})


def plan(
    whatif: WhatIf,
    history: History,
    ranges: Ranges,
    *,
    base: Mapping[str, Any] | None = None,
    cost: CostModel | None = None,
) -> WhatIfPlan:
    """Read the range and plan all trials. `base` and `cost` are the settings and the cost model that a file leaves out.

    Raises `ScenarioError`, `ConfigurationError`, `PipelineError` or `HistoryError`.
    """
    tried = configurations(whatif, base or {})
    stretches, left_out = find_stretches(whatif, history, ranges)
    found = dict(zip(stretches, ranges.read(stretches), strict=True))
    left_out += [
        f"{format_range(each.from_ms, each.to_ms)}: {why}" for each, why in found.items() if isinstance(why, str)
    ]
    outlines = {each: outline for each, outline in found.items() if isinstance(outline, Outline)}
    if not outlines:
        raise PipelineError(f"{history.directory}: nothing to replay: {'; '.join(left_out)}")
    _require_names(whatif, list(outlines.values()))
    model = whatif.costs or cost or CostModel()
    cells = _cells(whatif, tried, outlines, model)
    played = {cell.fleet for cell in cells}
    left_out += [f"fleet {each.name}: no broker is left" for each in whatif.fleets if each.name not in played]
    recommend_for = whatif.recommend_for or whatif.fleets[0].name
    if recommend_for not in played:
        raise ScenarioError(f"{whatif.name}: fleet {recommend_for}: no broker is left")
    return WhatIfPlan(cells, tried, whatif.band, recommend_for, tuple(left_out))


def configurations(whatif: WhatIf, base: Mapping[str, Any]) -> dict[str, Settings]:
    """Return each configuration by name: the strategy, and the variant where there are several.

    `base` are keys that the file leaves out. Raises `ScenarioError` or `ConfigurationError`.
    """
    found = {}
    variants = whatif.variants or (Variant(name="settings"),)
    for strategy, variant in itertools.product(whatif.strategies or ("",), variants):
        names = [strategy, variant.name if whatif.variants or not strategy else ""]
        name = ", ".join(filter(None, names))
        try:
            keys = with_strategy({**base, **whatif.settings, **variant.settings}, strategy)
        except ScenarioError as error:
            raise ScenarioError(f"{whatif.name}: strategies: {str(error).removeprefix('--strategy ')}") from None
        found[name] = settings_of(keys, f"{whatif.name}: settings of {name}")
    return found


def play(given: WhatIfPlan, ranges: Ranges) -> DataFrame:
    """Play all trials in parallel, and return their `OUTCOMES`."""
    cells, band = given.cells, given.band

    def row(number: int, recorded: RecordedRange) -> dict[str, Any]:
        cell = cells[number]
        return {
            "scenario": cell.number,
            "fleet": cell.fleet,
            "configuration": cell.configuration,
            "stretch": cell.stretch.number,
            "seed": cell.trial.seed,
            "from_ms": cell.stretch.from_ms,
            **figures(cell.trial.run(recorded), band),
        }

    return ranges.replay(row, cells, OUTCOMES)


def _cells(
    whatif: WhatIf, tried: Mapping[str, Settings], outlines: Mapping[Stretch, Outline], cost: CostModel
) -> tuple[Cell, ...]:
    """Return the trials, without those of a fleet that has no broker left in the stretch."""
    product = itertools.product(outlines.items(), whatif.fleets, tried.items(), whatif.seeds)
    played = [each for each in product if _leaves_one(each[1], each[0][1])]
    if len(played) > MOST_TRIALS:
        raise ScenarioError(f"{whatif.name}: {len(played)} scenarios, expected at most {MOST_TRIALS}")
    cells = []
    for number, ((stretch, outline), fleet, (name, settings), seed) in enumerate(played):
        rules = world_rules(whatif.rules, settings)
        planner = settings.planner_settings()
        try:
            check_settings(planner)
            trial = Trial(planner, rules, cost, _change(fleet, outline), seed, whatif.step_s)
        except ValueError as error:
            raise ScenarioError(f"{whatif.name}: fleet {fleet.name}, {name}: {error}") from None
        cells.append(Cell(number, fleet.name, name, stretch, outline.digest, trial))
    return tuple(cells)


def _change(fleet: FleetChanges, outline: Outline) -> FleetChange:
    """Return the changes that apply to a stretch. Raises `ValueError` if two brokers have one name."""
    ids, names = outline.brokers, outline.namespaces
    more = _removable(fleet, outline)[: fleet.removed_count]
    removed = frozenset({*more, *(each for each in fleet.removed if each in ids)})
    added = tuple(_added(fleet.added, outline.capacity))
    require_unique([*(each for each in ids if each not in removed), *(spec.id for spec in added)], "broker")
    return FleetChange(
        removed,
        added,
        {each: speed for each, speed in fleet.speeds.items() if each in ids},
        {each: factor for each, factor in fleet.loads.items() if each in names},
    )


def _leaves_one(fleet: FleetChanges, outline: Outline) -> bool:
    has_enough = fleet.removed_count <= len(_removable(fleet, outline))
    return bool(fleet.added) or (bool(_staying(fleet, outline)) and has_enough)


def _removable(fleet: FleetChanges, outline: Outline) -> list[BrokerId]:
    """Return removable brokers, the last by name first. A fleet without additions keeps one of the first brokers."""
    stays = () if fleet.added else _staying(fleet, outline)[:1]
    return sorted({*outline.brokers} - {*fleet.removed, *stays}, reverse=True)


def _staying(fleet: FleetChanges, outline: Outline) -> list[BrokerId]:
    """Return the brokers at the beginning that are not removed by name."""
    return [each for each in outline.begin if each not in fleet.removed]


def _added(groups: Iterable[ScenarioBrokers], capacity: tuple[float, ...]) -> Iterator[BrokerSpec]:
    number = itertools.count()
    for group in groups:
        for _ in range(group.count):
            name = group.id or BrokerId(f"added-{next(number):04d}:8080")
            spec = broker_spec(name, group)
            if capacity and "capacity" not in group.model_fields_set:
                spec = replace(spec, capacity=capacity)
            yield spec


def _require_names(whatif: WhatIf, outlines: Sequence[Outline]) -> None:
    """Raise `ScenarioError` for a broker or a namespace that is nowhere in the range."""
    ids = {each for outline in outlines for each in outline.brokers}
    names = {each for outline in outlines for each in outline.namespaces}
    for number, fleet in enumerate(whatif.fleets):
        for key, named, known in (
            ("removed", fleet.removed, ids),
            ("speeds", fleet.speeds, ids),
            ("loads", fleet.loads, names),
        ):
            for each in named:
                if each not in known:
                    close = get_close_matches(each, sorted(known), n=1, cutoff=0.0)
                    where = f"{whatif.name}: fleets.{number}.{key}"
                    raise ScenarioError(f"{where}: the range has no {each!r}; did you mean {', '.join(close)}?")


def find_stretches(whatif: WhatIf, history: History, ranges: Ranges) -> tuple[list[Stretch], list[str]]:
    """Cut the range where something is missing and wherever a stretch is full; return what is left out as well.

    Raises `PipelineError` for a range without reports.
    """
    from_ms, to_ms = (None if at is None else round(at.timestamp() * 1000) for at in (whatif.begin, whatif.end))
    at_ms = ranges.report_times(from_ms, to_ms)
    if not len(at_ms):
        raise nothing_in(history, BROKER_REPORTS, from_ms, to_ms)
    from_ms = int(at_ms[0]) if from_ms is None else from_ms
    to_ms = int(at_ms[-1]) + 1 if to_ms is None else to_ms
    gaps = (gap for gap in ranges.gaps() if gap.to_ms - gap.from_ms > HOLD_S * 1000)
    missing = [
        *_silences(at_ms, from_ms, to_ms),
        *((gap.from_ms, gap.to_ms, f"a gap in the history: {gap.why}") for gap in gaps),
    ]
    left_out = [
        f"{format_range(max(start, from_ms), min(end, to_ms))}: {why}"
        for start, end, why in missing
        if end > from_ms and start < to_ms
    ]
    pieces: list[tuple[int, int]] = []
    stretch_ms = round(whatif.stretch_s * 1000)
    for start, end in _without(from_ms, to_ms, missing):
        pieces += [(at, min(at + stretch_ms, end)) for at in range(start, end, stretch_ms)]
    step_ms = round(whatif.step_s * 1000)
    shortest_ms = max(FEWEST_STEPS * step_ms, _SHORTEST_PART * max((end - start for start, end in pieces), default=0))
    found: list[Stretch] = []
    for start, end in pieces:
        if end - start < shortest_ms:
            left_out.append(
                f"{format_range(start, end)}: too short beside the other stretches, or for {FEWEST_STEPS} steps"
            )
        else:
            found.append(Stretch(len(found), start, start + (end - start) // step_ms * step_ms))
    return found, left_out


def _silences(at_ms: IntArray, from_ms: int, to_ms: int) -> Iterator[tuple[int, int, str]]:
    """Yield silences of all brokers that are longer than a report holds."""
    hold_ms = round(HOLD_S * 1000)
    ends = np.concatenate([[from_ms - hold_ms], at_ms, [to_ms]])
    for last in np.flatnonzero(np.diff(ends) > 2 * hold_ms).tolist():
        yield int(ends[last]) + hold_ms, int(ends[last + 1]), "no broker reported"


def _without(from_ms: int, to_ms: int, missing: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int]]:
    """Yield the rest of a range, in order."""
    at = from_ms
    for start, end, _ in sorted(missing):
        if start > at:
            yield at, min(start, to_ms)
        at = max(at, min(end, to_ms))
    if at < to_ms:
        yield at, to_ms
