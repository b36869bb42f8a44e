"""The table of decisions: each kind by its recorded request, on one snapshot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.builders import bundle, report, snapshot

from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Assign
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.planning.decision_kinds import DECISIONS, Request, read_choice

A, B = BrokerId("a:8080"), BrokerId("b:8080")
ON_A, ON_B, FREE = bundle(0), bundle(1), bundle(9)


@pytest.mark.parametrize(
    ("kind", "request_", "controls", "destinations"),
    [
        ("place", {"bundles": [FREE], "nonPersistent": []}, Controls(), {FREE: B}),
        ("drain", {"brokers": [A], "most": 5, "leave": []}, Controls(draining={A: DrainOrder(0.0)}), {ON_A: B}),
        ("drain", {"brokers": [A], "most": 5, "leave": [ON_A]}, Controls(draining={A: DrainOrder(0.0)}), {}),
        ("bring_home", {"leave": []}, Controls(pinned={ON_A: B}), {ON_A: B}),
        ("bring_home", {"leave": [ON_A]}, Controls(pinned={ON_A: B}), {}),
        ("choose", {"bundle": ON_A}, Controls(), {ON_A: B}),
        ("choose", {"bundle": ON_A}, Controls(excluded=frozenset({A, B})), {}),
    ],
)
def test_decision_kind_executes_its_request(
    kind: str, request_: Request, controls: Controls, destinations: dict[str, BrokerId]
) -> None:
    given = replace(snapshot({"a": report([ON_A], cpu=80), "b": report([ON_B], cpu=10)}), controls=controls)
    settings = PlannerSettings(placement_strategy="LeastResourceUsageWithWeight")
    plan, _ = DECISIONS[kind](given, settings, {}, np.random.default_rng(0), request_)
    found = {step.bundle: step.destination.broker for step in plan.steps if step.destination is not None}
    assert found == destinations
    assert all(isinstance(step, Assign) == (kind in ("place", "choose")) for step in plan.steps)


@pytest.mark.parametrize(("excluded", "chosen"), [((), B), ((A, B), None)])
def test_choice_is_read_with_its_verdict(excluded: tuple[BrokerId, ...], chosen: BrokerId | None) -> None:
    controls = Controls(excluded=frozenset(excluded))
    given = replace(snapshot({"a": report([ON_A], cpu=80), "b": report(cpu=10)}), controls=controls)
    plan, _ = DECISIONS["choose"](given, PlannerSettings(), {}, np.random.default_rng(0), {"bundle": ON_A})
    destination, verdict = read_choice(plan)
    assert (destination and destination.broker, verdict.subject, verdict.acted) == (chosen, ON_A, chosen is not None)
