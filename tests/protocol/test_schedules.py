"""Many schedules, each from its seed: whatever goes wrong in whatever order, no invariant breaks, and all heals."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest
from protocol.__main__ import parse_seeds
from protocol.failure_report import tell_failure
from protocol.guards import GUARDS
from protocol.schedules import Schedule, Step, draw, run, shrink
from protocol.world import Shape
from support.deep import deep_except

SEEDS = 1_000
"""Number of schedules of `make test-deep`; `make protocol` tries others, and more."""
QUICK = 150
"""Number of schedules of `make test`."""

MOST_UNTIL_MISSED = 400
_AT_A_TIME = 50

# What a world leaves behind half done ends whenever it is collected; see conftest.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("first", deep_except(range(1, QUICK, _AT_A_TIME), range(1, SEEDS, _AT_A_TIME)))
def test_schedules_keep_invariants_and_heal(first: int, record_property: Callable[[str, object], None]) -> None:
    states, transitions = set[int](), 0
    for seed in range(first, first + _AT_A_TIME):
        schedule = draw(seed)
        outcome = run(schedule)
        assert not outcome.violations, tell_failure(schedule, outcome)
        states |= outcome.states
        transitions += outcome.transitions
    record_property("distinct states", len(states))
    assert transitions > 2 * _AT_A_TIME, "hardly anything happened"
    assert len(states) > _AT_A_TIME, "hardly anything else happened"


def test_a_client_leaves_a_node_that_was_killed_while_its_machine_stood_still_behind_a_cut() -> None:
    """The client waits for the first byte of its stream, and no end of the connection reaches it."""
    outcome = run(draw(487522))
    assert not outcome.violations, outcome.violations


def test_what_outlasted_a_lease_is_asked_for_again_though_zookeeper_gave_the_same_incarnation() -> None:
    """ZooKeeper lost data, and its next transactions have the numbers of the lost ones."""
    outcome = run(draw(3_001_532))
    assert not outcome.violations, outcome.violations


def test_a_seed_is_the_same_schedule_each_time_and_another_one_another() -> None:
    assert draw(7) == draw(7) != draw(8)
    assert run(draw(7)) == run(draw(7))


@pytest.mark.parametrize("name", [name for name, guard in GUARDS.items() if guard.missed_by])
def test_a_guard_that_is_taken_out_is_missed(name: str) -> None:
    """By the schedule that is known to show it, which another change may have made harmless, or by one of many."""
    guard = GUARDS[name]
    with guard.taken_out():
        seeds = (guard.missed_by, *range(1, MOST_UNTIL_MISSED))
        missed_by = next((seed for seed in seeds if seed and run(draw(seed)).violations), None)
    assert missed_by is not None, f"{MOST_UNTIL_MISSED} schedules do as well without it"


def test_a_schedule_that_fails_is_told_with_as_few_steps_as_still_fail() -> None:
    guard = next(guard for name, guard in GUARDS.items() if name.startswith("release"))
    with guard.taken_out():
        failing = ((draw(seed), run(draw(seed))) for seed in range(1, MOST_UNTIL_MISSED))
        schedule, outcome = next((each, outcome) for each, outcome in failing if outcome.violations)
        told = tell_failure(schedule, outcome)
    assert f"seed {schedule.seed}: {outcome.violations[0]}" in told
    assert f"make protocol SEEDS=={schedule.seed}" in told
    assert f"of its {len(schedule.steps)} steps are enough" in told


def test_shrinking_leaves_out_whatever_is_not_needed() -> None:
    steps = tuple(Step(0.0, "use a topic", number=number) for number in range(20))

    def fails(schedule: Schedule) -> bool:
        return {3, 17} <= {step.number for step in schedule.steps}

    least = shrink(Schedule(1, Shape(1, 2, 1, 1), steps), fails)
    assert [step.number for step in least.steps] == [3, 17]


@pytest.mark.parametrize(("text", "seeds"), [("3", range(1, 4)), ("=17", range(17, 18)), ("5-7", range(5, 8))])
def test_seeds_are_a_number_one_seed_or_a_range(text: str, seeds: range) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "abc", "-5", "=x", "=3-5", "0", "5-3"])
def test_other_seeds_are_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected a number of schedules \(1000\), one seed"):
        parse_seeds(text)
