"""Many schedules, each from its seed: whatever goes wrong in whatever order, no invariant breaks, and all heals."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from protocol.guards import GUARDS
from protocol.schedules import Outcome, draw, run
from protocol.story import tell_failure

SEEDS = int(os.environ.get("PROTOCOL_SEEDS", "2000"))
"""How many schedules are tried."""

_AT_A_TIME = 100


@pytest.mark.parametrize("first", range(1, SEEDS + 1, _AT_A_TIME))
def test_no_schedule_breaks_an_invariant_and_all_heals(
    first: int, record_testsuite_property: Callable[[str, object], None]
) -> None:
    outcomes: list[Outcome] = []
    for seed in range(first, min(first + _AT_A_TIME, SEEDS + 1)):
        schedule = draw(seed)
        outcome = run(schedule)
        assert not outcome.violations, tell_failure(schedule, outcome)
        outcomes.append(outcome)
    record_testsuite_property(f"states from seed {first}", len(frozenset[int]().union(*(o.states for o in outcomes))))
    assert sum(outcome.transitions for outcome in outcomes) > len(outcomes), "hardly anything happened"


def test_a_seed_is_the_same_schedule_each_time() -> None:
    assert draw(7) == draw(7)
    first, second = run(draw(7)), run(draw(7))
    assert first == second
    assert draw(8) != draw(7)
    assert run(draw(8)) != first


@pytest.mark.parametrize("guard", sorted(FOUND_SOON))
def test_a_guard_that_is_taken_out_is_missed(guard: str) -> None:
    seed = FOUND_SOON[guard]
    with GUARDS[guard]():
        assert run(draw(seed)).violations
    assert not run(draw(seed)).violations
