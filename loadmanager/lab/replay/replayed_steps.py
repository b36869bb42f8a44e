"""Replay of the recorded steps of a leader's state machines: each gets the recorded events, times and answers, and must
return the recorded actions. A machine that asks a question that was not recorded is a different one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

from loadmanager.core.protocol.drain_machine import DrainMachine
from loadmanager.core.protocol.move_machine import MoveMachine
from loadmanager.core.protocol.plan_machine import PlanMachine
from loadmanager.lab.replay.record_comparison import Mismatch, compare_value
from loadmanager.wire.machines.dataclass_codec import registration_of
from loadmanager.wire.machines.drain_codec import DrainsForm, wishes_of
from loadmanager.wire.machines.move_codec import MovesForm
from loadmanager.wire.machines.plan_codec import PlansForm
from loadmanager.wire.machines.step_form import Form, MachineCheckpoint, question

Ask = Callable[..., Callable[..., Any]]
"""Factory of recorded answers, by the name of a question; a decoder may follow, for answers that JSON cannot hold."""

MACHINES: dict[str, Callable[[Ask], Form[Any, Any]]] = {
    "moves": lambda ask: MovesForm(
        MoveMachine(ask("limits"), ask("deadline_s"), ask("is_registered"), ask("prepare_s"))
    ),
    "drains": lambda ask: DrainsForm(
        DrainMachine(
            ask("controls", wishes_of),
            ask("registration_of", registration_of),
            ask("process_of"),
            ask("owner_of", registration_of),
            ask("at_a_time"),
        )
    ),
    "plans": lambda ask: PlansForm(
        PlanMachine(ask("frozen"), ask("find_drift"), ask("version_of"), ask("at_a_time"), sys.maxsize)
    ),
}
"""By the name of each machine whose steps are recorded: a new one, in its form."""


class ReplayedSteps:
    """One machine, from a checkpoint on."""

    def __init__(self, name: str, checkpoint: MachineCheckpoint) -> None:
        self._name = name
        self._answers: dict[str, Any] = {}
        self._form = MACHINES[name](self._ask_for)
        self._form.restore(checkpoint)

    def step(self, body: Mapping[str, Any]) -> None:
        """Replay a step; raises `Mismatch` if its actions or its next wake-up differ."""
        form, content = self._form, body["event"]
        event, what = form.event_of(content), f"{self._name}.{content[0]}"
        subject = form.about(content)
        self._answers |= body.get("asked", {})
        try:
            to_do, wake_s = form.machine.step(event, body["atS"]), form.machine.wake_s
        except _NeverAskedError as error:
            raise Mismatch(subject, f"{what}: asked", None, str(error)) from None
        for recorded, action in zip_longest(body.get("do", ()), map(form.action_as_json, to_do)):
            if recorded != action:
                raise Mismatch(form.about(recorded or action), f"{what}: to do", recorded, action)
        compare_value(subject, f"{what}: to be woken at", body.get("wakeS"), wake_s)

    def compare(self, checkpoint: MachineCheckpoint) -> None:
        """Raise `Mismatch` unless it remembers what is in the checkpoint."""
        nothing: Mapping[str, Any] = {}
        for recorded, replayed in zip_longest(checkpoint, self._form.checkpoint(), fillvalue=nothing):
            both = {**replayed, **recorded}
            subject = next((both[key] for key in ("bundle", "broker", "plan") if key in both), "")
            for field in both:
                compare_value(subject, f"{self._name}.{field}", recorded.get(field), replayed.get(field))

    def _ask_for(self, name: str, read: Callable[[Any], Any] = lambda written: written) -> Callable[..., Any]:
        def answer(*about: object) -> Any:  # noqa: ANN401 - whatever was answered
            asked = question(name, about)
            if asked not in self._answers:
                raise _NeverAskedError(asked)
            return read(self._answers[asked])

        return answer


class _NeverAskedError(Exception):
    """Nothing is known of what a machine asks."""
