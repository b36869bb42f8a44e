from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from support.builders import broker, bundle

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.planning.repeated_moves import (
    AGAIN_WITHIN_S,
    BACK_WITHIN_S,
    NEVER,
    MoveTrail,
    PastMove,
    find_departure,
    is_again,
    is_back,
    next_move,
    share_again,
    share_back,
)

A, B, C = broker("a"), broker("b"), broker("c")


def test_second_move_counts_as_again_and_return_as_back() -> None:
    trail = MoveTrail()
    first = trail.add(0.0, bundle(0), A, B)
    assert (first.moved_s, first.left_s, is_again(first), is_back(first)) == (NEVER, NEVER, False, False)
    second = trail.add(3600.0, bundle(0), B, C)
    assert (is_again(second), is_back(second)) == (True, False)
    third = trail.add(BACK_WITHIN_S - 1, bundle(0), C, A)
    assert (is_again(third), is_back(third), third.left_s) == (False, True, 0.0)


def test_return_after_an_operators_move_counts_as_back_only() -> None:
    trail = MoveTrail()
    trail.add(0.0, bundle(0), A, B, is_own=False)
    move = trail.add(60.0, bundle(0), B, A)
    assert (is_again(move), is_back(move)) == (False, True)


def test_move_to_its_own_owner_counts_as_back() -> None:
    assert is_back(MoveTrail().add(5.0, bundle(0), A, A))
    assert not is_back(MoveTrail().add(5.0, bundle(0), A, None))


def test_move_to_a_restarted_broker_is_not_back() -> None:
    trail = MoveTrail()
    trail.add(0.0, bundle(0), A, B)
    assert not is_back(trail.add(60.0, bundle(0), B, Registration(A.broker, A.incarnation + 1)))


def test_only_own_moves_count_for_the_shares() -> None:
    own = PastMove(9.0, bundle(0), "a", 1, 0.25, is_own=True, moved_s=1.0, left_s=1.0)
    moves = [own, own._replace(is_own=False), own._replace(moved_s=NEVER), own._replace(left_s=NEVER)]
    assert (share_again(moves), share_back(moves)) == (0.5, 0.5)


places = st.sampled_from((A, B, C))


@given(st.lists(st.tuples(st.floats(0, 6 * 3600), st.integers(0, 2), places, places, st.booleans()), max_size=20))
def test_trail_equals_the_memory(made: list[tuple[float, int, Registration, Registration, bool]]) -> None:
    """Compares recent moves. A move is again or back only if earlier moves show it."""
    trail, moves, at_s = MoveTrail(), list[PastMove](), 0.0
    for later_s, number, source, destination, is_own in made:
        at_s += later_s
        known = next_move(moves, at_s, bundle(number), source, destination, 0.0, is_own=is_own)
        told = trail.add(at_s, bundle(number), source, destination, is_own=is_own)
        assert (is_again(told), is_back(told)) == (is_again(known), is_back(known))
        before = [move for move in moves if move.bundle == bundle(number)]
        assert is_again(known) == any(move.is_own and at_s - move.at_s < AGAIN_WITHIN_S for move in before)
        left_s = at_s if source == destination else find_departure(before, bundle(number), destination)
        assert is_back(known) == (at_s - left_s < BACK_WITHIN_S)
        moves.append(known)
    assert all(one.at_s <= other.at_s for one, other in pairwise(moves))
