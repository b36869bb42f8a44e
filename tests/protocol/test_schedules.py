"""Many schedules of faults, each drawn from a seed: no invariant breaks and the cluster recovers."""

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

SEEDS = 400
"""Number of schedules of `make test-deep`: one of them fails without a guard. `make protocol` runs others."""
QUICK = 150
"""Number of schedules of `make test`."""

_AT_A_TIME = 50


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


def test_client_leaves_a_node_killed_during_a_suspension_and_a_cut() -> None:
    """The client waits for the first byte of its stream and gets no disconnect."""
    outcome = run(draw(487522))
    assert not outcome.violations, outcome.violations


def test_topics_are_claimed_again_after_a_rollback_reuses_an_incarnation() -> None:
    """After ZooKeeper lost data, new transactions reuse the ids of the lost ones."""
    outcome = run(draw(3_001_532))
    assert not outcome.violations, outcome.violations


def test_seed_determines_its_schedule() -> None:
    assert draw(7) == draw(7) != draw(8)
    assert run(draw(7)) == run(draw(7))


@pytest.mark.parametrize("name", [name for name, guard in GUARDS.items() if guard.missed_by])
def test_removed_guard_is_detected(name: str) -> None:
    """Tries the known schedule first, which a later change may have made harmless, then many others."""
    guard = GUARDS[name]
    with guard.taken_out():
        seeds = (guard.missed_by, *range(1, SEEDS))
        missed_by = next((seed for seed in seeds if seed and run(draw(seed)).violations), None)
    assert missed_by is not None, f"{SEEDS} schedules do not need it"


def test_failing_schedule_is_reported_with_its_shrunk_steps() -> None:
    guard = next(guard for name, guard in GUARDS.items() if name.startswith("release"))
    with guard.taken_out():
        failing = ((draw(seed), run(draw(seed))) for seed in range(1, SEEDS))
        schedule, outcome = next((each, outcome) for each, outcome in failing if outcome.violations)
        told = tell_failure(schedule, outcome)
    assert f"seed {schedule.seed}: {outcome.violations[0]}" in told
    assert f"make protocol SEEDS=={schedule.seed}" in told
    assert f"of its {len(schedule.steps)} steps are enough" in told


def test_shrinking_drops_unneeded_steps() -> None:
    steps = tuple(Step(0.0, "use a topic", number=number) for number in range(20))

    def fails(schedule: Schedule) -> bool:
        return {3, 17} <= {step.number for step in schedule.steps}

    least = shrink(Schedule(1, Shape(1, 2, 1, 1), steps), fails)
    assert [step.number for step in least.steps] == [3, 17]


@pytest.mark.parametrize(("text", "seeds"), [("3", range(1, 4)), ("=17", range(17, 18)), ("5-7", range(5, 8))])
def test_seeds_are_a_count_a_single_seed_or_a_range(text: str, seeds: range) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "abc", "-5", "=x", "=3-5", "0", "5-3"])
def test_invalid_seeds_are_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected a number of schedules \(1000\), one seed"):
        parse_seeds(text)
