"""UniformLoadShedder and AvgShedder compared with a literal transcription of Pulsar's rules."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.builders import Load, broker, bundle, report
from support.random_clusters import Build, SomeCluster, clusters
from support.transcription_uniform_avg import Avg, Uniform, build_brokers

from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.strategies.shedding.avg_shedder import AvgShedder
from loadmanager.core.strategies.shedding.shedding_strategy import State
from loadmanager.core.strategies.shedding.uniform_shedder import UniformLoadShedder

CPU_ONLY = ResourceWeights(1, 0, 0, 0)

Parameters = tuple[float, float, int, int, float, int]
UNIFORM = (
    "msg_rate_difference_shedder_threshold",
    "msg_throughput_multiplier_difference_shedder_threshold",
    "min_unload_message",
    "min_unload_message_throughput",
    "max_unload_percentage",
    "max_unload_bundle_num_per_shedding",
)


def avg(points: tuple[int, int], hits: tuple[int, int], least: tuple[int, int], max_unload: float) -> AvgShedder:
    settings = PlannerSettings(
        avg_shedder_low_threshold=points[0],
        avg_shedder_high_threshold=points[1],
        avg_shedder_hit_count_low_threshold=hits[0],
        avg_shedder_hit_count_high_threshold=hits[1],
        min_unload_message=least[0],
        min_unload_message_throughput=least[1],
        max_unload_percentage=max_unload,
        resource_weights=CPU_ONLY,
    )
    return AvgShedder(settings)


def check_uniform(snapshot: Snapshot, parameters: Parameters) -> int:
    """Compare both; returns the number of bundles shed."""
    ids, names = snapshot.brokers.ids, snapshot.bundles.names
    settings = PlannerSettings(**dict(zip(UNIFORM, parameters, strict=True)))  # type: ignore[arg-type]
    shed = UniformLoadShedder(settings).find_bundles_for_unloading(snapshot, {})
    picked = {ids[pick.broker]: [names[row] for row in pick.bundles] for pick in shed.bundles}
    assert picked == Uniform(*parameters).find(build_brokers(snapshot))
    return sum(map(len, picked.values()))


def check_avg(snapshot: Snapshot, fast: AvgShedder, slow: Avg, state: State) -> tuple[State, int]:
    """Compare both; return the state for the next round and the number of moved bundles."""
    ids, names = snapshot.brokers.ids, snapshot.bundles.names
    shed = fast.find_bundles_for_unloading(snapshot, state)
    moves = []
    for pick in shed.bundles:
        assert pick.destination is not None
        moves.append((str(ids[pick.broker]), str(ids[pick.destination]), [names[row] for row in pick.bundles]))
    assert moves == slow.find(build_brokers(snapshot))
    hits = shed.state["hits"]
    assert {name: low for name, (_, low, _) in hits.items() if low} == slow.hit_low
    assert {name: high for name, (_, _, high) in hits.items() if high} == slow.hit_high
    planned = {name: destination for _, destination, taken in moves for name in taken}
    assert shed.state["planned"] == planned
    return json.loads(json.dumps(shed.state)), len(planned)


@given(
    cluster=clusters(settled=True),
    rate=st.sampled_from([0.0, 10.0, 50.0, 1000.0]),
    multiplier=st.sampled_from([0.0, 1.5, 4.0]),
    minimum=st.sampled_from([0, 1000, 1 << 20]),
    max_unload=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    max_bundles=st.sampled_from([-1, 0, 1, 3]),
)
def test_uniform_equals_pulsars(
    cluster: SomeCluster, rate: float, multiplier: float, minimum: int, max_unload: float, max_bundles: int
) -> None:
    check_uniform(Build().snapshot(cluster), (rate, multiplier, minimum, minimum, max_unload, max_bundles))


@given(
    rounds=st.lists(clusters(settled=True), min_size=1, max_size=5),
    points=st.sampled_from([(0, 0), (5, 20), (15, 40), (40, 15)]),
    hits=st.sampled_from([(1, 1), (3, 2), (8, 2), (2, 0)]),
    minimum=st.sampled_from([0, 1000]),
    max_unload=st.sampled_from([0.2, 0.5, 1.0]),
)
def test_avg_equals_pulsars_over_rounds(
    rounds: list[SomeCluster], points: tuple[int, int], hits: tuple[int, int], minimum: int, max_unload: float
) -> None:
    (low, high), (low_hits, high_hits) = points, hits
    fast = avg(points, hits, (minimum, minimum), max_unload)
    slow = Avg(low, high, low_hits, high_hits, minimum, minimum, max_unload)
    state: State = {}
    incarnations: dict[str, int] = {}
    for cluster in rounds:
        snapshot = Build().snapshot(cluster)
        now = {str(each.broker): each.incarnation for each in snapshot.brokers.registrations}
        for counted in (slow.hit_low, slow.hit_high):
            for name in [name for name in counted if incarnations.get(name) != now.get(name)]:
                del counted[name]
        incarnations = now
        state, _ = check_avg(snapshot, fast, slow, state)


def some_reports(rng: np.random.Generator) -> Snapshot:
    """Return brokers with random bundle loads; many bundles are idle or equal."""
    reports = {}
    for number in range(int(rng.integers(2, 9))):
        scale = 10.0 ** rng.integers(0, 8)
        first = 1000 * number
        loads: dict[str, Load] = {}
        for i in range(int(rng.integers(0, 12))):
            a, b, c, d = (rng.integers(0, 5, 4) * scale * rng.choice([0, 0.5, 1, rng.random()])).tolist()
            loads[bundle(first + i)] = (a, b, c, d)
        reports[broker(f"b-{number}")] = report(loads, cpu=float(rng.choice([10, 25, 30, 50, 80, 110])))
    return build_snapshot(0.0, reports, {})


def test_uniform_equals_pulsars_on_2000_clusters() -> None:
    rng = np.random.default_rng(1)
    taken = 0
    for _ in range(2000):
        snapshot = some_reports(rng)
        parameters = (
            float(rng.choice([0, 50])),
            float(rng.choice([0, 4])),
            int(rng.choice([0, 1, 1000])),
            int(rng.choice([0, 1000])),
            float(rng.choice([0.2, 0.5, rng.random()])),
            int(rng.choice([-1, -1, 2])),
        )
        taken += check_uniform(snapshot, parameters)
    assert taken > 1000


def test_avg_equals_pulsars_on_2000_clusters() -> None:
    rng = np.random.default_rng(2)
    fast = avg((15, 40), (4, 2), (10, 1000), 0.5)
    slow = Avg(15, 40, 4, 2, 10, 1000, 0.5)
    state: State = {}
    moved = 0
    for _ in range(2000):
        snapshot = some_reports(rng)
        present = {str(each) for each in snapshot.brokers.ids}
        slow.hit_low = {name: hits for name, hits in slow.hit_low.items() if name in present}
        slow.hit_high = {name: hits for name, hits in slow.hit_high.items() if name in present}
        state, planned = check_avg(snapshot, fast, slow, state)
        moved += planned
    assert moved > 500
