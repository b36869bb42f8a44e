from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.moves import LOST, STAMP, A, B, C, MovesHarness, Whatever
from support.recorded_steps import Tape, difference, record, replayed

from loadmanager.core.domain.ownership import release
from loadmanager.core.protocol import move_machine
from loadmanager.core.protocol.move_machine import Cancel, Move, OwnerAnswered, Resume, Unanswered
from loadmanager.core.protocol.state_machine import Signal
from loadmanager.lab.replay.record_comparison import Mismatch
from loadmanager.lab.replay.replayed_steps import ReplayedSteps
from loadmanager.wire.machines.move_codec import MovesForm


def recorded(tape: Tape, **values: Any) -> MovesHarness:  # noqa: ANN401 - any field
    return record(tape, MovesHarness, lambda leader: MovesForm(leader.moves), **values)


@given(st.data())
def test_whatever_happens_is_the_same_again_and_from_a_checkpoint_in_its_midst_too(data: st.DataObject) -> None:
    tape = Tape("moves")
    preparing = data.draw(st.sets(st.sampled_from([B, C])))
    leader = recorded(tape, limits=data.draw(st.tuples(st.integers(1, 3), st.integers(1, 2))), preparing=preparing)
    whatever = Whatever(leader, data)
    for _ in range(data.draw(st.integers(0, 20))):
        whatever.happens()
    checkpoint, already = tape.machine_checkpoint(), len(tape.bodies)
    again = replayed(tape)
    again.compare(checkpoint)
    begun_here = ReplayedSteps("moves", checkpoint)
    for _ in range(data.draw(st.integers(0, 20))):
        leader.limits = (data.draw(st.integers(1, 3)), 2)
        whatever.happens()
    whatever.ends()
    for body in tape.bodies[already:]:
        again.step(body)
        begun_here.step(body)
    assert not tape.machine_checkpoint()
    begun_here.compare([])


def test_a_release_that_was_found_and_a_write_of_which_nobody_knows_are_the_same_again() -> None:
    tape = Tape("moves")
    leader = recorded(tape)
    leader.owned("t/ns/1")
    found = Move("t/ns/1", A, C, "admin_unload", released=release(leader.records["t/ns/1"], C, STAMP))
    leader.step(Resume(found))
    leader.step(OwnerAnswered(found, None))
    leader.step(Unanswered(found, None, LOST))
    leader.step(Cancel(found))
    bodies = [(body["event"][0], body.get("do", [])) for body in tape.bodies]
    assert bodies == [
        ("Resume", [["AskOwner", 1, 5.0]]),
        ("OwnerAnswered", [["Commit", 1, "Owned", [C.broker, C.incarnation], "a test"]]),
        ("Unanswered", [["Ended", 1, ["Failed", "no answer"]]]),
        ("Cancel", []),
    ]
    assert tape.bodies[-1]["event"] == ["Cancel", None], "nothing is said of a move that is over"
    replayed(tape).compare(tape.machine_checkpoint())


def test_an_owner_that_refused_for_good_does_so_again() -> None:
    tape = Tape("moves")
    leader = recorded(tape)
    move = leader.asked()
    leader.step(OwnerAnswered(move, "it went to c:1", is_final=True))
    assert tape.bodies[-1]["event"] == ["OwnerAnswered", 1, "it went to c:1", True]
    leader.commit()
    assert tape.bodies[-1]["do"] == [
        ["Ended", 1, ["Kept", ["Owned", "a:1", 1, None, None, 3, 7, 1000, "a test"], "unload_failed", "it went to c:1"]]
    ]
    replayed(tape).compare(tape.machine_checkpoint())


def refused(tape: Tape) -> MovesHarness:
    """An owner refuses once, and is asked again after the first pause; meanwhile another move is wanted."""
    leader = recorded(tape)
    move = leader.asked("t/ns/first")
    leader.step(OwnerAnswered(move, "busy"))
    leader.want("t/ns/second")
    assert leader.moves.wake_s is not None
    leader.now_s = leader.moves.wake_s
    leader.step(Signal.TIME)
    return leader


def test_another_pause_is_named_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = Tape("moves")
    refused(tape)
    replayed(tape)
    monkeypatch.setattr(move_machine, "_FIRST_PAUSE_S", 0.2)
    assert difference(tape) == ("t/ns/first", "moves.OwnerAnswered: to be woken at", 100.1, 100.2)


def test_what_was_to_be_done_and_is_not_any_more_is_named_by_its_move(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = Tape("moves")
    leader = recorded(tape)
    leader.step(Cancel(leader.asked("t/ns/b")))
    monkeypatch.setattr(move_machine.MoveMachine, "_cancel", lambda *_: None)
    assert difference(tape) == ("t/ns/b", "moves.Cancel: to do", ["StopAsking", 1], None)


def test_what_is_to_be_done_only_now_is_named_too() -> None:
    tape = Tape("moves")
    leader = recorded(tape, limits=(1, 1))
    leader.want("t/ns/first")
    leader.want("t/ns/second")
    tape.bodies[1]["asked"] = {"limits": [9, 9]}
    commit = ["Commit", 2, "Releasing", [B.broker, B.incarnation], "admin_unload"]
    assert difference(tape) == ("t/ns/second", "moves.Want: to do", None, commit)


def test_a_machine_that_asks_what_was_not_answered_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = Tape("moves")
    leader = recorded(tape)
    leader.want("t/ns/b")

    def look(machine: move_machine.MoveMachine) -> None:
        machine.is_registered(C)

    leader.step(Signal.MEMBERSHIP)
    monkeypatch.setattr(move_machine.MoveMachine, "_look", look)
    assert difference(tape) == ("", "moves.MEMBERSHIP: asked", None, "is_registered c:1 (incarnation 3)")


def test_an_answer_is_recorded_when_it_is_another_one_and_after_each_checkpoint() -> None:
    tape = Tape("moves")
    leader = recorded(tape)
    asked = leader.asked()
    tape.bodies.clear()
    leader.step(Signal.MEMBERSHIP)
    assert tape.bodies == [{"atS": 100.0, "event": ["MEMBERSHIP"]}]
    leader.limits = (3, 2)
    leader.step(Signal.MEMBERSHIP)
    assert tape.bodies[1]["asked"] == {"limits": [3, 2]}
    tape.machine_checkpoint()
    leader.step(Signal.MEMBERSHIP)
    assert tape.bodies[2]["asked"] == {"limits": [3, 2], "is_registered a:1 (incarnation 1)": True}
    leader.registered.discard(A)
    leader.step(OwnerAnswered(asked, "no connection"))
    assert tape.bodies[3]["asked"] == {
        "is_registered a:1 (incarnation 1)": False,
        "is_registered b:1 (incarnation 2)": True,
    }


def test_a_move_that_is_not_as_in_the_checkpoint_is_named_by_its_field() -> None:
    tape = Tape("moves")
    refused(tape)
    (first, second), again = tape.machine_checkpoint(), replayed(tape)
    again.compare([first, second])
    for checkpoint, expected in (
        ([{**first, "refusals": 2}, second], ("t/ns/first", "moves.refusals", 2, 1)),
        ([first], ("t/ns/second", "moves.move", None, 2)),
    ):
        with pytest.raises(Mismatch) as found:
            again.compare(checkpoint)
        assert (found.value.subject, found.value.field, found.value.recorded, found.value.replayed) == expected


def test_an_event_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not known: \['Dance', 1\]"):
        ReplayedSteps("moves", []).step({"atS": 1.0, "event": ["Dance", 1]})


def test_no_answer_of_an_owner_keeps_a_move_from_being_carried_out() -> None:
    tape = Tape("moves")
    leader = recorded(tape)
    leader.step(OwnerAnswered(leader.asked(), "half a character: \udcff"))
    assert tape.bodies[-1]["event"] == ["OwnerAnswered", 1, "half a character: \udcff"]


def test_a_node_that_does_not_record_keeps_nothing() -> None:
    tape = Tape("moves", is_recording=False)
    leader = recorded(tape)
    leader.step(Cancel(leader.asked()))
    assert not tape.bodies
    tape._is_recording = True
    leader.step(Signal.MEMBERSHIP)
    assert tape.bodies == [{"atS": 100.0, "event": ["MEMBERSHIP"], "asked": {"limits": [16, 8]}}]
