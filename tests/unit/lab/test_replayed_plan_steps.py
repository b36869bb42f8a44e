"""The steps of plans, recorded and made again: the same, or the first that is not, by its name."""

from __future__ import annotations

from typing import Any

import pytest
from support.plans import OWNED, AnyOrder, PlansHarness, plan
from support.recorded_steps import RecordedInAnyOrder, Tape, difference, record, replayed

from loadmanager.core.protocol import plan_machine
from loadmanager.core.protocol.plan_machine import Execute, StepEnded
from loadmanager.lab.replay.record_comparison import Mismatch
from loadmanager.lab.replay.replayed_steps import ReplayedSteps
from loadmanager.wire.machines.plan_codec import PlansForm


def recorded(tape: Tape, **values: Any) -> PlansHarness:  # noqa: ANN401 - any field
    return record(tape, PlansHarness, lambda leader: PlansForm(leader.plans), **values)


@pytest.fixture
def tape() -> Tape:
    return Tape("plans")


class Again(RecordedInAnyOrder, AnyOrder):
    machine, recorded = "plans", staticmethod(recorded)


TestWhateverHappensIsTheSameAgain = Again.TestCase


def test_a_plan_is_recorded_with_all_that_its_execution_goes_by(tape: Tape) -> None:
    leader = recorded(tape, at_a_time=1)
    kept = leader.plans.keep(plan(2))
    (first,) = leader.execute(kept)
    leader.end(first)
    leader.step(StepEnded(kept, kept.steps[1], "kept", "503"))
    executed, moved, ended = tape.bodies
    assert executed["event"][:3] == ["Execute", kept.hash, False]
    assert executed["event"][3]["steps"][0] == ["t/0", 1, ["a:1", 1], ["b:1", 2], "plan_executed"]
    assert executed["asked"] == {
        "frozen": "",
        f"find_drift {kept.hash} t/0": None,
        f"find_drift {kept.hash} t/1": None,
        "at_a_time": 1,
    }
    assert executed["do"] == [["BeginStep", "t/0", kept.hash, 0]]
    assert moved["event"] == ["StepEnded", "t/0", kept.hash, 0, "moved", "", True]
    assert moved["do"] == [["BeginStep", "t/1", kept.hash, 1]]
    assert ended["event"] == ["StepEnded", "t/1", kept.hash, 1, "kept", "503", False]
    stopped = "stopped at t/1: 503"
    assert ended["do"] == [["PlanEnded", kept.hash, "stopped", stopped, ["done", "not_begun"]]]
    replayed(tape).compare([])


def test_a_step_that_would_be_another_today_is_named(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = recorded(tape)
    first, _ = leader.execute(leader.plans.keep(plan(3)))
    leader.end(first, "kept", "503")
    monkeypatch.setattr(plan_machine.PlanMachine, "_stop", lambda *_: None)
    then = ["WithdrawStep", "t/1"]
    assert difference(tape) == ("t/1", "plans.StepEnded: to do", then, ["BeginStep", "t/2", first.plan.hash, 2])


def test_a_plan_that_is_not_as_in_the_checkpoint_is_named_by_its_hash_and_field(tape: Tape) -> None:
    leader = recorded(tape)
    first, _ = leader.execute(leader.plans.keep(plan(3)))
    (checkpoint,) = tape.machine_checkpoint()
    again = replayed(tape)
    again.compare([checkpoint])
    with pytest.raises(Mismatch) as found:
        again.compare([{**checkpoint, "begun": 3}])
    mismatch = found.value
    assert (mismatch.subject, mismatch.field, mismatch.recorded, mismatch.replayed) == (
        first.plan.hash,
        "plans.begun",
        3,
        2,
    )


def test_plans_under_way_go_on_from_a_checkpoint_also_when_their_turn_has_come_before(tape: Tape) -> None:
    leader = recorded(tape)
    leader.plans.most_kept = 1
    first, other = leader.plans.keep(plan(2)), leader.plans.keep(plan(3, "drain"))
    assert leader.plans.find(first.hash) is None
    begun = leader.execute(other)
    begun[0].check(OWNED)
    checkpoint, already = tape.machine_checkpoint(), len(tape.bodies)
    leader.versions = {"t/0": 2}
    leader.step(StepEnded(other, begun[0].step, "refused", "no answer"))
    leader.step(Execute(other, even_if_frozen=False))
    leader.refuse(begun[1])
    assert [step.state for step in other.steps] == ["unknown", "not_begun", "not_begun"]
    again = ReplayedSteps("plans", checkpoint)
    for body in tape.bodies[already:]:
        again.step(body)
    again.compare([])


def test_what_is_unknown_is_refused() -> None:
    for event, error in (
        (["Dance", 1], r"not known: \['Dance', 1\]"),
        (["StepEnded", "b", "f", 0, "", "", 1], "f was"),
    ):
        with pytest.raises(ValueError, match=error):
            ReplayedSteps("plans", []).step({"atS": 1.0, "event": event})
