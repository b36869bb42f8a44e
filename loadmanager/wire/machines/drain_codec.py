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
from loadmanager.core.protocol.state_machine import Signal
from loadmanager.wire.checkpoint_codec import unquoted
from loadmanager.wire.dump_line import quoted
from loadmanager.wire.machines.dataclass_codec import OUTCOMES, Conversion, DataclassCodec
from loadmanager.wire.machines.step_form import MachineCheckpoint, name_in


class DrainsForm:
    """Codec of the steps of `machine`; of a plan only its steps, and the verdicts on bundles that stay."""

    def __init__(self, machine: DrainMachine) -> None:
        self.machine = machine

    def event_as_json(self, event: Event) -> list[Any]:
        found: list[Any] = _CODEC.as_json(event)
        return found

    def event_of(self, content: Sequence[Any]) -> Event:
        event: Event = _CODEC.event_of(content)
        return event

    def action_as_json(self, action: Action) -> list[Any]:
        found: list[Any] = _CODEC.as_json(action)
        return found

    def about(self, content: Sequence[Any]) -> str:
        """Return the bundle, or the broker."""
        return name_in(content)

    def checkpoint(self) -> MachineCheckpoint:
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
            {"asked": _CODEC.as_json(now.asked), "lookS": now.look_s},
        ]

    def restore(self, checkpoint: MachineCheckpoint) -> None:
        if not checkpoint:
            return
        *things, last = checkpoint
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
                None if last["asked"] is None else _CODEC.event_of(last["asked"]),
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


def _plan_as_json(plan: Plan) -> list[Any]:
    unloads = [_CODEC.as_json(each) for each in plan.steps if isinstance(each, Unload)]
    return [unloads, [_CODEC.as_json(each) for each in plan.verdicts if not each.acted]]


def _plan_of(content: Sequence[Any]) -> Plan:
    steps, staying = content
    unloads = tuple(_CODEC.value_of(Unload, each) for each in steps)
    return Plan(0, 0.0, unloads, tuple(_CODEC.value_of(Verdict, each) for each in staying))


def _verdict_as_json(verdict: Verdict) -> list[Any]:
    return [verdict.subject, verdict.verdict.value, quoted(verdict.why)]


def _verdict_of(content: Sequence[Any]) -> Verdict:
    subject, reason, why = content
    return Verdict(subject, reason_of(reason), acted=False, why=unquoted(why))


def _drain_as_json(drain: Drain) -> dict[str, Any]:
    return {"broker": drain.registration.broker, **_CODEC.fields_as_json(drain)}


def _drain_of(content: dict[str, Any]) -> Drain:
    known = _CODEC.fields_of(Drain, content)
    ends_s = known.pop("ends_s")
    drain = Drain(**known)
    drain.ends_s.extend(ends_s)
    return drain


_CODEC = DataclassCodec(
    (
        *OUTCOMES,
        *(Signal.TIME, Signal.CHANGED, DrainPlanned, MoveEnded, TriedToEnd),
        *(GiveAway, BringHome, BeginMove, WithdrawMove, EndDrain, EndReturn),
    ),
    {Plan: Conversion(_plan_as_json, _plan_of), Verdict: Conversion(_verdict_as_json, _verdict_of)},
    omitted=("because",),
)
