from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.protocol.guardrails import MoveHistory, PendingMove

A, B, C = (BrokerId(f"{letter}:8080") for letter in "abc")
BUNDLES = ("t/ns/0x00000000_0x80000000", "t/ns/0x80000000_0xffffffff")
MOVE = PendingMove(A, B, 1_000.0, is_own=True)
HOUR_S = 3_600.0


def test_begun_move_is_in_progress_and_counts_if_own() -> None:
    acts = MoveHistory().begun(BUNDLES[0], MOVE)
    assert acts == MoveHistory({BUNDLES[0]: MOVE}, (1_000.0,))
    ordered = replace(MOVE, began_s=1_001.0, is_own=False)
    assert acts.begun(BUNDLES[1], ordered) == MoveHistory({BUNDLES[0]: MOVE, BUNDLES[1]: ordered}, (1_000.0,))


def test_move_that_was_not_requested_counts_but_is_not_in_progress() -> None:
    acts = MoveHistory().begun(BUNDLES[0], MOVE).begun(BUNDLES[1], MOVE)
    assert acts.not_begun(BUNDLES[0]) == MoveHistory({BUNDLES[1]: MOVE}, (1_000.0, 1_000.0))


def test_landed_move_touches_both_brokers_and_resets_failures() -> None:
    acts = replace(MoveHistory(failures=2, touched_s={C: 900.0, A: 900.0}).begun(BUNDLES[0], MOVE), began_s=())
    assert acts.ended(BUNDLES[0], B, 1_010.0, is_excused=False) == MoveHistory(
        touched_s={A: 1_010.0, B: 1_010.0, C: 900.0}
    )


@pytest.mark.parametrize("owner", [A, C, None])
@pytest.mark.parametrize("is_excused", [False, True])
def test_move_that_did_not_land_counts_as_failed_unless_excused(owner: BrokerId | None, *, is_excused: bool) -> None:
    after = MoveHistory(failures=2).begun(BUNDLES[0], MOVE).ended(BUNDLES[0], owner, 1_010.0, is_excused=is_excused)
    assert after.failures == 2 + (not is_excused)
    assert after.touched_s == {A: 1_010.0} | ({} if owner is None else {owner: 1_010.0})
    assert after.in_progress == {}
    assert after.with_failures_reset() == replace(after, failures=0)


def test_landed_move_does_not_reset_failures_at_the_limit() -> None:
    acts = MoveHistory(failures=3).begun(BUNDLES[0], MOVE)
    assert acts.ended(BUNDLES[0], B, 1_010.0, is_excused=False).failures == 3


@pytest.mark.parametrize(
    ("destination", "owner", "outcome"),
    [
        (B, B, "landed"),
        (B, C, "missed"),
        (B, A, "back"),
        (B, None, "neither"),
        (None, B, "landed"),
        (None, A, "landed"),
        (None, None, "neither"),
    ],
)
def test_move_lands_misses_or_does_neither(destination: BrokerId | None, owner: BrokerId | None, outcome: str) -> None:
    move = replace(MOVE, destination=destination)
    for was_released in (False, True):
        is_missed = outcome == "missed" or (was_released and outcome == "back")
        assert move.has_missed(owner, was_released=was_released) == is_missed
    assert move.has_landed(owner) == (outcome == "landed")


def test_old_entries_are_dropped_and_future_times_cut_to_now() -> None:
    now_s = 100 * HOUR_S
    acts = MoveHistory(
        {BUNDLES[0]: MOVE},
        (now_s - HOUR_S, now_s - HOUR_S + 1, now_s + 5),
        {A: now_s - 24 * HOUR_S, B: now_s - 24 * HOUR_S + 1, C: now_s + 5},
        1,
    )
    expected = MoveHistory({BUNDLES[0]: MOVE}, (now_s - HOUR_S + 1, now_s), {B: now_s - 24 * HOUR_S + 1, C: now_s}, 1)
    assert acts.at(now_s) == expected
    begun = replace(MOVE, began_s=now_s, is_own=False)
    assert acts.begun(BUNDLES[1], begun) == replace(expected, in_progress={**acts.in_progress, BUNDLES[1]: begun})
    assert acts.ended(BUNDLES[0], C, now_s, is_excused=True).began_s == expected.began_s


def test_splits_are_counted_with_moves_and_touch_the_owner() -> None:
    acts = MoveHistory({BUNDLES[0]: MOVE}, (1_000.0,), {C: 900.0}, failures=1)
    assert acts.not_split() == replace(acts, failures=2)
    split = replace(acts, touched_s={C: 900.0, A: 1_010.0})
    assert acts.split(A, 1_010.0) == replace(split, failures=0)
    assert replace(acts, failures=3).split(A, 1_010.0) == replace(split, failures=3), "an operator is to judge that"


@given(st.data())
def test_no_move_is_lost_and_consecutive_failures_are_counted(data: st.DataObject) -> None:
    acts, now_s, in_progress, in_succession = MoveHistory(), 1e9, set[str](), 0
    for _ in range(data.draw(st.integers(1, 30))):
        now_s += data.draw(st.sampled_from([0.0, 1.0, 1_800.0]))
        bundle = data.draw(st.sampled_from([f"t/ns/{number}" for number in range(4)]))
        if bundle not in in_progress:
            acts = acts.begun(bundle, PendingMove(A, B, now_s, is_own=data.draw(st.booleans())))
            in_progress.add(bundle)
        elif data.draw(st.booleans()):
            owner, is_excused = data.draw(st.sampled_from([A, B, C, None])), data.draw(st.booleans())
            acts = acts.ended(bundle, owner, now_s, is_excused=is_excused)
            in_progress.discard(bundle)
            if owner != B:
                in_succession += not is_excused
            elif in_succession < 3:
                in_succession = 0
            assert acts.touched_s[A] == now_s
        else:
            is_made = data.draw(st.booleans())
            acts = acts.split(A, now_s) if is_made else acts.not_split()
            if not is_made:
                in_succession += 1
            elif in_succession < 3:
                in_succession = 0
        assert (set(acts.in_progress), acts.failures) == (in_progress, in_succession)
        assert all(now_s - HOUR_S < at_s <= now_s for at_s in acts.at(now_s).began_s)
