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
    """Each of these bundles has left b for a a minute ago."""
    state: churn.State = {}
    for i in bundles:
        state, _ = churn.noted(state, bundle(i), broker("b"), broker("a"), 0.1, SETTINGS, at_s=NOW_S - 60, is_own=True)
    return state


def test_an_average_from_before_a_broker_was_overloaded_does_not_keep_it_from_being_relieved() -> None:
    idle = used_before(a=0.05, b=0.05, c=0.05)
    assert not plan_shedding(hot_a(), SETTINGS, idle, np.random.default_rng(0))[0].steps
    assert a_round(state=idle).plan.steps


def test_the_averages_of_brokers_that_give_or_get_something_begin_anew() -> None:
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


def test_a_step_beyond_the_limits_is_not_taken_and_its_brokers_go_on_as_they_were() -> None:
    nothing = a_round(replace(SETTINGS, max_load_moved_per_cycle_percentage=0))
    assert nothing.plan.steps == ()
    assert ChurnReason.MOVED_ENOUGH_THIS_CYCLE in {verdict.verdict for verdict in nothing.plan.verdicts}
    assert nothing.state["ThresholdShedder"]["usage"].keys() == {"a:8080", "b:8080", "c:8080"}


def test_moves_that_are_remembered_count_until_they_are_too_old_to_matter() -> None:
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


def test_a_move_that_is_completed_while_strategies_decide_counts() -> None:
    limited = replace(SETTINGS, max_load_moved_per_hour_percentage=30)
    proposal = propose(hot_a(), limited, {}, np.random.default_rng(0))
    assert proposal.within_limits({}).plan.steps
    assert proposal.within_limits(moved(range(3))).plan.steps == ()


def test_a_round_changes_nothing_that_it_is_given_but_the_generator() -> None:
    state, moves, rng = used_before(a=0.5, b=0.05, c=0.05), moved(range(2)), np.random.default_rng(0)
    before = deepcopy((state, moves))
    first = shed(hot_a(), SETTINGS, state, moves, deepcopy(rng))
    assert (state, moves) == before
    second = shed(hot_a(), SETTINGS, state, moves, rng)
    assert second.plan.steps == first.plan.steps
    assert list(map(astuple, second.plan.verdicts)) == list(map(astuple, first.plan.verdicts))
    assert (second.state, second.churn_state) == (first.state, first.churn_state)


def test_a_strategy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownStrategyError):
        a_round(replace(SETTINGS, shedding_strategy="NoSuchShedder"))
