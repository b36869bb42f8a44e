"""Filters and placement compared with a literal transcription of Pulsar's rules."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from support.builders import broker, bundle, report, snapshot
from support.random_clusters import drawn, seldom
from support.transcription_selection import (
    Broker,
    Isolation,
    RoundRobin,
    World,
    least_resource_usage,
    may_unload,
    select_async,
    select_broker,
)

from loadmanager.core.constraints.filters import (
    EXTENSIBLE,
    MODULAR,
    PlacementQuestion,
    allowed_brokers,
    find_anti_affinity_refusal,
    preferred_brokers,
)
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BoolArray
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.placement.least_resource_usage import LeastResourceUsageWithWeight
from loadmanager.core.strategies.placement.placement_strategy import State
from loadmanager.core.strategies.placement.round_robin import RoundRobinBrokerSelector

NAMESPACES = ("a/x", "a/y", "b/x", "pulsar/system")
HOSTS = ("h0", "h1", "h2", "k0", "k1")
HOST_PATTERNS = st.sampled_from(["h.*", "h0", "h[01]", "k.*", "k1|h1", ".*", "nobody", "h"])
NAMESPACE_PATTERNS = st.sampled_from(["a/.*", "a/x", ".*/x", "b/x", "x", ".*"])
VERSIONS = st.sampled_from(["1.0.0"] * 4 + ["1.0.1", "1.0.1-SNAPSHOT", "0.9.9", "unknown"])

some_brokers = st.builds(
    Broker,
    topics=st.sampled_from([0, 9, 10, 11]),
    version=VERSIONS,
    persistent=drawn(lambda chance: not seldom(chance, 5)),
    non_persistent=drawn(lambda chance: not seldom(chance, 5)),
    ranges=st.dictionaries(st.sampled_from(NAMESPACES), st.integers(1, 3)),
)
policies = st.builds(Isolation, NAMESPACE_PATTERNS, HOST_PATTERNS, HOST_PATTERNS, st.integers(0, 3))
worlds = st.builds(
    World,
    brokers=st.dictionaries(st.sampled_from(HOSTS).map("{}:8080".format), some_brokers, min_size=1),
    isolation=st.dictionaries(st.sampled_from("pqr"), policies, max_size=2),
    groups=st.dictionaries(st.sampled_from(NAMESPACES), st.sampled_from(["g", "G", " g", "other", " "])),
    domains=st.dictionaries(st.sampled_from(HOSTS).map("{}:8080".format), st.sampled_from(["east", "west"])),
    max_topics=st.just(10),
    evenly=st.booleans(),
    later_versions=st.booleans(),
    failure_domains=st.booleans(),
)


def question(world: World, namespace: str, excluded: str | None, *, non_persistent: bool) -> PlacementQuestion:
    """Build a question; half of each broker's bundles are reported, the others preallocated."""
    reports, given = {}, {}
    for name, some in world.brokers.items():
        base = 1000 * (1 + HOSTS.index(name.removesuffix(":8080")))
        names = [bundle(base + i, each) for each, ranges in some.ranges.items() for i in range(ranges)]
        given.update(dict.fromkeys(names[::2], name))
        reports[name] = report(
            names[1::2],
            topics=some.topics,
            version=some.version,
            persistent_enabled=some.persistent,
            non_persistent_enabled=some.non_persistent,
        )
    isolation = tuple(
        IsolationPolicy(name, (each.namespaces,), (each.primary,), (each.secondary,), each.min_limit)
        for name, each in world.isolation.items()
    )
    operator_config = Policies(
        isolation, world.groups, {BrokerId(name): domain for name, domain in world.domains.items()}
    )
    settings = PlannerSettings(
        broker_max_topics=world.max_topics,
        distribute_bundles_evenly_enabled=world.evenly,
        prefer_later_versions=world.later_versions,
        failure_domains_enabled=world.failure_domains,
    )
    taken = snapshot(reports, policies=operator_config, preallocated=given)
    row = None if excluded is None else taken.brokers.find_row(BrokerId(excluded))
    return PlacementQuestion(namespace, Projection(taken), settings, row, non_persistent=non_persistent)


def names(given: Snapshot, kept: BoolArray) -> set[str]:
    return {str(given.brokers.ids[row]) for row in np.flatnonzero(kept)}


@given(world=worlds, namespace=st.sampled_from(NAMESPACES), non_persistent=st.booleans())
def test_modular_candidates_equal_pulsars(world: World, namespace: str, *, non_persistent: bool) -> None:
    """Difference: when a filter fails, Pulsar falls back to isolation policies only; our limits still apply."""
    asked = question(world, namespace, None, non_persistent=non_persistent)
    allowed, _ = allowed_brokers(MODULAR, asked)
    found = names(asked.snapshot, preferred_brokers(MODULAR, allowed, asked)[0])
    expected = select_broker(world, namespace, non_persistent=non_persistent)
    assert names(asked.snapshot, allowed) == expected.limited
    assert found == (expected.limited if expected.failed else expected.candidates)
    assert found <= expected.candidates


@given(
    world=worlds,
    namespace=st.sampled_from(NAMESPACES),
    excluded=st.none() | st.sampled_from(HOSTS).map("{}:8080".format),
    non_persistent=st.booleans(),
)
def test_extensible_candidates(world: World, namespace: str, excluded: str | None, *, non_persistent: bool) -> None:
    asked = question(world, namespace, excluded, non_persistent=non_persistent)
    found = names(asked.snapshot, allowed_brokers(EXTENSIBLE, asked)[0])
    assert found == select_async(world, namespace, excluded, non_persistent=non_persistent)


@given(world=worlds, namespace=st.sampled_from(NAMESPACES), position=st.integers(0, 4))
def test_bundle_may_leave_its_broker_when_pulsar_allows_it(world: World, namespace: str, position: int) -> None:
    source = sorted(world.brokers)[position % len(world.brokers)]
    asked = question(world, namespace, source, non_persistent=False)
    allowed, _ = allowed_brokers(MODULAR, asked)
    found = bool(allowed.any()) and find_anti_affinity_refusal(MODULAR, asked) is None
    assert found == may_unload(world, namespace, source)


@given(
    rounds=st.lists(
        st.lists(
            st.tuples(st.integers(0, 120), st.booleans(), drawn(lambda chance: seldom(chance, 3))),
            min_size=5,
            max_size=5,
        ),
        min_size=1,
        max_size=6,
    ),
    history=st.sampled_from([0.0, 0.5, 0.9]),
    difference=st.sampled_from([0, 5, 10]),
)
def test_least_resource_usage(rounds: list[list[tuple[int, bool, bool]]], history: float, difference: int) -> None:
    settings = PlannerSettings(
        average_resource_usage_difference_threshold_percentage=difference,
        history_resource_percentage=history,
        resource_weights=ResourceWeights(1, 0, 0, 0),
    )
    strategy = LeastResourceUsageWithWeight(settings)
    state: State = {}
    ema: dict[str, float] = {}
    rng = np.random.default_rng(0)
    for some in rounds:
        carried = {i: {bundle(i): (0.0 if idle else 1.0, 0.0, 0.0, 0.0)} for i, (_, _, idle) in enumerate(some)}
        given_now = snapshot({HOSTS[i]: report(carried[i], cpu=cpu) for i, (cpu, _, _) in enumerate(some)})
        rows = np.array([i for i, (_, is_candidate, _) in enumerate(some) if is_candidate], dtype=np.intp)
        placement = strategy.place(rows, None, Projection(given_now), state, rng)
        state = json.loads(json.dumps(placement.state))
        ids = given_now.brokers.ids
        usage = {str(ids[row]): float(given_now.brokers.usage_percent[row, 0]) / 100 for row in rows.tolist()}
        idle = {str(ids[row]): some[row][2] for row in rows.tolist()}
        expected = least_resource_usage(usage, idle, ema, history, difference) if usage else set()
        assert {str(ids[row]) for row in placement.drawn_from.tolist()} == expected
        assert (placement.broker is None) == (not expected)
        assert {name: average for name, (_, average) in state.get("usage", {}).items()} == ema


@given(rounds=st.lists(st.lists(st.integers(0, 4), unique=True), max_size=20), start=st.sampled_from([0, 5, 2**31 - 3]))
@example(rounds=[[0, 1], [0, 1, 2], [0, 1], [3, 4]], start=0)
def test_round_robin_equals_pulsars(rounds: list[list[int]], start: int) -> None:
    given_now = snapshot({host: report() for host in HOSTS})
    slow = RoundRobin()
    slow.counter = start
    state: State = {"turn": start}
    rng = np.random.default_rng(0)
    for rows in rounds:
        candidates = np.array(rows, dtype=np.intp)
        placement = RoundRobinBrokerSelector().place(candidates, None, Projection(given_now), state, rng)
        state = json.loads(json.dumps(placement.state))
        found = None if placement.broker is None else str(given_now.brokers.ids[placement.broker])
        assert found == slow.select([str(broker(HOSTS[row]).broker) for row in rows])
        assert state.get("turn") == slow.counter
