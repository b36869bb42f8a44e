"""Decision log of a leader: decisions and non-decisions, each with its reason and its numbers.

A non-decision that repeats the last one about the same subject is counted, not kept again: "broker b1 is below the
threshold", every minute for a week, is one entry.

Each entry has a place, by which a follower asks for later ones. An entry whose move is measured gets a new place; its
sequence number stays.

Steps of state machines are recorded too: each event, answer and action, and with a checkpoint the whole state. A replay
repeats them: see `wire.machines.step_form`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, ParamSpec, TypeVar

import orjson

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.planning.churn import AT_AN_OPERATORS_WORD
from loadmanager.core.planning.plan_effect import MoveEffect
from loadmanager.core.protocol.state_machine import Signal
from loadmanager.history.entry_rows import HistoryEvent, Json
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.util import clock
from loadmanager.wire.machines.step_form import Form, MachineCheckpoint, question, step_as_json

_KEPT = 2_000
"""Some hours of a busy cluster, in a few MiB; the history has the rest."""
_MOVES = ("unload", "would_unload")


@dataclass(slots=True)
class LoggedDecision:
    """Entry of the decision log. Times are epoch milliseconds; `times` counts consecutive repeats until `last_ms`.

    `round` is the number of the shedding round, of its summary and of its moves.
    """

    place: int
    sequence: int
    at_ms: int
    epoch: int
    kind: str
    subject: str
    reason: Reason
    acted: bool
    because: Sequence[Verdict] = ()
    source: str | None = None
    destination: str | None = None
    effect: MoveEffect | None = None
    round: int | None = None
    times: int = 1
    last_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "at": self.at_ms,
            "epoch": self.epoch,
            "kind": self.kind,
            "subject": self.subject,
            "reason": self.reason.value,
            "acted": self.acted,
            "sentence": ". ".join(verdict.sentence() for verdict in self.because),
            "why": {name: figure for verdict in self.because for name, figure in verdict.why.items()},
            "source": self.source,
            "destination": self.destination,
            "effect": None if self.effect is None else _effect_as_json(self.effect),
            "round": self.round,
            "times": self.times,
            "lastAt": self.last_ms,
        }


class DecisionLog:
    """Bounded decision log; `counts` counts every entry ever made by (kind, reason, acted)."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._decisions: deque[LoggedDecision] = deque(maxlen=kept)
        self._refrained: OrderedDict[tuple[str, str], LoggedDecision] = OrderedDict()
        self._sequence = 0
        self._place = 0
        self._last_round = (-1, 0)
        """Epoch and number of the last round."""
        self.counts: Counter[tuple[str, str, bool]] = Counter()

    def moved(
        self,
        kind: str,
        bundle: str,
        reason: Reason,
        *,
        epoch: int,
        source: Registration | None = None,
        destination: Registration | None = None,
        because: Sequence[Verdict] = (),
        effect: MoveEffect | None = None,
        acted: bool = True,
    ) -> None:
        """Log an assignment, or the begin, end or failure of an unload; `because` are the verdicts that led to it.

        `acted` is false for a move that a dry run, or a move guard, kept from being made.
        """
        entry = self._entry(kind, bundle, reason, epoch=epoch, acted=acted)
        entry.source = source.broker if source else None
        entry.destination = destination.broker if destination else None
        entry.because, entry.effect = because, effect
        epoch_of_round, number = self._last_round
        if kind in _MOVES and reason not in AT_AN_OPERATORS_WORD and epoch == epoch_of_round:
            entry.round = number
        self._decisions.append(entry)

    def measured(self, effect: MoveEffect) -> None:
        """Give the entries of a move a new place, now that its effect is measured, so that followers read them
        again.
        """
        for entry in self._decisions:
            if entry.effect is effect:
                entry.place = self._next_place()

    def stopped(self, subject: str, stops: Sequence[Verdict], *, epoch: int) -> None:
        """Log that move guards stopped a move of that bundle, or every move of the cluster."""
        self.judged("rail", replace(stops[0], subject=subject), epoch=epoch, because=stops)

    def judged(self, kind: str, verdict: Verdict, *, epoch: int, because: Sequence[Verdict] = ()) -> None:
        """Log a verdict of a round, and whether the round acted on it; `because` replaces the verdict where several led
        to it.
        """
        because = because or (verdict,)
        key = (kind, verdict.subject)
        last = self._refrained.get(key)
        if last is not None and not verdict.acted and last.reason is verdict.verdict and last.epoch == epoch:
            self.counts[kind, verdict.verdict.value, False] += 1
            last.times += 1
            last.last_ms = clock.now_ms()
            last.because = because
            self._refrained.move_to_end(key)
            return
        entry = self._entry(kind, verdict.subject, verdict.verdict, epoch=epoch, acted=verdict.acted)
        entry.because = because
        if kind == "round":
            entry.round = int(verdict.why["round"])
            self._last_round = (epoch, entry.round)
        if verdict.acted:
            self._refrained.pop(key, None)
            self._decisions.append(entry)
            return
        self._refrained[key] = entry
        self._refrained.move_to_end(key)
        while len(self._refrained) > self._kept:
            self._refrained.popitem(last=False)

    def recent(
        self,
        limit: int,
        subject: str | None = None,
        *,
        kinds: Collection[str] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the newest `limit` entries, newest first; with `subject` only those about that bundle or broker.

        `kinds`, unless empty, selects kinds. A repeated non-decision lasts from its first time to its last.
        """
        entries = [
            entry
            for entry in chain(self._decisions, self._refrained.values())
            if (subject is None or subject in (entry.subject, entry.source, entry.destination))
            and (not kinds or entry.kind in kinds)
            and (since_ms is None or entry.last_ms >= since_ms)
            and (until_ms is None or entry.at_ms < until_ms)
        ]
        entries.sort(key=lambda entry: (entry.last_ms, entry.sequence), reverse=True)
        return [entry.to_json() for entry in entries[:limit]]

    @property
    def place(self) -> int:
        """Place of the newest entry."""
        return self._place

    def later_than(self, place: int, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the last `limit` entries behind `place`, each with its place, oldest first."""
        if place >= self._place:
            return []
        later = [entry for entry in chain(self._decisions, self._refrained.values()) if entry.place > place]
        later.sort(key=lambda entry: entry.place)
        return [(entry.place, entry.to_json()) for entry in later[-limit:]]

    def _entry(self, kind: str, subject: str, reason: Reason, *, epoch: int, acted: bool) -> LoggedDecision:
        self._sequence += 1
        self.counts[kind, reason.value, acted] += 1
        now_ms = clock.now_ms()
        return LoggedDecision(
            self._next_place(), self._sequence, now_ms, epoch, kind, subject, reason, acted, last_ms=now_ms
        )

    def _next_place(self) -> int:
        self._place += 1
        return self._place


def _effect_as_json(effect: MoveEffect) -> dict[str, Any]:
    return {
        "predicted": _imbalances(effect.predicted),
        "measured": None if effect.measured is None else _imbalances(effect.measured),
        "measuredAt": effect.measured_at_ms,
        "load": effect.load,
        "source": effect.source,
        "destination": effect.destination,
    }


def _imbalances(before_after: tuple[float, float]) -> dict[str, float]:
    return dict(zip(("imbalanceBefore", "imbalanceAfter"), before_after, strict=True))


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
        recorder.machines[name] = self.checkpoint

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

    def checkpoint(self) -> MachineCheckpoint:
        """Return the whole state of the machine for a checkpoint; a reader that begins there knows no earlier
        answer.
        """
        self._write_last_look()
        self._answers.forget()
        return self._form.checkpoint()


def _as_text(body: dict[str, Any]) -> Json:
    """Encode a step at once: one string in the queue costs the garbage collector less than its many parts. What cannot
    be encoded is left to the writer, which may refuse it.
    """
    try:
        return orjson.dumps(body).decode()
    except orjson.JSONEncodeError:
        return body
