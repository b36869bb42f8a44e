from __future__ import annotations

from copy import deepcopy
from dataclasses import astuple, replace

import numpy as np
import pytest
from support.builders import broker, bundle, report, snapshot, throughput

from loadmanager.core.domain.plan import Unload
from loadmanager.core.domain.reasons import ChurnReason
from loadmanager.core.domain.settings import PlannerSettings, UnknownStrategyError
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn
from loadmanager.core.planning.churn import MoveMemory
from loadmanager.core.planning.planner import State, plan_shedding
from loadmanager.core.planning.shedding_round import Round, propose, shed

NOW_S = 1_000_000.0
SETTINGS = PlannerSettings(
    shedding_strategy="ThresholdShedder",
    max_load_moved_per_cycle_percentage=100,
    max_load_moved_per_hour_percentage=100,
)


def hot_a() -> Snapshot:
    """Broker a has all the load and is overloaded."""
    loads = {bundle(i): throughput(20) for i in range(6)}
    return snapshot({"a": report(loads, cpu=95), "b": report(cpu=5), "c": report(cpu=5)}, taken_at_s=NOW_S)


def used_before(**usage: float) -> State:
    """Memory of ThresholdShedder: averages as fractions."""
    return {"ThresholdShedder": {"usage": {f"{name}:8080": [1, part] for name, part in usage.items()}}}


def a_round(
    settings: PlannerSettings = SETTINGS, state: State | None = None, moves: churn.State | None = None
) -> Round:
    return shed(hot_a(), settings, state or {}, moves or {}, np.random.default_rng(0))


def moved(bundles: range) -> churn.State:
    """Return churn state in which these bundles moved from b to a a minute ago."""
    state: churn.State = {}
    for i in bundles:
        state, _ = churn.noted(state, bundle(i), broker("b"), broker("a"), 0.1, SETTINGS, at_s=NOW_S - 60, is_own=True)
    return state


def test_old_average_does_not_delay_relief_of_an_overloaded_broker() -> None:
    idle = used_before(a=0.05, b=0.05, c=0.05)
    assert not plan_shedding(hot_a(), SETTINGS, idle, np.random.default_rng(0))[0].steps
    assert a_round(state=idle).plan.steps


def test_averages_of_sources_and_destinations_are_dropped() -> None:
    done = a_round()
    taking_part = {
        each.broker
        for step in done.plan.steps
        if isinstance(step, Unload)
        for each in (step.source, step.destination)
        if each
    }
    remembered = done.state["ThresholdShedder"]["usage"]
    assert taking_part
    assert remembered.keys() == {"a:8080", "b:8080", "c:8080"} - taking_part


def test_step_beyond_the_limits_keeps_its_brokers_averages() -> None:
    nothing = a_round(replace(SETTINGS, max_load_moved_per_cycle_percentage=0))
    assert nothing.plan.steps == ()
    assert ChurnReason.MOVED_ENOUGH_THIS_ROUND in {verdict.verdict for verdict in nothing.plan.verdicts}
    assert nothing.state["ThresholdShedder"]["usage"].keys() == {"a:8080", "b:8080", "c:8080"}


def test_remembered_moves_count_until_they_are_too_old() -> None:
    limited = replace(SETTINGS, max_load_moved_per_hour_percentage=30)
    assert a_round(limited).plan.steps
    after = a_round(limited, moves=moved(range(3)))
    assert after.plan.steps == ()
    assert len(MoveMemory.of(after.churn_state).moves) == 3
    long_ago = MoveMemory(tuple(move._replace(at_s=NOW_S - 1e6) for move in MoveMemory.of(moved(range(3))).moves)).into(
        {}
    )
    again = a_round(limited, moves=long_ago)
    assert again.plan.steps
    assert MoveMemory.of(again.churn_state).moves == ()


def test_move_completed_during_the_decision_counts() -> None:
    limited = replace(SETTINGS, max_load_moved_per_hour_percentage=30)
    proposal = propose(hot_a(), limited, {}, np.random.default_rng(0))
    assert proposal.within_limits({}).plan.steps
    assert proposal.within_limits(moved(range(3))).plan.steps == ()


def test_round_mutates_only_its_generator() -> None:
    state, moves, rng = used_before(a=0.5, b=0.05, c=0.05), moved(range(2)), np.random.default_rng(0)
    before = deepcopy((state, moves))
    first = shed(hot_a(), SETTINGS, state, moves, deepcopy(rng))
    assert (state, moves) == before
    second = shed(hot_a(), SETTINGS, state, moves, rng)
    assert second.plan.steps == first.plan.steps
    assert list(map(astuple, second.plan.verdicts)) == list(map(astuple, first.plan.verdicts))
    assert (second.state, second.churn_state) == (first.state, first.churn_state)


def test_unknown_strategy_is_refused() -> None:
    with pytest.raises(UnknownStrategyError):
        a_round(replace(SETTINGS, shedding_strategy="NoSuchShedder"))
