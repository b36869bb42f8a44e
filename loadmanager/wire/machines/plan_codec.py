"""Codec of plans: by their hashes; steps by bundle and index in the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    WithdrawStep,
)
from loadmanager.wire.machines.dataclass_codec import DataclassCodec
from loadmanager.wire.machines.step_form import MachineCheckpoint, name_in

_NO_EFFECT = Effect(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0)
_NOT_EXECUTED = ("at_ms", "epoch", "verdicts", "effect", "certificate", "because", "had_its_turn")
"""Fields of a plan and its steps that its execution does not use between two steps of the machine."""
_CODEC = DataclassCodec((), omitted=_NOT_EXECUTED)


class PlansForm:
    """Codec of the steps of `machine`."""

    def __init__(self, machine: PlanMachine) -> None:
        self.machine = machine

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
                return Execute(self.machine.keep(_plan_of(plan)), even_if_frozen)
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

    def checkpoint(self) -> MachineCheckpoint:
        return [_plan_as_json(plan) for plan in sorted(self.machine.executing, key=str)]

    def restore(self, checkpoint: MachineCheckpoint) -> None:
        for each in checkpoint:
            self.machine.keep(_plan_of(each))

    def _find(self, plan_hash: str) -> KeptPlan:
        plan = self.machine.find(plan_hash)
        if plan is None:
            raise ValueError(f"plan {plan_hash} was not executed")
        return plan


def _plan_as_json(plan: KeptPlan) -> dict[str, Any]:
    return {"plan": plan.hash, **_CODEC.fields_as_json(plan)}


def _plan_of(content: Mapping[str, Any]) -> KeptPlan:
    return KeptPlan(at_ms=0, epoch=0, verdicts=(), effect=_NO_EFFECT, **_CODEC.fields_of(KeptPlan, content))
