from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.worlds import EAGER, brokers_named, load_of, namespaces_dealt, steady, violations, world

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES
from loadmanager.lab.simulate.fleet_events import (
    BrokerFallsSick,
    BrokerJoins,
    BrokersCrash,
    BrokerSlows,
    BrokerSpec,
    BrokersRestart,
    BrokersStop,
    Event,
    LoadJumps,
    NamespaceSpec,
    NewNamespace,
    ReportFault,
    ReportsGoBad,
)
from loadmanager.lab.simulate.run_rules import WorldRules
from loadmanager.lab.simulate.sim_result import Result
from loadmanager.lab.simulate.workload import DiurnalShape, LoadShape, NoiseShape, heavy_tailed, random_topics
from loadmanager.lab.simulate.world import Progress, World

_BROKERS = [spec.id for spec in brokers_named(4)]
_SPECS = namespaces_dealt(2, 8, _BROKERS)
_BUNDLES = [name for spec in _SPECS for name in spec.bundle_names()]
_SPLITS = replace(
    EAGER, auto_bundle_split_enabled=True, namespace_bundle_max_bandwidth_mbytes=30, namespace_maximum_bundles=20
)
_AT = st.floats(0, 800)
_BROKER = st.sampled_from(_BROKERS)
_ONE = st.tuples(_BROKER)

_EVENTS = st.one_of(
    st.builds(BrokersCrash, atS=_AT, brokers=_ONE),
    st.builds(BrokersStop, atS=_AT, brokers=_ONE, drain=st.booleans()),
    st.builds(BrokersRestart, atS=_AT, brokers=_ONE, downS=st.floats(0, 100)),
    st.builds(BrokerSlows, atS=_AT, broker=_BROKER, factor=st.sampled_from([0.25, 2.0])),
    st.builds(
        lambda at_s, for_s, bundles, factor: LoadJumps(
            at_s=at_s, until_s=at_s + for_s, bundles=tuple(bundles), factor=factor
        ),
        _AT,
        st.floats(0, 300),
        st.lists(st.sampled_from(_BUNDLES), min_size=1, max_size=3, unique=True),
        st.sampled_from([0.0, 8.0]),
    ),
    st.builds(BrokerFallsSick, atS=_AT, broker=_BROKER, untilS=st.sampled_from([600.0, None])),
    st.builds(ReportsGoBad, atS=_AT, broker=_BROKER, fault=st.sampled_from(ReportFault), untilS=st.just(600.0)),
)


def _run(seed: int, events: list[Event], strategy: str, *, with_topics: bool, check: bool = True) -> Result:
    later = NamespaceSpec.of("tenant/later", 4)
    weights = heavy_tailed(20, seed, largest=50.0)
    own = (
        {row: random_topics(each, 12, seed, row) for row, each in enumerate(_SPECS[0].ranges())} if with_topics else {}
    )
    shapes: list[LoadShape] = [NoiseShape(spread=0.2), DiurnalShape(amplitude=0.5, period_s=1800.0)]
    workload = steady(weights, load_of(12.0), shapes=shapes, contents=own, seed=seed)
    more: list[Event] = [
        NewNamespace(100.0, later),
        BrokerJoins(200.0, BrokerSpec(BrokerId("new:8080"), speed=2.0)),
        *events,
    ]
    settings = replace(_SPLITS, shedding_strategy=strategy)
    made = World(
        brokers_named(4), _SPECS, workload, settings, rules=WorldRules(shedding_interval_s=20.0), events=more, seed=seed
    )
    found: list[str] = []

    def look(progress: Progress) -> None:
        found.extend(f"{progress.t_s}: {text}" for text in violations(made))

    result = made.run(1200.0, 20.0, look if check else None)
    assert not found
    assert list(violations(made)) == []
    return result


a_run_each = settings(max_examples=settings().max_examples // 4)


@a_run_each
@given(
    seed=st.integers(0, 1000),
    events=st.lists(_EVENTS, max_size=6),
    strategy=st.sampled_from(sorted(SHEDDING_STRATEGIES)),
    with_topics=st.booleans(),
)
def test_bundles_and_load_are_conserved(seed: int, events: list[Event], strategy: str, *, with_topics: bool) -> None:
    result = _run(seed, events, strategy, with_topics=with_topics)
    served = result.series.brokers > 0
    assert (result.series.imbalance[served] >= result.series.lower_bound[served] * (1 - 1e-9)).all()
    assert (result.series.lower_bound[served] >= 1 - 1e-9).all()
    assert result.bundles == 20 + sum(len(split.boundaries) for split in result.splits)


@a_run_each
@given(st.integers(0, 1000), st.lists(_EVENTS, max_size=4), st.sampled_from(sorted(SHEDDING_STRATEGIES)))
def test_same_seed_and_events_give_the_same_run(seed: int, events: list[Event], strategy: str) -> None:
    digests = {_run(seed, events, strategy, with_topics=True, check=check).digest() for check in (True, False)}
    assert len(digests) == 1


_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from test_world import one_run
print(one_run().digest())
"""


def one_run() -> Result:
    """Run with one event of each kind."""
    events: list[Event] = [
        BrokersCrash(at_s=300.0, brokers=(_BROKERS[2],)),
        BrokersRestart(at_s=500.0, brokers=(_BROKERS[1],), down_s=40.0),
        BrokersStop(at_s=700.0, brokers=(_BROKERS[3],)),
        LoadJumps(at_s=250.0, until_s=700.0, bundles=(_BUNDLES[3], _BUNDLES[9]), factor=6.0),
        ReportsGoBad(at_s=100.0, broker=_BROKERS[0], fault=ReportFault.DECAYED, until_s=400.0),
    ]
    return _run(7, events, "ThresholdShedder", with_topics=True, check=False)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_run_is_the_same_in_another_process_with_another_hash_seed(hash_seed: str) -> None:
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join([str(here.parent), *sys.path]),
    }
    command = [sys.executable, "-c", _PROGRAM, str(here)]
    there = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    assert there.stdout.strip() == one_run().digest()


def test_different_seed_gives_a_different_run() -> None:
    weights = np.ones(6)
    runs = [world(weights, shapes=[NoiseShape(spread=0.2)], seed=seed).run(600.0) for seed in (1, 2)]
    assert runs[0].digest() != runs[1].digest()
