from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.moves import DEADLINE_S, LOST, PREPARE_S, STAMP, A, B, C, MovesHarness, Whatever

from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    assign,
    release,
)
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.protocol.move_machine import (
    AskOwner,
    Cancel,
    Cancelled,
    CancelWaiting,
    Commit,
    Committed,
    Ended,
    Expected,
    Failed,
    Kept,
    Move,
    Moved,
    NotCommitted,
    OwnerAnswered,
    Phase,
    Prepare,
    Prepared,
    Resume,
    StaleStepError,
    StopAsking,
    Unanswered,
    Want,
)
from loadmanager.core.protocol.state_machine import Signal


@pytest.fixture
def leader() -> MovesHarness:
    return MovesHarness()


def test_move_is_released_asked_for_and_completed(leader: MovesHarness) -> None:
    move = leader.want("t/ns/b")
    assert leader.commit() == AskOwner(move, DEADLINE_S)
    assert leader.records["t/ns/b"].state is OwnershipState.RELEASING
    assert (leader.moves.find("t/ns/b", 2), leader.moves.known) == (move, [move])
    leader.to_do.clear()
    leader.step(OwnerAnswered(move, None))
    leader.commit()
    outcome = leader.ended()
    assert isinstance(outcome, Moved)
    assert (outcome.done.state, outcome.done.owner) == (OwnershipState.OWNED, B)
    assert (leader.moves.find("t/ns/b", 2), leader.moves.known, leader.moves.wake_s) == (None, [], None)


def prepared(leader: MovesHarness) -> Move:
    """A move whose destination is preparing, with no other action pending."""
    leader.preparing = {B}
    move = leader.want("t/ns/b")
    assert leader.take() == Prepare(move, PREPARE_S)
    return move


def test_a_destination_prepares_before_anything_is_released(leader: MovesHarness) -> None:
    move = prepared(leader)
    assert (move.phase, leader.moves.is_waiting("t/ns/b"), leader.moves.known) == (Phase.PREPARING, True, [move])
    assert not leader.step(Signal.TIME)
    leader.step(Prepared(move))
    assert leader.commit() == AskOwner(move, DEADLINE_S)
    assert not leader.moves.is_waiting("t/ns/b")
    leader.to_do.clear()
    assert not leader.step(Prepared(move)), "it is said once"


def test_only_a_registered_preparing_destination_is_waited_for(leader: MovesHarness) -> None:
    leader.preparing = {B}
    for bundle, destination in (("t/ns/1", C), ("t/ns/2", None), ("t/ns/3", Registration(B.broker, 99))):
        leader.want(bundle, destination)
        assert isinstance(leader.take(), Commit)


def test_move_cancelled_during_preparation_releases_nothing(leader: MovesHarness) -> None:
    leader.limits = (1, 1)
    move = prepared(leader)
    leader.want("t/ns/2", C)
    assert not leader.to_do, "the only slot is taken"
    stop, ended, begun = leader.step(CancelWaiting(lambda each: each is move, "another plan"))
    assert (stop, ended) == (StopAsking(move), Ended(move, Cancelled("another plan")))
    assert isinstance(begun, Commit), "the next one begins"
    assert leader.records["t/ns/b"].state is OwnershipState.OWNED
    assert not leader.step(Prepared(move)), "nobody waits for it any more"


@pytest.mark.parametrize("gone", [A, B])
def test_no_preparation_for_or_from_a_lost_broker(leader: MovesHarness, gone: Registration) -> None:
    move = prepared(leader)
    leader.registered.discard(C)
    assert not leader.step(Signal.MEMBERSHIP), "somebody else has gone"
    leader.registered.discard(gone)
    stop, commit = leader.step(Signal.MEMBERSHIP)
    assert stop == StopAsking(move)
    assert isinstance(commit, Commit), "what is true is looked at as it is written"


def test_move_without_a_destination_frees_the_bundle(leader: MovesHarness) -> None:
    move = leader.want("t/ns/b", None)
    assert leader.commit() == AskOwner(move, DEADLINE_S)
    leader.to_do.clear()
    leader.step(OwnerAnswered(move, None))
    leader.commit()
    outcome = leader.ended()
    assert isinstance(outcome, Moved)
    assert outcome.done.state is OwnershipState.FREE


def test_each_write_has_its_reason(leader: MovesHarness) -> None:
    def why() -> str:
        (commit,) = leader.to_do
        assert isinstance(commit, Commit)
        return commit.reason

    move = leader.want("t/ns/b")
    assert why() == "admin_unload"
    leader.commit()
    leader.to_do.clear()
    move.released = leader.records["t/ns/b"] = move.get_released()._replace(reason="as it was released")
    leader.step(OwnerAnswered(move, None))
    assert why() == "as it was released"
    leader.to_do.clear()
    move = leader.asked("t/ns/2")
    leader.step(OwnerAnswered(move, "no"))
    leader.step(Cancel(move))
    assert why() == OwnershipReason.UNLOAD_CANCELLED.value


def test_move_that_has_not_begun_has_no_release(leader: MovesHarness) -> None:
    with pytest.raises(AssertionError):
        leader.want("t/ns/b").get_released()


def test_queued_move_does_nothing_and_can_be_cancelled(leader: MovesHarness) -> None:
    leader.limits = (1, 1)
    first, second = leader.want("t/ns/1"), leader.want("t/ns/2")
    third = leader.want("t/ns/3")
    assert [type(each) for each in leader.to_do] == [Commit]
    assert [leader.moves.is_waiting(f"t/ns/{each}") for each in (1, 2, 3)] == [False, True, True]
    leader.to_do.clear()
    leader.step(CancelWaiting(lambda move: move is second, "the plan is out of date"))
    assert leader.ended() == Cancelled("the plan is out of date")
    assert not leader.step(CancelWaiting(lambda move: move is first, "too late")), "it has begun"
    leader.step(NotCommitted(first, IllegalTransitionError("it has moved on")))
    ended, begun = leader.to_do
    assert isinstance(ended, Ended)
    assert isinstance(begun, Commit)
    assert begun.move is third, "the next one begins"


def test_release_that_matches_its_plan_is_written(leader: MovesHarness) -> None:
    move = leader.want("t/ns/b", check=Expected(A, 1).check)
    assert leader.commit() == AskOwner(move, DEADLINE_S)


def test_stale_release_is_not_written(leader: MovesHarness) -> None:
    def refuse(current: Ownership) -> None:
        raise IllegalTransitionError(f"not so: {current}")

    leader.want("t/ns/b", check=refuse)
    leader.commit()
    outcome = leader.ended()
    assert isinstance(outcome, Failed)
    assert "not so" in str(outcome.error)


@pytest.mark.parametrize(("destination", "why"), [(A, "belongs to a:1"), (Registration(C.broker, 99), "left while")])
def test_no_release_for_the_owner_or_a_lost_one(leader: MovesHarness, destination: Registration, why: str) -> None:
    leader.want("t/ns/b", destination)
    leader.commit()
    outcome = leader.ended()
    assert isinstance(outcome, Failed)
    assert why in str(outcome.error)
    assert leader.records["t/ns/b"].state is OwnershipState.OWNED


def test_owner_lost_at_the_release_is_not_asked(leader: MovesHarness) -> None:
    leader.want("t/ns/b")
    leader.registered.discard(A)
    assert isinstance(leader.commit(), Commit)
    leader.commit()
    assert isinstance(leader.ended(), Moved)


def test_lost_destination_gets_nothing(leader: MovesHarness) -> None:
    move = leader.asked()
    leader.registered.discard(B)
    leader.step(OwnerAnswered(move, None))
    leader.commit()
    outcome = leader.ended()
    assert isinstance(outcome, Moved)
    assert outcome.done.state is OwnershipState.FREE


def test_refusing_owner_is_retried_with_back_off_until_the_deadline(leader: MovesHarness) -> None:
    move = leader.asked()
    pauses: list[float] = []
    while True:
        leader.step(OwnerAnswered(move, "not now"))
        if leader.to_do:
            break
        wake_s = leader.moves.wake_s
        assert wake_s is not None
        leader.now_s = wake_s - 0.01
        assert not leader.step(Signal.TIME), "not yet"
        pauses.append(wake_s - ((pauses and sum(pauses) + 100.0) or 100.0))
        leader.now_s = wake_s
        (ask,) = leader.step(Signal.TIME)
        assert isinstance(ask, AskOwner)
        assert ask.timeout_s == pytest.approx(100.0 + DEADLINE_S - leader.now_s)
        leader.to_do.clear()
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])
    leader.commit()
    outcome = leader.ended()
    assert isinstance(outcome, Kept)
    assert (outcome.reason, outcome.refusal) == (OwnershipReason.UNLOAD_FAILED, "not now")
    assert (outcome.kept.owner, outcome.kept.version) == (A, 3)


def test_a_pause_grows_no_longer_than_two_seconds(leader: MovesHarness) -> None:
    leader.moves.deadline_s = lambda: 60.0
    move = leader.asked()
    for _ in range(6):
        leader.step(OwnerAnswered(move, "not now"))
        leader.now_s = move.wake_s
        leader.step(Signal.TIME)
    leader.step(OwnerAnswered(move, "not now"))
    assert move.wake_s - leader.now_s == pytest.approx(2.0)


def test_a_pause_may_last_until_the_deadline(leader: MovesHarness) -> None:
    move = leader.asked()
    leader.now_s += DEADLINE_S - 0.1
    assert leader.step(OwnerAnswered(move, "not now")) == []
    assert leader.moves.wake_s == move.deadline_s


def test_earliest_retry_is_the_wake_time(leader: MovesHarness) -> None:
    first, second = leader.asked("t/ns/1"), leader.asked("t/ns/2")
    leader.step(OwnerAnswered(first, "not now"))
    leader.now_s += 0.05
    leader.step(OwnerAnswered(second, "not now"))
    assert leader.moves.wake_s == first.wake_s
    leader.now_s = first.wake_s
    assert [each.move for each in leader.step(Signal.TIME)] == [first]
    assert leader.moves.wake_s == second.wake_s, "the second retry"


def test_lost_owner_that_refused_counts_as_released(leader: MovesHarness) -> None:
    move = leader.asked()
    leader.registered.discard(A)
    leader.step(OwnerAnswered(move, "no connection"))
    assert isinstance(leader.to_do[0], Commit)
    leader.commit()
    assert isinstance(leader.ended(), Moved)


@pytest.mark.parametrize("is_gone", [False, True])
def test_final_refusal_is_not_retried(leader: MovesHarness, is_gone: bool) -> None:  # noqa: FBT001 - a case
    move = leader.asked()
    if is_gone:
        leader.registered.discard(A)
    (keep,) = leader.step(OwnerAnswered(move, "not here", is_final=True))
    assert isinstance(keep, Commit)
    assert (move.phase, leader.moves.wake_s) == (Phase.KEEPING, None)
    assert keep.reason == OwnershipReason.UNLOAD_FAILED.value
    leader.to_do.clear()
    stored = Ownership(OwnershipState.OWNED, A, None, 3)
    leader.step(Committed(move, stored))
    assert leader.ended() == Kept(stored, OwnershipReason.UNLOAD_FAILED, "not here")


@pytest.mark.parametrize("owner", [B, C])
def test_bundle_that_left_its_owner_has_moved_whatever_was_to_be_written(
    leader: MovesHarness, owner: Registration
) -> None:
    move = leader.asked()
    leader.step(OwnerAnswered(move, "no answer", is_final=True))
    leader.to_do.clear()
    stored = Ownership(OwnershipState.OWNED, owner, None, 3)
    leader.step(Committed(move, stored))
    assert leader.ended() == Moved(stored)


def test_final_answer_without_a_refusal_completes_the_move(leader: MovesHarness) -> None:
    move = leader.asked()
    leader.step(OwnerAnswered(move, None, is_final=True))
    leader.commit()
    assert isinstance(leader.ended(), Moved)


@pytest.mark.parametrize("is_paused", [False, True])
def test_lost_owner_is_not_waited_for(leader: MovesHarness, is_paused: bool) -> None:  # noqa: FBT001 - a case
    move = leader.asked()
    if is_paused:
        leader.step(OwnerAnswered(move, "not now"))
    assert not leader.step(Signal.MEMBERSHIP), "nobody has gone"
    leader.registered.discard(A)
    *stopped, commit = leader.step(Signal.MEMBERSHIP)
    assert stopped == ([] if is_paused else [StopAsking(move)])
    assert isinstance(commit, Commit)
    assert not leader.step(OwnerAnswered(move, "too late")), "nobody listens any more"
    assert not leader.step(Signal.MEMBERSHIP), "it is completed already"


def test_lost_owner_is_found_behind_a_move_that_does_not_wait(leader: MovesHarness) -> None:
    first, second = leader.asked("t/ns/1"), leader.asked("t/ns/2")
    leader.step(OwnerAnswered(first, None))
    leader.registered.discard(A)
    assert [each.move for each in leader.step(Signal.MEMBERSHIP)] == [second, second]


@pytest.mark.parametrize("is_paused", [False, True])
def test_cancelled_move_keeps_the_bundle_at_its_owner(leader: MovesHarness, is_paused: bool) -> None:  # noqa: FBT001 - a case
    move = leader.asked()
    if is_paused:
        leader.step(OwnerAnswered(move, "not now"))
    told = leader.step(Cancel(move))
    assert [type(each) for each in told] == ([Commit] if is_paused else [StopAsking, Commit])
    assert not leader.step(Cancel(move)), "once"
    leader.to_do = [each for each in leader.to_do if isinstance(each, Commit)]
    leader.commit()
    outcome = leader.ended()
    assert isinstance(outcome, Kept)
    assert (outcome.reason, outcome.refusal) == (OwnershipReason.UNLOAD_CANCELLED, "cancelled by an operator")


def test_cancel_after_the_owner_is_lost_still_moves_the_bundle(leader: MovesHarness) -> None:
    move = leader.asked()
    leader.registered.discard(A)
    leader.step(Cancel(move))
    leader.to_do = [each for each in leader.to_do if isinstance(each, Commit)]
    leader.commit()
    assert isinstance(leader.ended(), Moved)


def test_resumed_release_runs_beyond_the_limits_and_counts(leader: MovesHarness) -> None:
    leader.limits = (1, 1)
    first = leader.want("t/ns/1")
    leader.want("t/ns/3")
    leader.to_do.clear()
    leader.owned("t/ns/2")
    released = leader.records["t/ns/2"] = release(leader.records["t/ns/2"], C, STAMP)
    found = Move("t/ns/2", A, C, "admin_unload", released=released)
    assert leader.step(Resume(found)) == [AskOwner(found, DEADLINE_S)]
    (ended,) = leader.step(NotCommitted(first, LOST))
    assert isinstance(ended, Ended), "no other move begins meanwhile"
    leader.to_do.clear()
    leader.step(OwnerAnswered(found, None))
    leader.commit()
    moved, begun = leader.to_do
    assert isinstance(moved, Ended)
    assert isinstance(moved.outcome, Moved)
    assert isinstance(begun, Commit), "the next one begins after it"


def test_resumed_release_counts_for_its_brokers(leader: MovesHarness) -> None:
    leader.limits = (9, 1)
    found = Move("t/ns/2", A, C, "admin_unload", released=release(assign(Ownership(), A, STAMP), C, STAMP))
    leader.step(Resume(found))
    leader.want("t/ns/b")
    assert leader.moves.is_waiting("t/ns/b")


@pytest.mark.parametrize(
    ("expected", "refusal"),
    [
        (Expected(A), None),
        (Expected(A, 1), None),
        (Expected(B), "not owned by b:1"),
        (Expected(A, 2), "at version 1, and not at 2"),
    ],
)
def test_step_checks_owner_version_and_state(expected: Expected, refusal: str | None) -> None:
    owned = assign(Ownership(), A, STAMP)
    with pytest.raises(StaleStepError):
        expected.check(release(owned, C, STAMP))
    if refusal is None:
        expected.check(owned)
    else:
        with pytest.raises(StaleStepError, match=refusal):
            expected.check(owned)


def test_end_of_another_release_fails(leader: MovesHarness) -> None:
    move = leader.asked()
    leader.step(OwnerAnswered(move, None))
    leader.records["t/ns/b"] = Ownership(OwnershipState.RELEASING, A, C, 9)
    leader.commit()
    outcome = leader.ended()
    assert isinstance(outcome, Failed)
    assert "the release at version 2 is over" in str(outcome.error)


def lose(leader: MovesHarness, *, happened: bool) -> Move:
    """Lose the answer of the pending write and read the record again."""
    action = leader.take()
    assert isinstance(action, Commit)
    move = action.move
    if happened:
        leader.records[move.bundle] = action.transition(leader.records[move.bundle], STAMP)
    leader.step(Unanswered(move, leader.records.get(move.bundle), LOST))
    return move


def test_unanswered_release_that_was_written_goes_on(leader: MovesHarness) -> None:
    leader.limits = (1, 1)
    leader.want("t/ns/b")
    move = lose(leader, happened=True)
    assert leader.to_do == [AskOwner(move, DEADLINE_S)]
    assert not [
        each for each in leader.step(Want(Move("t/ns/other", A, B, "admin_unload"))) if isinstance(each, Commit)
    ]


def test_unanswered_release_that_was_not_written_fails(leader: MovesHarness) -> None:
    leader.want("t/ns/b")
    lose(leader, happened=False)
    assert leader.ended() == Failed(LOST)


@pytest.mark.parametrize(
    ("destination", "stored"),
    [
        (B, Ownership(OwnershipState.RELEASING, A, C, 2)),
        (B, Ownership(OwnershipState.RELEASING, C, B, 2)),
        (None, Ownership(OwnershipState.OWNED, A, None, 1)),
    ],
)
def test_lost_release_ends(leader: MovesHarness, destination: Registration | None, stored: Ownership) -> None:
    leader.want("t/ns/b", destination)
    leader.records["t/ns/b"] = stored
    lose(leader, happened=False)
    assert leader.ended() == Failed(LOST)


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_lost_end_is_written_again(leader: MovesHarness, *, happened: bool, is_cancelled: bool) -> None:
    move = leader.asked()
    leader.step(Cancel(move) if is_cancelled else OwnerAnswered(move, None))
    leader.to_do = [each for each in leader.to_do if isinstance(each, Commit)]
    lose(leader, happened=happened)
    if not happened:
        assert isinstance(leader.to_do[0], Commit)
        leader.commit()
    outcome = leader.ended()
    assert isinstance(outcome, Kept if is_cancelled else Moved)
    assert (outcome.kept if isinstance(outcome, Kept) else outcome.done) == leader.records["t/ns/b"]


@pytest.mark.parametrize(
    "stored",
    [
        Ownership(OwnershipState.OWNED, C, None, 9),
        Ownership(OwnershipState.OWNED, B, None, 3, epoch=STAMP.epoch - 1),
        Ownership(OwnershipState.OWNED, B, None, 4, epoch=STAMP.epoch),
        None,
    ],
)
def test_unanswered_end_fails_if_the_record_has_changed_otherwise(
    leader: MovesHarness, stored: Ownership | None
) -> None:
    move = leader.asked()
    leader.step(OwnerAnswered(move, None))
    leader.to_do.clear()
    leader.step(Unanswered(move, stored, LOST))
    assert leader.ended() == Failed(LOST)


def test_end_of_the_term_ends_all_moves(leader: MovesHarness) -> None:
    leader.limits = (1, 1)
    moves = [leader.want(f"t/ns/{number}") for number in range(3)]
    leader.to_do.clear()
    assert set(leader.moves.forget()) == set(moves)
    assert leader.moves.known == []
    assert {move.phase for move in moves} == {Phase.ENDED}
    asked = leader.asked("t/ns/8")
    leader.moves.forget()
    assert (leader.moves.find("t/ns/8", 2), asked.phase) == (None, Phase.ENDED)
    leader.want("t/ns/9")
    assert [type(each) for each in leader.to_do] == [Commit]


@given(st.data())
def test_limits_hold_versions_grow_and_every_move_ends(data: st.DataObject) -> None:
    preparing = data.draw(st.sets(st.sampled_from([B, C])))
    leader = MovesHarness(limits=data.draw(st.tuples(st.integers(1, 3), st.integers(1, 2))), preparing=preparing)
    whatever = Whatever(leader, data)
    for _ in range(data.draw(st.integers(1, 40))):
        whatever.happens()
        with_turn = [move for move in whatever.wanted if move.phase not in {Phase.WAITING, Phase.ENDED}]
        assert len(with_turn) <= leader.limits[0]
        still_owned = {Phase.WAITING, Phase.PREPARING}
        assert all(move.released is None for move in whatever.wanted if move.phase in still_owned)
    whatever.ends()
    assert {move for move in whatever.wanted if move.phase is not Phase.ENDED} == set()
    assert set(whatever.outcomes) == set(whatever.wanted), "and each was said to have ended"
    assert leader.moves.step(Signal.TIME, leader.now_s) == []
