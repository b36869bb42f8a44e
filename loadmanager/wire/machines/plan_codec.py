"""Codec of plans: by their hashes; steps by bundle and index in the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmanager.core.diagnosis.reason_catalogue import reason_of
from loadmanager.core.planning.plan_effect import Effect
from loadmanager.core.protocol.plan_machine import (
    Action,
    BeginStep,
    Event,
    Execute,
    KeptPlan,
    PlanEnded,
    PlanMachine,
    StepEnded,
    TrackedStep,
    WithdrawStep,
)
from loadmanager.wire.machines.step_form import Image, life_of, name_in, registration_as_json

_NO_EFFECT = Effect(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0)


class Timeless:
    """Adapter of plans to a state machine without timers."""

    wake_s = None

    def __init__(self, plans: PlanMachine) -> None:
        self._plans = plans

    def step(self, event: Event, now_s: float) -> list[Action]:  # noqa: ARG002 - it means nothing
        return self._plans.step(event)


class PlansForm:
    """Codec of the steps of `plans`."""

    def __init__(self, plans: PlanMachine) -> None:
        self._plans = plans
        self.machine = Timeless(plans)

    def event_as_json(self, event: Event) -> list[Any]:
        """Encode an event; the end of a step includes whether it had begun, between two steps of the machine."""
        match event:
            case Execute(plan, even_if_frozen):
                return ["Execute", plan.hash, even_if_frozen, _plan_as_json(plan)]
            case StepEnded(plan, step, end, why):
                return ["StepEnded", step.bundle, plan.hash, plan.steps.index(step), end, why, step.had_its_turn]

    def event_of(self, content: Sequence[Any]) -> Event:
        match content:
            case ["Execute", _, even_if_frozen, plan]:
                return Execute(self._plans.keep(_plan_of(plan)), even_if_frozen)
            case ["StepEnded", _, plan_hash, number, end, why, had_its_turn]:
                plan = self._find(plan_hash)
                plan.steps[number].had_its_turn = had_its_turn
                return StepEnded(plan, plan.steps[number], end, why)
        raise ValueError(f"an event of plans that is not known: {content}")

    def action_as_json(self, action: Action) -> list[Any]:
        match action:
            case BeginStep(plan, step):
                return ["BeginStep", step.bundle, plan.hash, plan.steps.index(step)]
            case WithdrawStep(bundle):
                return ["WithdrawStep", bundle]
            case PlanEnded(plan):
                return ["PlanEnded", plan.hash, plan.state, plan.stopped_by, [each.state for each in plan.steps]]

    def about(self, content: Sequence[Any]) -> str:
        """Return the bundle, or the hash of the plan."""
        return name_in(content)

    def image(self) -> Image:
        return [_plan_as_json(plan) for plan in sorted(self._plans.executing, key=str)]

    def restore(self, image: Image) -> None:
        for each in image:
            self._plans.keep(_plan_of(each))

    def _find(self, plan_hash: str) -> KeptPlan:
        plan = self._plans.find(plan_hash)
        if plan is None:
            raise ValueError(f"plan {plan_hash} was not executed")
        return plan


def _plan_as_json(plan: KeptPlan) -> dict[str, Any]:
    return {
        "plan": plan.hash,
        "cluster": plan.cluster,
        "kind": plan.kind,
        "state": plan.state,
        "stoppedBy": plan.stopped_by,
        "evenIfFrozen": plan.even_if_frozen,
        "begun": plan.begun,
        "underWay": plan.under_way,
        "steps": [_step_as_json(step) for step in plan.steps],
    }


def _plan_of(content: Mapping[str, Any]) -> KeptPlan:
    """Decode the parts of a plan that its execution uses."""
    return KeptPlan(
        content["kind"],
        at_ms=0,
        epoch=0,
        steps=(*map(_step_of, content["steps"]),),
        verdicts=(),
        effect=_NO_EFFECT,
        cluster=content.get("cluster", ""),
        state=content["state"],
        stopped_by=content["stoppedBy"],
        even_if_frozen=content["evenIfFrozen"],
        begun=content["begun"],
        under_way=content["underWay"],
    )


def _step_as_json(step: TrackedStep) -> list[Any]:
    source, destination = registration_as_json(step.source), registration_as_json(step.destination)
    return [step.bundle, step.version, source, destination, step.reason.value, step.state, step.error]


def _step_of(content: Sequence[Any]) -> TrackedStep:
    bundle, version, source, destination, reason, state, error = content
    return TrackedStep(
        bundle,
        version,
        life_of(source),
        life_of(destination),
        reason_of(reason),
        state=state,
        error=error,
    )
