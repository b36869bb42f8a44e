"""Readable report of a failing schedule: its shrunk steps and its trace."""

from __future__ import annotations

from protocol.schedules import Outcome, Schedule, run, shrink

_LINES = 120


def tell_failure(schedule: Schedule, outcome: Outcome) -> str:
    """Report of a failing schedule: its shrunk form, its trace, and the command that repeats it."""
    least = shrink(schedule, lambda less: bool(run(less).violations))
    last = run(least)
    steps = [f"    after {step.pause_s:g} s  {step}" for step in least.steps]
    return "\n".join(
        [
            f"seed {schedule.seed}: {'; '.join(outcome.violations[:3])}",
            f"again: make protocol SEEDS=={schedule.seed}",
            f"{schedule.shape}; {len(least.steps)} of its {len(schedule.steps)} steps are enough:",
            *steps,
            f"which ends in: {'; '.join(last.violations[:3])}",
            *last.story[-_LINES:],
        ]
    )
