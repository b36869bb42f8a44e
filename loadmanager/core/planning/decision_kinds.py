"""Table of the decisions on one snapshot, which the live leader, the simulator and the replay interpret.

Each is made from the snapshot, the settings, the memory of strategies, a random generator and the request, as the
history records it; it returns a plan and the new memory. Rounds of shedding are apart (`shedding_round.py`): they also
depend on the churn limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Assign, Plan, Verdict
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import planner
from loadmanager.core.planning.planner import State

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
    """Plan one assignment for the bundle, whoever owns it."""
    bundle = request["bundle"]
    chosen, verdict, state = planner.choose_destination(snapshot, bundle, None, settings, state, rng)
    steps = () if chosen is None else (Assign(bundle, chosen, verdict.verdict),)
    return Plan(snapshot.revision, snapshot.taken_at_s, steps, (verdict,)), state


def read_choice(plan: Plan) -> tuple[Registration | None, Verdict]:
    """Return the destination that `choose` decided on, None if there is none, and the verdict."""
    (verdict,) = plan.verdicts
    return (plan.steps[0].destination if plan.steps else None), verdict


DECISIONS: dict[str, Decide] = {"place": _place, "drain": _drain, "bring_home": _bring_home, "choose": _choose}
