"""Codec of drains: brokers and bundles by name; only a checkpoint numbers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadmanager.core.diagnosis.reason_catalogue import reason_of
from loadmanager.core.domain.controls import Controls, DrainOrder, ReturnOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.protocol.drain_machine import (
    Action,
    BackOff,
    BeginMove,
    BringHome,
    Drain,
    DrainCheckpoint,
    DrainMachine,
    DrainPlanned,
    EndDrain,
    EndReturn,
    Event,
    GiveAway,
    MoveEnded,
    TriedToEnd,
    WithdrawMove,
)
from loadmanager.core.protocol.move_machine import Failed, StaleStepError
from loadmanager.core.protocol.state_machine import Signal
from loadmanager.wire.checkpoint_codec import unquoted
from loadmanager.wire.dump_line import quoted
from loadmanager.wire.machines.move_codec import outcome_as_json, outcome_of
from loadmanager.wire.machines.step_form import Image, life_of, name_in, registration_as_json, registration_of


class DrainsForm:
    """Codec of the steps of `machine`."""

    def __init__(self, machine: DrainMachine) -> None:
        self.machine = machine

    def event_as_json(self, event: Event) -> list[Any]:
        """Encode an event; of a plan only its steps, and the verdicts on bundles that stay."""
        match event:
            case DrainPlanned(plan):
                return ["Planned", *_plan_as_json(plan)]
            case MoveEnded(bundle, Failed(StaleStepError() as error)):
                return ["MoveEnded", bundle, "Stale", str(error)]
            case MoveEnded(bundle, outcome):
                return ["MoveEnded", bundle, *outcome_as_json(outcome)]
            case TriedToEnd(broker):
                return ["TriedToEnd", broker]
            case Signal():
                return [event.name]

    def event_of(self, content: Sequence[Any]) -> Event:
        match content:
            case ["Planned", None]:
                return DrainPlanned(None)
            case ["Planned", steps, staying]:
                return DrainPlanned(Plan(0, 0.0, (*map(_step_of, steps),), (*map(_verdict_of, staying),)))
            case ["MoveEnded", bundle, "Stale", error]:
                return MoveEnded(bundle, Failed(StaleStepError(error)))
            case ["MoveEnded", bundle, *outcome]:
                return MoveEnded(bundle, outcome_of(outcome))
            case ["TriedToEnd", broker]:
                return TriedToEnd(BrokerId(broker))
            case ["TIME" | "CHANGED" as name]:
                return Signal[name]
        raise ValueError(f"an event of drains that is not known: {content}")

    def action_as_json(self, action: Action) -> list[Any]:
        match action:
            case GiveAway() | BringHome():
                return _question_as_json(action)
            case BeginMove(step):
                return ["BeginMove", *_step_as_json(step)]
            case WithdrawMove(bundle):
                return ["WithdrawMove", bundle]
            case EndDrain(broker, since_s):
                return ["EndDrain", broker, since_s]
            case EndReturn(broker, bundles):
                return ["EndReturn", broker, sorted(bundles)]

    def about(self, content: Sequence[Any]) -> str:
        """Return the bundle, or the broker."""
        return name_in(content)

    def image(self) -> Image:
        now = self.machine.checkpoint()
        of_bundles = (*now.moving.values(), *(rest.drain for rest in now.resting.values()))
        drains = dict.fromkeys(each for each in (*now.drains.values(), *of_bundles) if each is not None)
        numbers: dict[Drain | None, int] = {drain: number for number, drain in enumerate(drains)}
        under_way = [*now.drains.values()]
        return [
            *({**_drain_as_json(drain), "isUnderWay": drain in under_way} for drain in drains),
            *({"broker": broker, "isEnding": True} for broker in sorted(now.ending)),
            *({"bundle": bundle, "movesFor": numbers.get(drain)} for bundle, drain in now.moving.items()),
            *(
                {"bundle": bundle, "restsFor": numbers.get(rest.drain), "why": rest.why, "untilS": rest.until_s}
                for bundle, rest in now.resting.items()
            ),
            {"asked": None if now.asked is None else _question_as_json(now.asked), "lookS": now.look_s},
        ]

    def restore(self, image: Image) -> None:
        if not image:
            return
        *things, last = image
        written = [each for each in things if "isUnderWay" in each]
        drains: dict[int | None, Drain] = {number: _drain_of(each) for number, each in enumerate(written)}
        under_way = [drains[number] for number, each in enumerate(written) if each["isUnderWay"]]
        self.machine.restore(
            DrainCheckpoint(
                {drain.registration.broker: drain for drain in under_way},
                {BrokerId(each["broker"]) for each in things if "isEnding" in each},
                {each["bundle"]: drains.get(each["movesFor"]) for each in things if "movesFor" in each},
                {
                    each["bundle"]: BackOff(each["why"], each["untilS"], drains.get(each["restsFor"]))
                    for each in things
                    if "restsFor" in each
                },
                None if last["asked"] is None else _question_of(last["asked"]),
                last["lookS"],
            )
        )


def wishes_as_json(controls: Controls) -> list[Any]:
    """Encode orders to drain and to return, and pins."""
    orders = ({broker: [*order] for broker, order in each.items()} for each in (controls.draining, controls.returning))
    return [*orders, controls.pinned]


def wishes_of(content: Sequence[Any]) -> Controls:
    draining, returning, pinned = content
    return Controls(
        draining={broker: DrainOrder(*order) for broker, order in draining.items()},
        returning={broker: ReturnOrder(since_s, (*bundles,)) for broker, (since_s, bundles) in returning.items()},
        pinned=pinned,
    )


def _question_as_json(question: GiveAway | BringHome) -> list[Any]:
    brokers = [list(question.brokers)] if isinstance(question, GiveAway) else []
    return [type(question).__name__, *brokers, question.most, sorted(question.leave)]


def _question_of(content: Sequence[Any]) -> GiveAway | BringHome:
    _, *brokers, most, leave = content
    return GiveAway((*brokers[0],), most, frozenset(leave)) if brokers else BringHome(most, frozenset(leave))


def _plan_as_json(plan: Plan | None) -> list[Any]:
    if plan is None:
        return [None]
    unloads = [_step_as_json(each) for each in plan.steps if isinstance(each, Unload)]
    return [unloads, [_verdict_as_json(each) for each in plan.verdicts if not each.acted]]


def _step_as_json(step: Unload) -> list[Any]:
    return [step.bundle, registration_as_json(step.source), registration_as_json(step.destination), step.reason.value]


def _step_of(content: Sequence[Any]) -> Unload:
    bundle, source, destination, reason = content
    return Unload(bundle, life_of(source), registration_of(destination), reason_of(reason))


def _verdict_as_json(verdict: Verdict) -> list[Any]:
    return [verdict.subject, verdict.verdict.value, quoted(verdict.why)]


def _verdict_of(content: Sequence[Any]) -> Verdict:
    subject, reason, why = content
    return Verdict(subject, reason_of(reason), acted=False, why=unquoted(why))


def _drain_as_json(drain: Drain) -> dict[str, Any]:
    return {
        "broker": drain.registration.broker,
        "incarnation": drain.registration.incarnation,
        "sinceS": drain.since_s,
        "beganS": drain.began_s,
        "moved": drain.moved,
        "failed": drain.failed,
        "endsS": list(drain.ends_s),
    }


def _drain_of(content: dict[str, Any]) -> Drain:
    registration = life_of([content["broker"], content["incarnation"]])
    drain = Drain(registration, content["sinceS"], content["beganS"], content["moved"], content["failed"])
    drain.ends_s.extend(content["endsS"])
    return drain
