"""Construction of a world from a scenario: brokers, bundles, workload and events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.model.learned_loads import NOTHING_LEARNED, PROFILE_HOURS, LearnedLoads, hour_of_week
from loadmanager.core.model.load import FloatArray
from loadmanager.errors import ScenarioError
from loadmanager.lab.simulate import scenario as files
from loadmanager.lab.simulate.fleet_events import (
    BrokerJoins,
    BrokersCrash,
    BrokerSpec,
    BrokersRestart,
    BrokersStop,
    Event,
    LoadJumps,
    NamespaceSpec,
    NewNamespace,
)
from loadmanager.lab.simulate.run_rules import Rules, WorldRules
from loadmanager.lab.simulate.scenario import Scenario, numbered
from loadmanager.lab.simulate.workload import (
    BundleTopics,
    DiurnalShape,
    FollowedSeries,
    LoadShape,
    Purpose,
    RampShape,
    ShapedWorkload,
    WorkloadBundles,
    generator,
    heavy_tailed,
    random_topics,
    zipf,
)
from loadmanager.lab.simulate.world import World
from loadmanager.lab.simulate.world_state import START_S

if TYPE_CHECKING:
    from loadmanager.history.synthetic_fleet import Series

_MINUTE_S, _HOUR_S = 60.0, 3600.0
_CORE_PERCENT = 100.0
_KBIT_PER_GBIT = 1_000_000.0
_SHOWN_BROKERS = 5


@dataclass(slots=True)
class _Row:
    """Consecutive bundles in the workload: their first row, and their description in the file."""

    first: int
    load: FloatArray
    spec: NamespaceSpec
    like: files.NamespaceGroup | files.Traces


@dataclass(slots=True)
class _BundleParts:
    """Parts of a workload, collected while namespaces are read; the names resolve references to bundles."""

    rows: list[_Row] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    row_of: dict[str, int] = field(default_factory=dict)

    def add(self, spec: NamespaceSpec, load: FloatArray, like: files.NamespaceGroup | files.Traces) -> None:
        self.rows.append(_Row(len(self.names), load, spec, like))
        for number, name in enumerate(spec.bundle_names()):
            self.row_of[name] = self.row_of[f"{spec.name}#{number}"] = len(self.names)
            self.names.append(name)

    def find(self, references: Iterable[str], where: str) -> list[int]:
        references = [each for given in references for each in self._all_of(given)]
        unknown = [each for each in references if each not in self.row_of]
        if unknown:
            raise ValueError(f"{where}: no bundle {unknown[0]!r}; expected tenant/namespace#0, or the bundle's name")
        return [self.row_of[each] for each in references]

    def _all_of(self, reference: str) -> list[str]:
        """Return the bundles of the namespace if the reference ends with `#*`, else the reference itself."""
        name = reference.removesuffix("#*")
        of_namespace = (row.spec.bundle_names() for row in self.rows if name != reference and row.spec.name == name)
        return next(of_namespace, [reference])

    def finish(self, seed: int) -> WorkloadBundles:
        namespace = np.repeat(np.arange(len(self.rows)), [len(row.load) for row in self.rows])
        return WorkloadBundles(self.row_of, namespace, seed)


def world_of(scenario: Scenario, settings: Settings, recorded: Sequence[Series] = ()) -> World:
    """Build the simulation of a scenario with these settings. `recorded` are the series of its traces.

    Raises `ScenarioError`, which names the fault.
    """
    try:
        brokers = [broker_spec(name, kind) for name, kind in numbered(scenario.brokers, 0)]
        ids = [each.id for each in brokers]
        bundles = _BundleParts()
        groups: list[files.NamespaceGroup | files.Traces] = [*scenario.namespaces]
        groups += [] if scenario.traces is None else [scenario.traces]
        namespaces = [spec for each in groups for spec in _namespaces(each, ids, scenario.seed, bundles)]
        joining, appearing = _joining(scenario), _appearing(scenario, ids, bundles)
        known = {*ids, *(each.broker.id for each in joining)}
        events = [*joining, *appearing, *_events(scenario, bundles)]
        _require_brokers(scenario, known)
        return World(
            brokers,
            namespaces,
            _workload(scenario, bundles, recorded),
            settings.planner_settings(),
            rules=world_rules(scenario.rules, settings),
            cost=scenario.costs,
            events=events,
            learned=_build_profiles(scenario, bundles) if scenario.learned else NOTHING_LEARNED,
            seed=scenario.seed,
        )
    except ValueError as error:
        raise ScenarioError(f"scenario {scenario.name}: {error}") from None


def _build_profiles(scenario: Scenario, bundles: _BundleParts) -> LearnedLoads:
    """Build the profiles that a pipeline would learn from the diurnal shapes."""
    loads = {row.spec.name: row.load.mean(axis=0) for row in bundles.rows}
    known = bundles.finish(scenario.seed)
    namespace = known.namespace
    waves = [each for each in scenario.shapes if isinstance(each, DiurnalShape)]
    sizes, profiles = np.bincount(namespace), np.ones((len(loads), PROFILE_HOURS))
    for hour in range(PROFILE_HOURS):
        middle_s = (hour + 0.5) * _HOUR_S
        place = int(hour_of_week(START_S + middle_s))
        for wave in waves:
            factors = np.broadcast_to(wave.factors_at(middle_s, known), namespace.shape)
            profiles[:, place] *= np.bincount(namespace, weights=factors) / sizes
    return LearnedLoads(loads, scenario.name, 0, dict(zip(loads, profiles, strict=True)))


def broker_spec(name: BrokerId, kind: files.ScenarioBrokers) -> BrokerSpec:
    has = kind.capacity
    capacity = (
        has.cpu_cores * _CORE_PERCENT,
        has.memory_mib,
        has.direct_memory_mib,
        has.bandwidth_in_gbps * _KBIT_PER_GBIT,
        has.bandwidth_out_gbps * _KBIT_PER_GBIT,
    )
    return BrokerSpec(name, capacity, kind.speed, kind.version, kind.load_manager_class)


def _namespaces(
    like: files.NamespaceGroup | files.Traces, brokers: Sequence[BrokerId], seed: int, bundles: _BundleParts
) -> list[NamespaceSpec]:
    """Return the namespaces of a group, and add their bundles to `bundles`."""
    if isinstance(like, files.Traces):
        sizes = [
            min(like.bundles_per_namespace, like.bundles - first)
            for first in range(0, like.bundles, like.bundles_per_namespace)
        ]
    else:
        sizes = [like.bundles] * like.count
    weights = _weights(like, sum(sizes), len(bundles.names), seed)
    columns = np.array(like.load.columns())
    specs, first = [], 0
    for number, count in enumerate(sizes):
        is_alone = isinstance(like, files.NamespaceGroup) and like.count == 1
        name = like.name if is_alone else f"{like.name}-{number:04d}"
        spec = NamespaceSpec.of(name, count, _owners(like.owners, brokers, first, count))
        bundles.add(spec, weights[first : first + count, np.newaxis] * columns, like)
        specs.append(spec)
        first += count
    return specs


def _weights(like: files.NamespaceGroup | files.Traces, count: int, drawn_before: int, seed: int) -> FloatArray:
    if isinstance(like, files.NamespaceGroup):
        kind = like.weights
    else:
        kind = files.Steady() if like.tail is None else files.HeavyTailed(alpha=like.tail)
    if isinstance(kind, files.HeavyTailed):
        drawn = heavy_tailed(drawn_before + count, seed, kind.alpha, kind.largest)[drawn_before:]
        return drawn * (count / math.fsum(drawn.tolist()))
    if isinstance(kind, files.Zipf):
        return zipf(count, seed, kind.exponent, drawn_before)
    weights = np.ones(count)
    given = kind.weights or ()
    if len(given) > count:
        raise ValueError(f"namespaces: {like.name}: weights: expected at most {count}, got {len(given)}")
    weights[: len(given)] = given
    return weights


def _owners(
    how: Literal["placed", "dealt"] | tuple[BrokerId, ...], brokers: Sequence[BrokerId], first: int, count: int
) -> tuple[BrokerId, ...] | None:
    if how == "placed":
        return None
    among = brokers if how == "dealt" else how
    unknown = [each for each in among if each not in brokers]
    if unknown:
        raise ValueError(f"namespaces: owners: no broker {unknown[0]!r} at the beginning")
    return tuple(among[(first + number) % len(among)] for number in range(count))


def _workload(scenario: Scenario, bundles: _BundleParts, recorded: Sequence[Series]) -> ShapedWorkload:
    contents: dict[int, BundleTopics] = {}
    for row in bundles.rows:
        like = row.like
        if isinstance(like, files.NamespaceGroup) and like.contents is not None:
            for at, own in enumerate(row.spec.ranges(), start=row.first):
                contents[at] = random_topics(own, like.contents.count, scenario.seed, at, _topic_weight(like.contents))
    sizes = [len(row.load) for row in bundles.rows]
    return ShapedWorkload(
        bundles.finish(scenario.seed),
        np.concatenate([row.load for row in bundles.rows]),
        np.repeat([row.like.topics for row in bundles.rows], sizes),
        np.repeat([row.like.sessions for row in bundles.rows], sizes),
        tuple(_shapes(scenario, bundles, recorded)),
        contents,
    )


def _topic_weight(contents: files.TopicContents) -> Callable[[int], float]:
    """Return the weight function of topics: equal weights, or one topic in the middle with a part of all load."""
    share, count = contents.hot_share, contents.count
    if share is None or count == 1:
        return lambda _: 1.0
    others = (1.0 - share) / (count - 1)
    return lambda number: share if number == count // 2 else others


def _shapes(scenario: Scenario, bundles: _BundleParts, recorded: Sequence[Series]) -> Iterator[LoadShape]:
    for shape in scenario.shapes:
        if isinstance(shape, RampShape) and shape.bundles is not None:
            names = tuple(bundles.names[row] for row in bundles.find(shape.bundles, "shapes"))
            yield shape.model_copy(update={"bundles": names})
        else:
            yield shape
    if scenario.traces is not None:
        yield _follow_traces(scenario.traces, bundles, recorded, scenario.seed)


def _follow_traces(
    traces: files.Traces, bundles: _BundleParts, recorded: Sequence[Series], seed: int
) -> FollowedSeries:
    """Build the shape in which each traced bundle follows a series, scaled to mean 1; other bundles are unchanged."""
    if not recorded:
        raise ValueError("traces: no series was read")
    interval_s = recorded[0].step_ms / 1000
    for each in recorded:
        if not math.fsum(each.values.tolist()) > 0:
            raise ValueError(f"traces: series {each.name!r} is 0 throughout")
    first = next(row.first for row in bundles.rows if row.spec.name.startswith(f"{traces.name}-"))
    which = np.full(len(bundles.names), len(recorded), dtype=np.int64)
    which[first : first + traces.bundles] = np.arange(traces.bundles) % len(recorded)
    shift_s = np.zeros(len(bundles.names))
    if traces.shift:
        longest_s = interval_s * max(len(each.values) for each in recorded)
        drawn = generator(seed, Purpose.FLEET, 1).random(traces.bundles)
        shift_s[first : first + traces.bundles] = np.floor(drawn * (longest_s / interval_s)) * interval_s
    scaled = [each.values * (len(each.values) / math.fsum(each.values.tolist())) for each in recorded]
    return FollowedSeries((*scaled, np.ones(1)), interval_s, which, shift_s)


def _joining(scenario: Scenario) -> list[BrokerJoins]:
    found = []
    first = sum(each.count for each in scenario.brokers if each.id is None)
    for event in scenario.events:
        if isinstance(event, files.BrokersJoin):
            for number, (name, kind) in enumerate(numbered((event.brokers,), first)):
                found.append(BrokerJoins(event.at_s + number * event.every_s, broker_spec(name, kind)))
            first += event.brokers.count if event.brokers.id is None else 0
    return found


def _appearing(scenario: Scenario, brokers: Sequence[BrokerId], bundles: _BundleParts) -> list[NewNamespace]:
    """Return the events that create namespaces, by time, which is the order of the workload's rows."""
    found = []
    events = [event for event in scenario.events if isinstance(event, files.NamespaceAppears)]
    for event in sorted(events, key=lambda each: each.at_s):
        like = event.namespace.model_copy(update={"owners": "placed"})
        found += [NewNamespace(event.at_s, spec) for spec in _namespaces(like, brokers, scenario.seed, bundles)]
    return found


def _events(scenario: Scenario, bundles: _BundleParts) -> Iterator[Event]:
    """Yield the events of brokers and loads; those of new brokers and namespaces are built separately."""
    for event in scenario.events:
        match event:
            case LoadJumps():
                rows = bundles.find(event.bundles, "events: loadJumps")
                yield event.model_copy(update={"bundles": tuple(bundles.names[row] for row in rows)})
            case files.BrokersJoin() | files.NamespaceAppears():
                pass
            case _:
                yield event


def _require_brokers(scenario: Scenario, known: set[BrokerId]) -> None:
    """Raise `ValueError` for a named broker that never exists."""
    for number, event in enumerate(scenario.events):
        if not isinstance(event, files.BrokersJoin | files.NamespaceAppears | LoadJumps):
            named = event.brokers if isinstance(event, BrokersStop | BrokersCrash | BrokersRestart) else (event.broker,)
            _require(named, known, f"events.{number}")
    expect = scenario.expect
    for key in ("filled", "moves_to", "moves_from"):
        _require([each.broker for each in getattr(expect, key)], known, f"expect.{key}")


def _require(named: Iterable[str], known: set[BrokerId], where: str) -> None:
    for each in named:
        if each not in known:
            shown = ", ".join(sorted(known)[:_SHOWN_BROKERS])
            raise ValueError(f"{where}: there is no broker {each!r}; there are {shown}")


def world_rules(rules: Rules, settings: Settings) -> WorldRules:
    """Combine the rules of the scenario file with those of the settings."""
    return WorldRules(
        shedding_interval_s=settings.load_balancer_shedding_interval_minutes * _MINUTE_S,
        grace_period_s=settings.load_balancer_shedding_grace_period_minutes * _MINUTE_S,
        split_interval_s=settings.load_balancer_split_interval_minutes * _MINUTE_S,
        unload_split_bundles=settings.load_balancer_auto_unload_split_bundles_enabled,
        max_concurrent_unloads=settings.max_concurrent_unloads,
        max_concurrent_unloads_per_broker=settings.max_concurrent_unloads_per_broker,
        **rules.model_dump(),
    )
