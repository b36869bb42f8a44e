from __future__ import annotations

import hashlib
from dataclasses import replace

import orjson
import pytest
from support.plans import FROZEN, OWNED, AnyOrder, B, PlansHarness, plan, states, step

from loadmanager.core.protocol.move_machine import WithdrawMove
from loadmanager.core.protocol.plan_machine import BeginStep, End, Execute, PlanEnded, StepEnded


@pytest.fixture
def leader() -> PlansHarness:
    return PlansHarness()


def test_steps_run_in_order_and_a_limited_number_at_once(leader: PlansHarness) -> None:
    kept = plan()
    first, second = leader.execute(kept)
    assert [first.step, second.step] == list(kept.steps[:2])
    assert states(kept) == ["in_progress", "in_progress", "planned"]
    assert leader.step(Execute(kept, even_if_frozen=False)) == [], "once at a time"
    (third,) = leader.end(first)
    assert isinstance(third, BeginStep)
    assert leader.end(second) == []
    assert (kept.state, kept.done) == ("executing", 2)
    assert leader.end(third) == [PlanEnded(kept)]
    assert (kept.state, kept.done, kept.stopped_by) == ("executed", 3, None)
    assert leader.compared == {kept}


def test_kept_plan_has_not_begun() -> None:
    kept = plan()
    assert (kept.state, kept.stopped_by, kept.even_if_frozen) == ("computed", None, False)
    assert (kept.begun, kept.in_progress, kept.done) == (0, 0, 0)
    assert (states(kept), [each.had_its_turn for each in kept.steps]) == (["planned"] * 3, [False] * 3)


def test_empty_plan_ends_at_once(leader: PlansHarness) -> None:
    kept = plan(0)
    assert leader.step(Execute(kept, even_if_frozen=False)) == [PlanEnded(kept)]
    assert kept.state == "executed"


@pytest.mark.parametrize("is_frozen", [True, False])
def test_plan_with_an_obstacle_does_not_begin(leader: PlansHarness, is_frozen: bool) -> None:  # noqa: FBT001 - a case
    kept = plan()
    leader.frozen = "night" if is_frozen else ""
    leader.drifts = {} if is_frozen else {"t/2": "its owner is gone"}
    assert leader.step(Execute(kept, even_if_frozen=False)) == [PlanEnded(kept)]
    assert kept.state == "stopped"
    assert kept.stopped_by == f"nothing was done: {FROZEN if is_frozen else 't/2: its owner is gone'}"
    assert states(kept) == ["planned"] * 3
    leader.frozen, leader.drifts = "", {}
    assert len(leader.execute(kept)) == 2
    assert kept.stopped_by is None


def test_stale_step_stops_the_plan(leader: PlansHarness) -> None:
    kept = plan(4)
    first, second = leader.execute(kept)
    leader.drifts = {"t/2": "its destination is gone"}
    assert leader.end(first) == [WithdrawMove("t/1")]
    assert (kept.state, states(kept)) == ("executing", ["done", "in_progress", "not_begun", "not_begun"])
    assert (kept.steps[2].error, kept.steps[3].error) == ("its destination is gone", None)
    assert leader.refuse(second) == [PlanEnded(kept)]
    assert (kept.state, kept.stopped_by) == ("stopped", "stopped at t/2: its destination is gone")


@pytest.mark.parametrize(
    ("end", "had_its_turn", "version", "state"),
    [
        ("kept", True, 3, "failed"),
        ("kept", False, 1, "not_begun"),
        ("lost", True, 1, "unknown"),
        ("lost", False, 1, "unknown"),
        ("refused", True, 1, "not_begun"),
        ("refused", True, 2, "unknown"),
        ("refused", False, 2, "not_begun"),
    ],
)
def test_failed_step(leader: PlansHarness, end: End, *, had_its_turn: bool, version: int, state: str) -> None:
    leader.at_a_time = 1
    kept = plan()
    (begun,) = leader.execute(kept)
    leader.versions = {"t/0": version}
    if had_its_turn:
        begun.check(OWNED)
    assert leader.step(StepEnded(kept, begun.step, end, "so it was")) == [PlanEnded(kept)]
    assert (kept.state, kept.stopped_by) == ("stopped", "stopped at t/0: so it was")
    assert (states(kept), kept.steps[0].error) == ([state, "not_begun", "not_begun"], "so it was")


def test_queued_steps_are_withdrawn_when_the_plan_stops(leader: PlansHarness) -> None:
    kept = plan()
    first, second = leader.execute(kept)
    assert leader.end(first, "kept", "503") == [WithdrawMove("t/1")]
    assert leader.refuse(second) == [PlanEnded(kept)]
    assert kept.steps[1].error == kept.stopped_by == "stopped at t/0: 503"


def test_step_is_refused_when_its_bundle_has_changed(leader: PlansHarness) -> None:
    leader.at_a_time = 1
    kept = plan()
    (begun,) = leader.execute(kept)
    assert leader.refuse(begun, OWNED._replace(version=3)) == [PlanEnded(kept)]
    assert (states(kept)[0], kept.steps[0].error) == ("not_begun", "it is at version 3, and not at 1")


def test_freeze_refuses_queued_steps_unless_overridden(leader: PlansHarness) -> None:
    kept, insisted = plan(1), plan(1, "drain")
    (begun,) = leader.execute(kept)
    leader.frozen = "night"
    assert leader.refuse(begun) == [PlanEnded(kept)]
    assert kept.steps[0].error == FROZEN
    (begun,) = leader.execute(insisted, even_if_frozen=True)
    assert leader.end(begun) == [PlanEnded(insisted)]
    assert leader.step(Execute(kept, even_if_frozen=False)) == [PlanEnded(kept)], "the override was for one plan"


def test_new_execution_clears_the_errors_of_the_last_one(leader: PlansHarness) -> None:
    leader.at_a_time = 1
    kept = plan(2)
    (begun,) = leader.execute(kept)
    leader.end(begun, "kept", "cancelled")
    (begun,) = leader.execute(kept)
    assert (states(kept), kept.steps[0].error, kept.stopped_by) == (["in_progress", "planned"], None, None)
    assert leader.step(StepEnded(kept, begun.step, "kept", "cancelled")) == [PlanEnded(kept)]
    assert states(kept) == ["not_begun", "not_begun"], "it had not begun this time"


def test_latest_and_running_plans_are_kept(leader: PlansHarness) -> None:
    leader.plans.most_kept = 2
    plans = [plan(steps) for steps in (1, 2, 3, 4)]
    for kept in plans[:3]:
        assert leader.plans.keep(kept) is kept
    assert [leader.plans.find(kept.hash) for kept in plans[:3]] == [None, plans[1], plans[2]]
    leader.execute(plans[1])
    assert plans[1].state == "executing"
    leader.plans.keep(plans[3])
    assert [leader.plans.find(kept.hash) for kept in plans] == [None, plans[1], None, plans[3]]
    assert leader.plans.kept == [plans[3], plans[1]], "the newest first"


def test_new_plan_is_kept_beside_any_number_of_running_ones(leader: PlansHarness) -> None:
    leader.plans.most_kept = 1
    executed, new, newer = plan(1), plan(2), plan(3)
    leader.plans.keep(executed)
    leader.execute(executed)
    for each in (new, newer):
        assert leader.plans.find(leader.plans.keep(each).hash) is each, "whoever had it made has its hash"
    assert leader.plans.find(new.hash) is None


def test_equal_plan_replaces_an_older_one_that_is_not_running(leader: PlansHarness) -> None:
    leader.plans.most_kept = 2
    first, again, other = plan(1), plan(1), plan(2)
    leader.plans.keep(first)
    leader.plans.keep(other)
    assert leader.plans.keep(again) is again
    leader.plans.keep(plan(3))
    assert leader.plans.find(other.hash) is None, "the oldest by now"
    leader.execute(again)
    assert leader.plans.keep(plan(1)) is again


def test_hash_covers_all_inputs_of_a_step_and_is_stable() -> None:
    steps = [{"bundle": f"t/{n}", "version": 1, "source": ["a:1", 1], "destination": ["b:1", 2]} for n in range(3)]
    content = orjson.dumps({"kind": "moves", "steps": steps}, option=orjson.OPT_SORT_KEYS)
    assert plan().hash == hashlib.sha256(content).hexdigest()
    other_life = replace(plan(1), steps=(step(0, destination=B._replace(incarnation=9)),))
    west = orjson.dumps({"cluster": "west", "kind": "moves", "steps": steps}, option=orjson.OPT_SORT_KEYS)
    assert replace(plan(), cluster="west").hash == hashlib.sha256(west).hexdigest()
    assert len({plan(1).hash, plan(2).hash, plan(1, "drain").hash, plan(1, version=2).hash, other_life.hash}) == 5


TestAnyOrder = AnyOrder.TestCase
