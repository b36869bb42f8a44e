"""Small worlds, and what must hold in each at any time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from support.invariants import ownership_violations

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import FloatArray, IntArray
from loadmanager.lab.simulate.fleet_events import BrokerSpec, Event, NamespaceSpec
from loadmanager.lab.simulate.run_rules import WorldRules
from loadmanager.lab.simulate.workload import BundleTopics, LoadShape, ShapedWorkload, WorkloadBundles
from loadmanager.lab.simulate.world import World

MIB = 1024 * 1024

EAGER = PlannerSettings(bundle_unload_min_throughput_threshold=0.0, auto_bundle_split_enabled=False)
"""Sheds small amounts too, and never splits."""

QUIET = replace(EAGER, shedding_enabled=False)
"""Does nothing by itself but placing."""


def brokers_named(count: int) -> list[BrokerSpec]:
    """Brokers with ids from `broker-0000:8080` on."""
    return [BrokerSpec(BrokerId(f"broker-{number:04d}:8080")) for number in range(count)]


def namespaces_dealt(count: int, bundles: int, brokers: Sequence[BrokerId]) -> list[NamespaceSpec]:
    """Namespaces of equal bundles, dealt to the brokers in turn; without brokers nobody owns them."""
    specs = []
    for number in range(count):
        first = number * bundles
        owners = [brokers[(first + i) % len(brokers)] for i in range(bundles)] if brokers else None
        specs.append(NamespaceSpec.of(f"tenant/ns-{number:04d}", bundles, owners))
    return specs


def bundles_of(namespace: Sequence[int] | IntArray, seed: int = 0) -> WorkloadBundles:
    """Bundles of these namespaces, by number; they are named #0 and so on."""
    return WorkloadBundles({f"#{row}": row for row in range(len(namespace))}, np.asarray(namespace), seed)


def load_of(mib_per_s: float) -> tuple[float, float, float, float]:
    """Return a load of this many MiB/s in and as many out, in messages of 8 KiB."""
    return (mib_per_s * 128, mib_per_s * 128, mib_per_s * MIB, mib_per_s * MIB)


def steady(
    weights: FloatArray | Sequence[float],
    load: tuple[float, float, float, float],
    *,
    topics: int = 10,
    sessions: int = 20,
    shapes: Sequence[LoadShape] = (),
    contents: Mapping[int, BundleTopics] | None = None,
    seed: int = 0,
) -> ShapedWorkload:
    """Build a workload of bundles with `load` times their weight (N,), each with this number of topics and sessions."""
    column = np.asarray(weights, dtype=np.float64)
    counts = np.ones(len(column), dtype=np.int64)
    return ShapedWorkload(
        bundles_of(np.zeros_like(counts), seed),
        column[:, np.newaxis] * np.array(load),
        counts * topics,
        counts * sessions,
        tuple(shapes),
        contents or {},
    )


def world(
    weights: Sequence[float] | FloatArray,
    *,
    brokers: Sequence[BrokerSpec] | int = 3,
    namespaces: Sequence[NamespaceSpec] | None = None,
    mib_per_s: float = 10.0,
    settings: PlannerSettings = EAGER,
    rules: WorldRules | None = None,
    events: Sequence[Event] = (),
    shapes: Sequence[LoadShape] = (),
    workload: ShapedWorkload | None = None,
    seed: int = 1,
) -> World:
    """Bundles of these weights, in one namespace dealt to the brokers in turn unless told."""
    specs = brokers_named(brokers) if isinstance(brokers, int) else brokers
    if namespaces is None:
        namespaces = namespaces_dealt(1, len(weights), [spec.id for spec in specs])
    workload = workload or steady(weights, load_of(mib_per_s), shapes=shapes, seed=seed)
    return World(specs, namespaces, workload, settings, rules=rules or WorldRules(), events=events, seed=seed)


def violations(a_world: World) -> Iterator[str]:
    yield from _of_records(a_world)
    yield from _of_service(a_world)
    yield from _of_sums(a_world)


def _of_records(a_world: World) -> Iterator[str]:
    table, state = a_world._state.table, a_world._state
    for namespace, record in table.states().items():
        for text in ownership_violations(record.bundles.ranges(), record.ownerships):
            yield f"{namespace}: {text}"
    names = sorted(table.names)
    if names != sorted(name for record in table.states().values() for name in record.bundle_names()):
        yield "the rows are not the bundles of the records"
    known = state.model.snapshot(state.now_s, np.inf).bundles  # nothing that has moved is forgotten by being looked at
    if set(known.names) != set(names):
        yield "the leader knows other bundles"


def _of_service(a_world: World) -> Iterator[str]:
    table, state = a_world._state.table, a_world._state
    for row, number in enumerate(table.serving.tolist()):
        if number < 0:
            continue
        broker, ownership = state.fleet.brokers[number], table.ownership(row)
        if ownership.state is not OwnershipState.OWNED or ownership.owner != broker.registration or not broker.is_up:
            yield f"{table.names[row]} is served by {broker.spec.id}, and is {ownership}"
    if state.unowned != int((table.serving < 0).sum()):
        yield f"{state.unowned} bundles are counted as unowned"


def _of_sums(a_world: World) -> Iterator[str]:
    table, loads = a_world._state.table, a_world._state.loads
    carried = a_world._state.fleet.carried(table, loads, np.zeros(len(a_world._state.fleet)))
    total = carried.load.sum(axis=0) + loads.load[table.serving < 0].sum(axis=0)
    if not np.allclose(total, loads.load.sum(axis=0), rtol=1e-9):
        yield f"brokers and nobody carry {total}, and all bundles {loads.load.sum(axis=0)}"
    if int(carried.topics.sum() + loads.topics[table.serving < 0].sum()) != int(loads.topics.sum()):
        yield "topics are lost"
