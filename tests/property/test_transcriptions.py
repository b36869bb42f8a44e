"""Vectorised strategies compared with a literal transcription of Pulsar's rules."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.random_clusters import Build, SomeCluster, clusters
from support.transcription import Threshold, build_brokers, least_long_term_message_rate, overload

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.placement.least_long_term_message_rate import LeastLongTermMessageRate
from loadmanager.core.strategies.shedding.overload_shedder import OverloadShedder
from loadmanager.core.strategies.shedding.shedding_strategy import Shed, State
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdShedder

CPU_ONLY = ResourceWeights(1, 0, 0, 0)
PERCENT = st.sampled_from([5, 10, 50, 85, 100])


def picked(snapshot: Snapshot, shed: Shed) -> dict[str, list[str]]:
    ids, names = snapshot.brokers.ids, snapshot.bundles.names
    return {ids[pick.broker]: [names[row] for row in pick.bundles] for pick in shed.bundles}


@given(cluster=clusters(settled=True), threshold=PERCENT)
def test_overload_equals_pulsars(cluster: SomeCluster, threshold: int) -> None:
    snapshot = Build().snapshot(cluster)
    settings = PlannerSettings(broker_overloaded_threshold_percentage=threshold, resource_weights=CPU_ONLY)
    shed = OverloadShedder(settings).find_bundles_for_unloading(snapshot, {})
    assert picked(snapshot, shed) == overload(build_brokers(snapshot), threshold)


@given(
    rounds=st.lists(clusters(settled=True), min_size=1, max_size=4),
    threshold=st.sampled_from([0, 5, 10, 30]),
    minimum=st.sampled_from([0.0, 1.0, 10.0]),
    history=st.sampled_from([0.0, 0.5, 0.9]),
    lower_boundary=st.booleans(),
)
def test_threshold_equals_pulsars_over_rounds(
    rounds: list[SomeCluster], threshold: int, minimum: float, history: float, *, lower_boundary: bool
) -> None:
    settings = PlannerSettings(
        broker_threshold_shedder_percentage=threshold,
        bundle_unload_min_throughput_threshold=minimum,
        history_resource_percentage=history,
        lower_boundary_shedding_enabled=lower_boundary,
        resource_weights=CPU_ONLY,
    )
    fast = ThresholdShedder(settings)
    slow = Threshold(threshold, history, minimum, lower_boundary=lower_boundary)
    state: State = {}
    incarnations: dict[str, int] = {}
    for cluster in rounds:
        snapshot = Build().snapshot(cluster)
        now = {str(each.broker): each.incarnation for each in snapshot.brokers.registrations}
        slow.ema = {name: ema for name, ema in slow.ema.items() if incarnations.get(name) == now.get(name)}
        incarnations = now
        shed = fast.find_bundles_for_unloading(snapshot, state)
        state = shed.state
        assert picked(snapshot, shed) == slow.find(build_brokers(snapshot))
        assert {name: ema for name, (_, ema) in state["usage"].items()} == slow.ema


@given(cluster=clusters(), threshold=PERCENT, planned=st.lists(st.integers(0, 1000), min_size=6, max_size=6))
def test_least_long_term_rate_equals_pulsars(cluster: SomeCluster, threshold: int, planned: list[int]) -> None:
    snapshot = Build().snapshot(cluster)
    projection = Projection(snapshot)
    projection.load[:, 0] = planned[: len(snapshot.brokers)]
    candidates = np.arange(len(snapshot.brokers))
    settings = PlannerSettings(broker_overloaded_threshold_percentage=threshold, resource_weights=CPU_ONLY)
    strategy = LeastLongTermMessageRate(settings)
    placement = strategy.place(candidates, None, projection, {}, np.random.default_rng(0))
    expected = least_long_term_message_rate(snapshot, candidates.tolist(), threshold, dict(enumerate(planned)))
    assert set(placement.drawn_from.tolist()) == expected
    assert placement.broker in expected
