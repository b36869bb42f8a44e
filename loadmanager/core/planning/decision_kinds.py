"""Table of the decisions on one snapshot, which the live leader, the simulator and the replay interpret.

The input of each decision is the snapshot, the settings, the memory of strategies, a random generator and the request;
the history records it. The result is a plan and the new memory. Shedding rounds are not in the table
(`shedding_round.py`), since they also depend on the churn limits.

The memory of strategies may cover a hundred thousand bundles. So parts of it may be columns, which become JSON only
when they leave the process: see `as_json`. Each strategy accepts both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Assign, Plan, Verdict
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import planner
from loadmanager.core.planning.planner import State


@runtime_checkable
class InColumns(Protocol):
    """Immutable value in columns that has an equivalent JSON value."""

    def as_json(self) -> Any: ...  # noqa: ANN401 - whatever JSON can hold


def as_json(state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the memory, by strategy name, as plain JSON."""
    return {
        strategy: {key: part.as_json() if isinstance(part, InColumns) else part for key, part in remembered.items()}
        for strategy, remembered in state.items()
    }


def merged(before: Any, after: Any, now: Any) -> Any:  # noqa: ANN401 - a state, or a part of one
    """Merge the memories of two concurrent decisions that began with `before` (three-way merge).

    The result is `now`, with all changes from `before` to `after`.
    """
    if now is before or not all(isinstance(each, Mapping) for each in (before, after, now)):
        return after
    left = {key: part for key, part in now.items() if key in after or key not in before}
    changed = {key: part for key, part in after.items() if key not in before or part != before[key]}
    return left | {
        key: merged(before[key], part, now[key]) if key in before and key in now else part
        for key, part in changed.items()
    }


Request = Mapping[str, Any]
Decide = Callable[[Snapshot, PlannerSettings, State, np.random.Generator, Request], tuple[Plan, State]]


def _place(
    snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator, request: Request
) -> tuple[Plan, State]:
    return planner.plan_assignments(
        snapshot, request["bundles"], settings, state, rng, frozenset(request["nonPersistent"])
    )


def _drain(
    snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator, request: Request
) -> tuple[Plan, State]:
    leave = frozenset(request["leave"])
    return planner.plan_drain(snapshot, request["brokers"], settings, state, rng, request["most"], leave)


def _bring_home(
    snapshot: Snapshot, settings: PlannerSettings, state: State, _: np.random.Generator, request: Request
) -> tuple[Plan, State]:
    return planner.plan_pins(snapshot, settings, frozenset(request["leave"])), state


def _choose(
    snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator, request: Request
) -> tuple[Plan, State]:
    """Plan one assignment for the bundle, even if it has an owner."""
    bundle = request["bundle"]
    chosen, verdict, state = planner.choose_destination(snapshot, bundle, None, settings, state, rng)
    steps = () if chosen is None else (Assign(bundle, chosen, verdict.verdict),)
    return Plan(snapshot.revision, snapshot.taken_at_s, steps, (verdict,)), state


def read_choice(plan: Plan) -> tuple[Registration | None, Verdict]:
    """Return the destination that `choose` decided on, None if there is none, and the verdict."""
    (verdict,) = plan.verdicts
    return (plan.steps[0].destination if plan.steps else None), verdict


DECISIONS: dict[str, Decide] = {"place": _place, "drain": _drain, "bring_home": _bring_home, "choose": _choose}
