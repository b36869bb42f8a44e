"""The steps of drains, recorded and made again: the same, or the first that is not, by its name."""

from __future__ import annotations

from typing import Any

import pytest
from support.drains import MOVED, STALE, A, AnyOrder, B, DrainsHarness, away, drained, plan
from support.recorded_steps import RecordedInAnyOrder, Tape, difference, record, replayed

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.ownership import Ownership
from loadmanager.core.domain.plan import Figure, Plan, Verdict
from loadmanager.core.domain.reasons import OwnershipReason, PlacementReason
from loadmanager.core.protocol import drain_machine
from loadmanager.core.protocol.drain_machine import DrainPlanned, MoveEnded, TriedToEnd
from loadmanager.core.protocol.move_machine import CalledOff, Failed, Kept, Outcome
from loadmanager.core.protocol.state_machine import Signal
from loadmanager.lab.replay.record_comparison import Mismatch
from loadmanager.lab.replay.replayed_steps import ReplayedSteps
from loadmanager.wire.machines.drain_codec import DrainsForm


def recorded(tape: Tape, **values: Any) -> DrainsHarness:  # noqa: ANN401 - any field
    return record(tape, DrainsHarness, lambda leader: DrainsForm(leader.drains), **values)


@pytest.fixture
def tape() -> Tape:
    return Tape("drains")


class Again(RecordedInAnyOrder, AnyOrder):
    machine, recorded = "drains", staticmethod(recorded)


TestWhateverHappensIsTheSameAgain = Again.TestCase


def test_every_outcome_of_a_move_is_the_same_again(tape: Tape) -> None:
    leader = recorded(tape, at_a_time=3)
    leader.draining("t/1", "t/2", "t/3", "t/4", "t/5")
    kept = Kept(Ownership(), OwnershipReason.UNLOAD_FAILED, "503")
    outcomes: list[Outcome] = [MOVED, kept, CalledOff("cancelled"), Failed(RuntimeError("lost")), STALE]
    for number, outcome in enumerate(outcomes, 1):
        leader.step(MoveEnded(f"t/{number}", outcome))
    assert [body["event"] for body in tape.bodies[-5:]] == [
        ["MoveEnded", "t/1", ["Moved", []]],
        ["MoveEnded", "t/2", ["Kept", [], "unload_failed", "503"]],
        ["MoveEnded", "t/3", ["CalledOff", "cancelled"]],
        ["MoveEnded", "t/4", ["Failed", "lost"]],
        ["MoveEnded", "t/5", ["Failed", ["StaleStepError", "it is another"]]],
    ]
    leader.look()
    assert tape.bodies[-1]["do"] == [["GiveAway", ["a:1"], 6, ["t/2", "t/3", "t/4"]]]
    replayed(tape).compare(tape.machine_checkpoint())


def test_why_a_bundle_stays_is_the_same_again_with_figures_of_all_kinds(tape: Tape) -> None:
    leader = recorded(tape, owners={"t/1": A}, controls=drained(A))
    leader.look()
    why: dict[str, Figure] = {
        "average_percent": float("nan"),
        "brokers": 3,
        "pinned_to": "c:1",
        "pin_not_kept": "is full",
    }
    staying = Verdict("t/1", PlacementReason.NO_OTHER_BROKER, acted=False, why=why)
    leader.step(DrainPlanned(Plan(1, 0.0, (), (staying,))))
    drain = leader.drains.find(A.broker)
    assert drain is not None
    assert leader.drains.blocked(drain) == {"t/1": staying.sentence()}
    replayed(tape).compare(tape.machine_checkpoint())


def test_a_look_while_nothing_is_wished_or_a_decision_is_waited_for_leaves_nothing(tape: Tape) -> None:
    leader = recorded(tape)
    for _ in range(3):
        leader.look()
        tape.machine_checkpoint()
    assert not tape.bodies
    leader.controls = drained(A)
    leader.look()
    leader.look()
    assert [body["event"] for body in tape.bodies] == [["TIME"]]
    leader.controls = Controls()
    leader.step(DrainPlanned(plan()))
    leader.look()
    leader.look()
    assert [body["event"] for body in tape.bodies] == [["TIME"], ["DrainPlanned", [[], []]], ["TIME"]]
    assert "wakeS" not in tape.bodies[-1], "the drain is over"
    replayed(tape).compare(tape.machine_checkpoint())


def test_of_many_looks_at_which_nothing_is_new_the_first_and_the_last_are_written(tape: Tape) -> None:
    leader = recorded(tape, controls=Controls(pinned={"t/1": A.broker}), owners={"t/1": A})
    for _ in range(5):
        leader.look()
    assert [body["atS"] for body in tape.bodies] == [101.0]
    checkpoint = tape.machine_checkpoint()
    assert [body["atS"] for body in tape.bodies] == [101.0, 105.0]
    replayed(tape).compare(checkpoint)
    for _ in range(3):
        leader.look()
    leader.owners["t/1"] = B
    leader.look()
    assert [body["atS"] for body in tape.bodies[2:]] == [106.0, 108.0, 109.0]
    assert tape.bodies[-1]["do"] == [["BringHome", 4, []]]
    replayed(tape).compare(tape.machine_checkpoint())


def test_another_rest_is_named_where_it_is_over(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = recorded(tape)
    leader.draining("t/1")
    leader.step(MoveEnded("t/1", CalledOff("cancelled")))
    leader.look()
    monkeypatch.setattr(drain_machine, "REST_S", 0.5)
    recorded_then, now = ["GiveAway", ["a:1"], 4, ["t/1"]], ["GiveAway", ["a:1"], 4, []]
    assert difference(tape) == ("a:1", "drains.TIME: to do", recorded_then, now)


def test_a_bundle_that_would_go_elsewhere_is_named(tape: Tape) -> None:
    leader = recorded(tape)
    leader.draining("t/1")
    tape.bodies[-1]["event"][1][0][0][2] = ["b:1", 2]
    then, now = (["BeginMove", ["t/1", ["a:1", 1], broker, "drain"]] for broker in (["c:1", 3], ["b:1", 2]))
    assert difference(tape) == ("t/1", "drains.DrainPlanned: to do", then, now)


def test_a_drain_that_is_not_as_in_the_checkpoint_is_named_by_its_broker_and_field(tape: Tape) -> None:
    leader = recorded(tape)
    leader.draining("t/1")
    leader.step(MoveEnded("t/1", MOVED))
    first, *others = tape.machine_checkpoint()
    again = replayed(tape)
    with pytest.raises(Mismatch) as found:
        again.compare([{**first, "moved": 2}, *others])
    mismatch = found.value
    assert (mismatch.subject, mismatch.field, mismatch.recorded, mismatch.replayed) == ("a:1", "drains.moved", 2, 1)


def test_what_a_checkpoint_finds_goes_on_from_there(tape: Tape) -> None:
    leader = recorded(tape)
    leader.draining("t/1", broker=B)
    leader.controls = drained(A, B)
    leader.processes[B.broker] += 1
    leader.look()
    leader.step(DrainPlanned(plan(away("t/2"))))
    checkpoint, first = tape.machine_checkpoint(), len(tape.bodies)
    assert {"broker": "b:1", "isEnding": True} in checkpoint
    leader.controls = drained(A)
    leader.step(TriedToEnd(B.broker))
    leader.look()
    leader.step(MoveEnded("t/1", MOVED))
    again = ReplayedSteps("drains", checkpoint)
    for body in tape.bodies[first:]:
        again.step(body)
    again.compare(tape.machine_checkpoint())


def test_an_event_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not known: \['MEMBERSHIP'\]"):
        ReplayedSteps("drains", []).step({"atS": 1.0, "event": [Signal.MEMBERSHIP.name]})
