"""What a machine's steps leave in the history, without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

import pytest
from hypothesis.stateful import RuleBasedStateMachine, rule

from loadmanager.history.entry_rows import HistoryEvent, encode_json
from loadmanager.lab.replay.record_comparison import Mismatch
from loadmanager.lab.replay.replayed_steps import ReplayedSteps
from loadmanager.leader.audit.decision_log import RecordedAnswers, RecordedMachine
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.wire.machines.step_form import Form, MachineCheckpoint


class Leading(Protocol):
    """A machine with what it looks at: `noting` is given all that it asks with; `make_step` makes its steps."""

    make_step: Any


_Leader = TypeVar("_Leader", bound=Leading)


class Tape(HistoryRecorder):
    """Keeps the bodies of all rows of one machine, as the history would have them."""

    def __init__(self, machine: str, *, is_recording: bool = True) -> None:
        super().__init__()
        self.machine = machine
        self._is_recording = is_recording
        self.bodies: list[Any] = []

    def put(self, entry: Any, _: int | None = None) -> int:  # noqa: ANN401 - any entry
        assert isinstance(entry, HistoryEvent)
        assert (entry.kind, entry.subject) == ("stepped", self.machine)
        self.bodies.append(as_read(entry.body))
        return len(self.bodies)

    def machine_checkpoint(self) -> MachineCheckpoint:
        found: MachineCheckpoint = as_read(self.machines[self.machine]())
        return found


def record(
    tape: Tape,
    lead: Callable[..., _Leader],
    form_of: Callable[[_Leader], Form[Any, Any]],
    **values: Any,  # noqa: ANN401 - any field
) -> _Leader:
    """A leader with these values, of whose machine the tape has each step."""
    answers = RecordedAnswers(tape)
    leader = lead(noting=answers.noting, **values)
    leader.make_step = RecordedMachine(tape.machine, form_of(leader), answers, tape).step
    return leader


def as_read(body: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    return json.loads(encode_json(body) or "null")


def replayed(tape: Tape) -> ReplayedSteps:
    """All of the tape, made again from the beginning."""
    again = ReplayedSteps(tape.machine, [])
    for body in tape.bodies:
        again.step(body)
    return again


def difference(tape: Tape) -> tuple[str, str, Any, Any]:
    """Difference in the replay: subject, field, and both values."""
    with pytest.raises(Mismatch) as found:
        replayed(tape)
    mismatch = found.value
    return mismatch.subject, mismatch.field, mismatch.recorded, mismatch.replayed


class Checkpoints:
    """The checkpoints of a tape at any moment, and at the end a replay from the beginning and from each of them."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._taken: list[tuple[int, MachineCheckpoint]] = [(0, [])]

    def take(self) -> None:
        checkpoint = self._tape.machine_checkpoint()
        self._taken.append((len(self._tape.bodies), checkpoint))

    def replay(self) -> None:
        self.take()
        for number, (first, begins) in enumerate(self._taken):
            again, at = ReplayedSteps(self._tape.machine, begins), first
            for until, checkpoint in self._taken[number + 1 :]:
                for body in self._tape.bodies[at:until]:
                    again.step(body)
                again.compare(checkpoint)
                at = until


class RecordedInAnyOrder(RuleBasedStateMachine):
    """Record the random events of the other base class for its `machine`, with checkpoints in between."""

    machine: ClassVar[str]
    recorded: ClassVar[Callable[..., Any]]

    def new_leader(self, **values: Any) -> Any:  # noqa: ANN401 - the leader of that machine, with any field
        tape = Tape(self.machine)
        self.checkpoints = Checkpoints(tape)
        return self.recorded(tape, **values)

    @rule()
    def checkpoint(self) -> None:
        self.checkpoints.take()

    def teardown(self) -> None:
        super().teardown()
        self.checkpoints.replay()
