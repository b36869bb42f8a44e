"""Codec of moves: each has a number, which refers to it after it was wanted or resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from loadmanager.core.diagnosis.reason_catalogue import reason_of
from loadmanager.core.domain.ownership import FREE, OwnershipState, Registration, Stamp
from loadmanager.core.protocol.move_machine import (
    Action,
    AskOwner,
    CalledOff,
    CallOff,
    Cancel,
    Commit,
    Committed,
    Ended,
    Event,
    Failed,
    Kept,
    Move,
    Moved,
    MoveMachine,
    NotCommitted,
    Outcome,
    OwnerAnswered,
    Phase,
    Prepare,
    Prepared,
    Resume,
    StopAsking,
    Unanswered,
    Want,
)
from loadmanager.core.protocol.state_machine import Signal
from loadmanager.wire.checkpoint_codec import owned_as_json, owned_of
from loadmanager.wire.machines.step_form import Image, registration_as_json, registration_of

_ABOUT_A_MOVE: dict[str, type[Cancel | Prepared]] = {"Cancel": Cancel, "Prepared": Prepared}
_NO_STAMP = Stamp(0, 0, "")


class MovesForm:
    """Codec of the steps of `machine`."""

    def __init__(self, machine: MoveMachine) -> None:
        self.machine = machine
        self._numbers: dict[Move, int] = {}
        self._by_number: dict[int, Move] = {}
        self._next = count(1)

    def event_as_json(self, event: Event) -> list[Any]:
        if isinstance(event, Signal):
            return [event.name]
        return [type(event).__name__, *self._said_by(event)]

    def event_of(self, content: Sequence[Any]) -> Event:
        event: Event
        match content:
            case ["Want", number, *plan]:
                event = Want(self._meet(number, Move(*_planned(*plan))))
            case ["Resume", number, *plan, released]:
                event = Resume(self._meet(number, Move(*_planned(*plan), released=owned_of(released))))
            case ["CallOff", numbers, why]:
                event = CallOff({self._find(number) for number in numbers}.__contains__, why)
            case ["Cancel" | "Prepared" as name, number]:
                event = _ABOUT_A_MOVE[name](self._find(number))
            case ["Committed", number, stored]:
                event = Committed(self._find(number), owned_of(stored))
            case ["NotCommitted", number, error]:
                event = NotCommitted(self._find(number), RuntimeError(error))
            case ["Unanswered", number, stored, error]:
                event = Unanswered(self._find(number), _known(owned_of, stored), RuntimeError(error))
            case ["OwnerAnswered", number, refusal, *how]:
                event = OwnerAnswered(self._find(number), refusal, is_final=how == ["for good"])
            case ["TIME" | "MEMBERSHIP" as name]:
                event = Signal[name]
            case _:
                raise ValueError(f"an event of moves that is not known: {content}")
        return event

    def action_as_json(self, action: Action) -> list[Any]:
        number = self._number(action.move)
        match action:
            case Commit(move, _, reason):
                return ["Commit", number, *_written(action), reason]
            case Prepare(_, patience_s) | AskOwner(_, patience_s):
                return [type(action).__name__, number, patience_s]
            case StopAsking():
                return ["StopAsking", number]
            case Ended(move, outcome):
                self._numbers.pop(move, None)
                return ["Ended", number, *outcome_as_json(outcome)]

    def about(self, content: Sequence[Any]) -> str:
        """Return the bundle."""
        _, number = (*content, None)[:2]
        return self._find(number).bundle if isinstance(number, int) else ""

    def image(self) -> Image:
        self._numbers = {move: self._numbers.get(move) or next(self._next) for move in self.machine.known}
        return [_move_as_json(number, move) for move, number in self._numbers.items()]

    def restore(self, image: Image) -> None:
        self.machine.restore(self._meet(each["move"], _move_of(each)) for each in image)

    def _said_by(self, event: Event) -> list[Any]:
        said: list[Any] = []
        match event:
            case Want(move):
                said = [self._name(move), *_plan_of(move)]
            case Resume(move):
                said = [self._name(move), *_plan_of(move), owned_as_json(move.get_released())]
            case CallOff(is_meant, why):
                waiting = (move for move in self.machine.known if move.phase in {Phase.WAITING, Phase.PREPARING})
                said = [[self._number(move) for move in waiting if is_meant(move)], why]
            case Cancel(move) | Prepared(move):
                said = [self._number(move)]
            case Committed(move, stored):
                said = [self._number(move), owned_as_json(stored)]
            case NotCommitted(move, error):
                said = [self._number(move), str(error)]
            case Unanswered(move, stored, error):
                said = [self._number(move), _known(owned_as_json, stored), str(error)]
            case OwnerAnswered(move, refusal, is_final):
                said = [self._number(move), refusal, *(["for good"] if is_final else [])]
        return said

    def _name(self, move: Move) -> int:
        number = self._numbers[move] = next(self._next)
        return number

    def _number(self, move: Move) -> int | None:
        """Return the number of a move; None for one that is over but still gets an event."""
        return self._numbers.get(move)

    def _meet(self, number: int, move: Move) -> Move:
        self._numbers[move], self._by_number[number] = number, move
        return move

    def _find(self, number: int | None) -> Move:
        known = None if number is None else self._by_number[number]
        return known or Move("", None, None, "", phase=Phase.ENDED)


def _known(read: Callable[[Any], Any], value: object) -> Any:  # noqa: ANN401 - whatever is read
    """Decode the value with `read`; None of None."""
    return None if value is None else read(value)


def _plan_of(move: Move) -> list[Any]:
    return [move.bundle, registration_as_json(move.owner), registration_as_json(move.destination), move.reason]


def _planned(
    bundle: str, owner: list[Any] | None, destination: list[Any] | None, reason: str
) -> tuple[str, Registration | None, Registration | None, str]:
    return bundle, registration_of(owner), registration_of(destination), reason


def _written(action: Commit) -> list[Any]:
    """Return the state to be written, and its owner, or the destination of a release."""
    move = action.move
    if move.released is None:
        return [str(OwnershipState.RELEASING), registration_as_json(move.destination)]
    end = action.transition(move.released, _NO_STAMP)
    return [str(end.state), registration_as_json(end.owner)]


def outcome_as_json(outcome: Outcome) -> list[Any]:
    match outcome:
        case Moved(done):
            return ["Moved", done.version]
        case Kept(kept, reason, refusal):
            return ["Kept", kept.version, reason.value, refusal]
        case CalledOff(why):
            return ["CalledOff", why]
        case Failed(error):
            return ["Failed", str(error)]


def outcome_of(content: Sequence[Any]) -> Outcome:
    """Decode an outcome, with the written part of the record."""
    match content:
        case ["Moved", version]:
            return Moved(replace(FREE, version=version))
        case ["Kept", version, reason, refusal]:
            return Kept(replace(FREE, version=version), reason_of(reason), refusal)
        case ["CalledOff", why]:
            return CalledOff(why)
        case _:
            return Failed(RuntimeError(content[1]))


def _move_as_json(number: int, move: Move) -> dict[str, Any]:
    bundle, owner, destination, reason = _plan_of(move)
    return {
        "move": number,
        "bundle": bundle,
        "owner": owner,
        "destination": destination,
        "reason": reason,
        "phase": move.phase.name,
        "released": _known(owned_as_json, move.released),
        "refusal": move.refusal,
        "deadlineS": move.deadline_s,
        "refusals": move.refusals,
        "wakeS": move.wake_s,
        "isCancelled": move.is_cancelled,
    }


def _move_of(content: dict[str, Any]) -> Move:
    return Move(
        *_planned(*(content[key] for key in ("bundle", "owner", "destination", "reason"))),
        phase=Phase[content["phase"]],
        released=_known(owned_of, content["released"]),
        refusal=content["refusal"],
        deadline_s=content["deadlineS"],
        refusals=content["refusals"],
        wake_s=content["wakeS"],
        is_cancelled=content["isCancelled"],
    )
