from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.random_clusters import Build, SomeCluster, clusters

from loadmanager.core.domain.plan import Plan, Unload
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.fleet_load import share_of
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn, planner
from loadmanager.core.planning.churn import MoveMemory, State
from loadmanager.core.strategies.shedding.overload_shedder import OverloadReason

CLOSE = 1e-8


@dataclass(frozen=True)
class Case:
    snapshot: Snapshot
    plan: Plan
    state: State


@st.composite
def cases(draw: st.DrawFn, *, with_past: bool = True) -> Case:
    """Draw a settled cluster, steps with any destination, and moves of the last two hours."""
    snapshot = Build().snapshot(draw(clusters(settled=True, fewest_brokers=2)))
    brokers, names = snapshot.brokers.registrations, snapshot.bundles.names
    moving = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    steps = []
    for name in moving:
        row = snapshot.bundles.find_row(name)
        assert row is not None
        owner = int(snapshot.bundles.broker[row])
        steps.append(Unload(name, brokers[owner], draw(st.sampled_from(brokers)), OverloadReason.BROKER_OVERLOADED))
    state: State = {}
    if with_past and names:
        for at_s in sorted(draw(st.lists(st.floats(-7200, 0), max_size=8))):
            source, destination = draw(st.sampled_from(brokers)), draw(st.sampled_from(brokers))
            share = draw(st.floats(0, 0.4))
            name, is_own = draw(st.sampled_from(names)), draw(st.booleans())
            state, _ = churn.noted(state, name, source, destination, share, PlannerSettings(), at_s=at_s, is_own=is_own)
    return Case(snapshot, Plan(1, 0.0, tuple(steps), ()), state)


percentages = st.floats(0, 100)


@given(cases(), percentages, percentages, st.floats(0, 120))
def test_limits_are_never_exceeded(case: Case, cycle: float, hour: float, cool_down: float) -> None:
    settings = PlannerSettings(
        max_load_moved_per_cycle_percentage=cycle,
        max_load_moved_per_hour_percentage=hour,
        return_cool_down_minutes=cool_down,
    )
    plan, state = churn.limit(case.plan, case.snapshot, settings, case.state)
    memory = MoveMemory.of(case.state)
    moved = sum(share_of(case.snapshot, step.bundle) for step in plan.steps)
    loaded = [step for step in plan.steps if share_of(case.snapshot, step.bundle) > 0]
    assert moved <= cycle / 100 + CLOSE or (cycle > 0 and len(loaded) == 1)
    if moved > CLOSE:
        assert moved + memory.moved_share(case.snapshot, 0.0) <= hour / 100 + CLOSE
    for step in plan.steps:
        assert isinstance(step, Unload)
        assert step.destination is not None
        assert memory.find_departure(step.bundle, step.destination, -cool_down * 60) is None
        assert memory.frozen_until_s.get(step.bundle, 0.0) <= 0.0 or not settings.has_churn_breaker
    assert not (plan.steps and memory.stopped_until_s > 0.0 and settings.has_churn_breaker)
    subjects = {verdict.subject for verdict in plan.verdicts}
    dropped = {step.bundle for step in case.plan.steps} - {step.bundle for step in plan.steps}
    idle = {step.source.broker for step in case.plan.unloads} - {step.source.broker for step in plan.unloads}
    assert subjects == dropped | idle
    assert MoveMemory.of(state).moved_back(0.0) == memory.moved_back(0.0)


@given(cases(with_past=False))
def test_limit_of_100_percent_drops_nothing(case: Case) -> None:
    settings = PlannerSettings(max_load_moved_per_cycle_percentage=100, max_load_moved_per_hour_percentage=100)
    assert churn.limit(case.plan, case.snapshot, settings, {})[0].steps == case.plan.steps


@given(cases())
def test_limit_is_deterministic_and_idempotent(case: Case) -> None:
    settings = PlannerSettings()
    plan, state = churn.limit(case.plan, case.snapshot, settings, case.state)
    again, _ = churn.limit(case.plan, case.snapshot, settings, case.state)
    assert (plan.steps, [v.sentence() for v in plan.verdicts]) == (again.steps, [v.sentence() for v in again.verdicts])
    assert churn.limit(plan, case.snapshot, settings, state)[0].steps == plan.steps


@given(clusters(settled=True), st.integers(0, 3))
def test_default_limits_do_not_delay_a_first_round_below_half_of_all_load(cluster: SomeCluster, seed: int) -> None:
    """Covers first rounds only: no moves are remembered."""
    snapshot = Build().snapshot(cluster)
    settings = PlannerSettings(shedding_strategy="UniformLoadShedder")
    plan, _ = planner.plan_shedding(snapshot, settings, {}, np.random.default_rng(seed))
    total = sum(share_of(snapshot, step.bundle) for step in plan.steps)
    if total <= 0.5:
        assert churn.limit(plan, snapshot, settings, {})[0].steps == plan.steps
