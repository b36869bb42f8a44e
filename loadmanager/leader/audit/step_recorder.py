"""Recorder of state machine steps: each event, answer and action, and with a checkpoint the whole state. A replay
repeats the steps: see `wire.machines.step_form`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import orjson

from loadmanager.core.protocol.state_machine import Signal
from loadmanager.history.entry_rows import HistoryEvent, Json
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.wire.machines.step_form import Form, Image, question, step_as_json

_Event = TypeVar("_Event")
_Action = TypeVar("_Action")
_About = ParamSpec("_About")
_Answer = TypeVar("_Answer")


class RecordedAnswers:
    """Answers that a state machine received, without repeats of the same answer to the same question."""

    def __init__(self, recorder: HistoryRecorder) -> None:
        self._recorder = recorder
        self._last: dict[tuple[object, ...], object] = {}
        self._new: dict[tuple[object, ...], object] = {}
        self._as_json: dict[object, Callable[[Any], Any]] = {}

    def noting(
        self, name: str, ask: Callable[_About, _Answer], as_json: Callable[[_Answer], Any] | None = None
    ) -> Callable[_About, _Answer]:
        """Wrap a question so that its answers are noted under this name; `as_json` encodes answers that JSON cannot
        hold.
        """
        if as_json is not None:
            self._as_json[name] = as_json

        def answered(*about: _About.args, **more: _About.kwargs) -> _Answer:
            answer = ask(*about, **more)
            if self._recorder.is_recording:
                self._note((name, *about), answer)
            return answer

        return answered

    def _note(self, key: tuple[object, ...], answer: object) -> None:
        if key not in self._last or self._last[key] != answer:
            self._last[key] = self._new[key] = answer

    def take(self) -> dict[str, Any]:
        """Return the answers since the last call, and clear them."""
        new, self._new = self._new, {}
        return {question(str(name), about): self._write(name, answer) for (name, *about), answer in new.items()}

    def _write(self, name: object, answer: object) -> Any:  # noqa: ANN401 - whatever JSON can hold
        return self._as_json[name](answer) if name in self._as_json else answer

    def forget(self) -> None:
        """Forget the last answers, so that each one is new again."""
        self._last, self._new = {}, {}


class RecordedMachine(Generic[_Event, _Action]):
    """Steps a state machine, and records each step while this node leads. The machine asks through `answers`.

    A look is a step with TIME that leaves nothing to do. A look that the machine did not ask for is not recorded, and
    of several in a row with the same answers only the first and the last are: see `wire.machines.step_form`.
    """

    def __init__(
        self, name: str, form: Form[_Event, _Action], answers: RecordedAnswers, recorder: HistoryRecorder
    ) -> None:
        self._name = name
        self._form = form
        self._answers = answers
        self._recorder = recorder
        self._has_looked = False
        self._last_look: dict[str, Any] | None = None
        recorder.machines[name] = self.image

    def step(self, event: _Event, now_s: float) -> list[_Action]:
        form, machine = self._form, self._form.machine
        if not self._recorder.is_recording:
            return machine.step(event, now_s)
        said, was_due_s = form.event_as_json(event), machine.wake_s
        to_do, wake_s = machine.step(event, now_s), machine.wake_s
        is_look = event is Signal.TIME and not to_do
        if is_look and was_due_s is wake_s is None:
            return to_do
        actions, asked = [form.action_as_json(each) for each in to_do], self._answers.take()
        body = step_as_json(now_s, said, asked, actions, wake_s)
        if is_look and self._has_looked and not asked:
            self._last_look = body
            return to_do
        self._write_last_look()
        self._write(body)
        self._has_looked = is_look
        return to_do

    def _write_last_look(self) -> None:
        body, self._last_look = self._last_look, None
        if body is not None:
            self._write(body)

    def _write(self, body: dict[str, Any]) -> None:
        self._recorder.put(HistoryEvent("stepped", self._name, _as_text(body)))

    def image(self) -> Image:
        """Return the whole state of the machine for a checkpoint; a reader that begins there knows no earlier
        answer.
        """
        self._write_last_look()
        self._answers.forget()
        return self._form.image()


def _as_text(body: dict[str, Any]) -> Json:
    """Encode a step at once: one string in the queue costs the garbage collector less than its many parts. What cannot
    be encoded is left to the writer, which may refuse it.
    """
    try:
        return orjson.dumps(body).decode()
    except orjson.JSONEncodeError:
        return body
