"""What a range of the history would have looked like with other strategies, settings or brokers.

    file ──▶ strategies x variants x fleets x stretches x seeds = trials ──▶ a group each ──▶ a row each ──▶ league

A trial is a world of `loadmanager.sim` that carries the loads that were recorded. Trials are independent of each other:
Spark plays them in any order and on any number of partitions, and each comes out bit for bit as it does without Spark
(`WhatIfPlan.play`). The range is cut into stretches, at gaps of the history too; a stretch is sent to each worker once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from loadmanager.config import settings_of
from loadmanager.core.names import BrokerId
from loadmanager.errors import PipelineError, ScenarioError
from loadmanager.history.reader import History, OnFault
from loadmanager.pipeline.datasets import schema_of
from loadmanager.pipeline.stretches import find_stretches, when
from loadmanager.pipeline.whatif_file import FleetChanges, Variant, WhatIf
from loadmanager.sim.composing import broker_spec, cost_model, world_rules
from loadmanager.sim.cost import CostModel
from loadmanager.sim.fleet import BrokerSpec
from loadmanager.sim.recorded import FleetChange, RecordedRange, recorded_world
from loadmanager.sim.result import Result
from loadmanager.sim.running import with_strategy
from loadmanager.sim.scenario import ScenarioBrokers
from loadmanager.sim.trial import Trial, figures
from loadmanager.whatif.ranges import Stretch, read_range

MOST_TRIALS = 10_000

OUTCOMES = schema_of("scenarios")
_CELLS = t.StructType(OUTCOMES.fields[:6])
"""What a trial is; what came of it follows."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One trial: with which fleet, configuration and seed on which stretch."""

    number: int
    fleet: str
    configuration: str
    stretch: Stretch
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class WhatIfPlan:
    """Everything that is to be played. `configurations` are the keys of each by its name; `left_out` says what of the
    range is not played, and why.
    """

    cells: tuple[Cell, ...]
    trials: Mapping[int, Trial]
    ranges: Mapping[int, RecordedRange]
    configurations: Mapping[str, Mapping[str, Any]]
    band: float
    recommend_for: str
    left_out: tuple[str, ...]

    def play(self, number: int) -> Result:
        """A trial, here and now."""
        return self.trials[number].run(self.ranges[self.cells[number].stretch.number])


def plan(
    whatif: WhatIf,
    history: History,
    *,
    base: Mapping[str, Any] | None = None,
    cost: CostModel | None = None,
    on_fault: OnFault | None = None,
) -> WhatIfPlan:
    """Everything that is to be played, checked; the range is read. `base` are keys of the configuration that hold where
    the file says nothing, `cost` the model that holds then.

    Raises `ScenarioError`, `ConfigurationError`, `PipelineError` or `HistoryError`.
    """
    tried = configurations(whatif, base or {})
    stretches, left_out = find_stretches(whatif, history, on_fault)
    ranges = {}
    for stretch in stretches:
        try:
            ranges[stretch.number] = read_range(history, stretch, on_fault=on_fault)
        except ValueError as error:
            left_out.append(f"{when(stretch.from_ms, stretch.to_ms)}: {error}")
    if not ranges:
        raise PipelineError(f"{history.directory}: nothing to replay: {'; '.join(left_out)}")
    cells = _cells(whatif, tried, [stretch for stretch in stretches if stretch.number in ranges])
    model = cost_model(whatif.costs) if whatif.costs is not None else cost or CostModel()
    _require_names(whatif, list(ranges.values()))
    return WhatIfPlan(
        cells=cells,
        trials=_trials(whatif, tried, cells, ranges, model),
        ranges=ranges,
        configurations=tried,
        band=whatif.band,
        recommend_for=whatif.recommend_for or whatif.fleets[0].name,
        left_out=tuple(left_out),
    )


def configurations(whatif: WhatIf, base: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The keys of each that is tried, by its name: the strategy, and the variant where there are several.

    `base` are keys that hold where the file says nothing. Raises `ScenarioError` or `ConfigurationError`.
    """
    found = {}
    variants = whatif.variants or (Variant(name="settings"),)
    for strategy, variant in itertools.product(whatif.strategies or ("",), variants):
        names = [strategy, variant.name if whatif.variants or not strategy else ""]
        name = ", ".join(filter(None, names))
        try:
            found[name] = with_strategy({**base, **whatif.settings, **variant.settings}, strategy)
        except ScenarioError as error:
            raise ScenarioError(f"{whatif.name}: strategies: {str(error).removeprefix('--strategy ')}") from None
        settings_of(found[name], f"{whatif.name}: settings of {name}")
    return found


def play(spark: SparkSession, given: WhatIfPlan, partitions: int | None = None) -> DataFrame:
    """`OUTCOMES` of all trials, in parallel; on one partition each, or on so many.

    What is sent to workers needs `loadmanager.sim` there, and nothing of the pipeline.
    """
    cells = [
        (cell.number, cell.fleet, cell.configuration, cell.stretch.number, cell.seed, cell.stretch.from_ms)
        for cell in given.cells
    ]
    rows = [dict(zip(_CELLS.names, cell, strict=True)) for cell in cells]
    shared = spark.sparkContext.broadcast((rows, dict(given.trials), dict(given.ranges), given.band))

    def run(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        rows, trials, ranges, band = shared.value
        for number in itertools.chain.from_iterable(batch["id"] for batch in batches):
            row = rows[number]
            yield pd.DataFrame([row | figures(trials[row["scenario"]].run(ranges[row["stretch"]]), band)])

    return spark.range(len(rows), numPartitions=partitions or len(rows)).mapInPandas(run, OUTCOMES)


def _cells(whatif: WhatIf, configurations: Iterable[str], stretches: Sequence[Stretch]) -> tuple[Cell, ...]:
    product = itertools.product(whatif.fleets, configurations, stretches, whatif.seeds)
    cells = [
        Cell(number, fleet.name, name, stretch, seed) for number, (fleet, name, stretch, seed) in enumerate(product)
    ]
    if len(cells) > MOST_TRIALS:
        raise ScenarioError(f"{whatif.name}: {len(cells)} scenarios, expected at most {MOST_TRIALS}")
    return tuple(cells)


def _trials(
    whatif: WhatIf,
    configurations: Mapping[str, Mapping[str, Any]],
    cells: Sequence[Cell],
    ranges: Mapping[int, RecordedRange],
    cost: CostModel,
) -> dict[int, Trial]:
    """One for each cell; a world of each fleet and of each configuration is made, to see that it can be."""
    fleets = {fleet.name: fleet for fleet in whatif.fleets}
    found: dict[int, Trial] = {}
    seen: set[str] = set()
    for cell in cells:
        recorded = ranges[cell.stretch.number]
        settings = settings_of(configurations[cell.configuration], f"{whatif.name}: settings of {cell.configuration}")
        rules = world_rules(whatif.rules, settings)
        try:
            change = _change(fleets[cell.fleet], recorded)
            planner = settings.planner_settings()
            if not {cell.fleet, cell.configuration} <= seen:
                recorded_world(recorded, planner, rules=rules, cost=cost, change=change, seed=cell.seed)
        except ValueError as error:
            what = f"fleet {cell.fleet}, {cell.configuration}"
            raise ScenarioError(f"{whatif.name}: {what}: {error}") from None
        seen |= {cell.fleet, cell.configuration}
        found[cell.number] = Trial(planner, rules, cost, change, cell.seed, whatif.step_s)
    return found


def _change(fleet: FleetChanges, recorded: RecordedRange) -> FleetChange:
    """The same in a stretch; what is not in it at all cannot be changed there."""
    ids, names = recorded.broker_ids(), {spec.name for spec in recorded.namespace_specs()}
    removed = {BrokerId(each) for each in fleet.removed if each in ids}
    left = sorted(each for each in ids if each not in removed)
    removed |= set(left[len(left) - min(fleet.removed_count, len(left)) :])
    like = min(recorded.brokers, key=lambda spec: spec.id, default=None)
    return FleetChange(
        frozenset(removed),
        tuple(_added(fleet.added, like)),
        {BrokerId(each): speed for each, speed in fleet.speeds.items() if each in ids},
        {each: factor for each, factor in fleet.loads.items() if each in names},
    )


def _added(groups: Iterable[ScenarioBrokers], like: BrokerSpec | None) -> Iterator[BrokerSpec]:
    number = itertools.count()
    for group in groups:
        for _ in range(group.count):
            name = BrokerId(group.id or f"added-{next(number):04d}:8080")
            spec = broker_spec(name, group)
            if like is not None and "capacity" not in group.model_fields_set:
                spec = replace(spec, capacity=like.capacity)
            yield spec


def _require_names(whatif: WhatIf, ranges: Sequence[RecordedRange]) -> None:
    """Raise `ScenarioError` for a broker or a namespace that is nowhere in the range."""
    ids: set[str] = {each for recorded in ranges for each in recorded.broker_ids()}
    names = {spec.name for recorded in ranges for spec in recorded.namespace_specs()}
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
