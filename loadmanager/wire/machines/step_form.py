"""Step of a state machine in the history: the event, the answers to the machine's questions, and its actions.

    {"atS": 81.25,                              the time it was stepped with, on the leader's monotonic clock
     "event": ["OwnerAnswered", 7, null],       its name, and what it says; 7 is a move that was wanted before
     "asked": {"is_registered b2:8080 (incarnation 31)": true},    answers that are not the same as the last time
     "do": [["Commit", 7, "Owned", ["b2:8080", 31], "admin_unload"]],     the actions, in the same way
     "wakeS": 81.45}                            when it wants to be stepped by itself

What is empty, or None, is left out. For its steps to be recorded and made again a machine needs a `Form`, a driver that
steps it by a `leader.audit.decision_log.RecordedMachine`, and a line in `lab.replay.replayed_steps.MACHINES`. What it
asks with takes what can be a key of a dictionary, and gives what JSON can hold, or what the driver says how to write.

Not every step with TIME is written, so a machine must be as it was after one that it did not want (`wakeS` is left out)
and that left nothing to do; and after several in a row, each answered the same, as if only the first and the last had
been made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from loadmanager.core.protocol.state_machine import Machine

_Event = TypeVar("_Event")
_Action = TypeVar("_Action")

MachineCheckpoint = list[dict[str, Any]]
"""State of a machine: the things that it follows, each by field name."""


class Form(Protocol[_Event, _Action]):
    """Codec of the events and actions of one state machine; it keeps the numbers that it has assigned."""

    @property
    def machine(self) -> Machine[_Event, _Action]: ...

    def event_as_json(self, event: _Event) -> list[Any]:
        """Encode the event, before the machine is stepped with it."""

    def event_of(self, content: Sequence[Any]) -> _Event:
        """Decode an event; raises `ValueError` for an unknown one."""

    def action_as_json(self, action: _Action) -> list[Any]:
        """Encode an action, right after its step."""

    def about(self, content: Sequence[Any]) -> str:
        """Return the subject of an event or an action, as the cluster names it; empty if it has none."""

    def checkpoint(self) -> MachineCheckpoint: ...

    def restore(self, checkpoint: MachineCheckpoint) -> None:
        """Restore a new machine from a checkpoint."""


def question(name: str, about: Sequence[object]) -> str:
    """Format a question of a machine: its name and its subjects."""
    return " ".join([name, *map(str, about)])


def name_in(content: Sequence[Any]) -> str:
    """Return the subject of an event or an action: its first argument, or the first part of that, if it is a name."""
    _, what = (*content, None)[:2]
    while isinstance(what, list) and what:
        what = what[0]
    return what if isinstance(what, str) else ""


def step_as_json(
    at_s: float,
    event: Sequence[Any],
    asked: Mapping[str, Any],
    to_do: Sequence[Sequence[Any]],
    wake_s: float | None,
) -> dict[str, Any]:
    said = {"atS": at_s, "event": event, "asked": asked, "do": to_do, "wakeS": wake_s}
    return {key: value for key, value in said.items() if value not in (None, {}, [])}
