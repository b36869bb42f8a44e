"""Codec of moves: each has a number, which refers to it after it was wanted or resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from loadmanager.core.domain.ownership import OwnershipState, Stamp
from loadmanager.core.protocol.move_machine import (
    Action,
    AskOwner,
    CallOff,
    Cancel,
    Commit,
    Committed,
    Ended,
    Event,
    Move,
    MoveMachine,
    NotCommitted,
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
from loadmanager.wire.machines.dataclass_codec import OUTCOMES, Conversion, DataclassCodec, registration_as_json
from loadmanager.wire.machines.step_form import MachineCheckpoint

_EVENTS = (Signal.TIME, Signal.MEMBERSHIP, Cancel, Prepared, Committed, NotCommitted, Unanswered, OwnerAnswered)
_ACTIONS = (Prepare, AskOwner, StopAsking, Ended)
_NO_STAMP = Stamp(0, 0, "")


class MovesForm:
    """Codec of the steps of `machine`."""

    def __init__(self, machine: MoveMachine) -> None:
        self.machine = machine
        self._numbers: dict[Move, int] = {}
        self._by_number: dict[int, Move] = {}
        self._next = count(1)
        self._codec = DataclassCodec(
            (*OUTCOMES, *_EVENTS, *_ACTIONS),
            {Move: Conversion(self._numbers.get, self._find), Phase: Conversion(lambda phase: phase.name, _phase_of)},
        )

    def event_as_json(self, event: Event) -> list[Any]:
        match event:
            case Want(move) | Resume(move):
                self._numbers[move] = next(self._next)
                return [type(event).__name__, self._move_as_json(move)]
            case CallOff(is_meant, why):
                waiting = (move for move in self.machine.known if move.phase in {Phase.WAITING, Phase.PREPARING})
                return ["CallOff", [self._numbers.get(move) for move in waiting if is_meant(move)], why]
        found: list[Any] = self._codec.as_json(event)
        return found

    def event_of(self, content: Sequence[Any]) -> Event:
        event: Event
        match content:
            case ["Want", move]:
                event = Want(self._meet(move))
            case ["Resume", move]:
                event = Resume(self._meet(move))
            case ["CallOff", numbers, why]:
                event = CallOff({self._find(number) for number in numbers}.__contains__, why)
            case _:
                event = self._codec.event_of(content)
        return event

    def action_as_json(self, action: Action) -> list[Any]:
        if isinstance(action, Commit):
            return ["Commit", self._numbers.get(action.move), *_written(action), action.reason]
        found: list[Any] = self._codec.as_json(action)
        if isinstance(action, Ended):
            self._numbers.pop(action.move, None)
        return found

    def about(self, content: Sequence[Any]) -> str:
        """Return the bundle."""
        _, what = (*content, None)[:2]
        if isinstance(what, dict):
            return str(what["bundle"])
        return self._find(what).bundle if isinstance(what, int) else ""

    def checkpoint(self) -> MachineCheckpoint:
        known = {move: self._numbers.get(move) or next(self._next) for move in self.machine.known}
        self._numbers.clear()
        self._numbers.update(known)
        return [self._move_as_json(move) for move in self._numbers]

    def restore(self, checkpoint: MachineCheckpoint) -> None:
        self.machine.restore(map(self._meet, checkpoint))

    def _move_as_json(self, move: Move) -> dict[str, Any]:
        return {"move": self._numbers[move], **self._codec.fields_as_json(move)}

    def _meet(self, content: Mapping[str, Any]) -> Move:
        number, move = content["move"], Move(**self._codec.fields_of(Move, content))
        self._numbers[move], self._by_number[number] = number, move
        return move

    def _find(self, number: int | None) -> Move:
        known = None if number is None else self._by_number[number]
        return known or Move("", None, None, "", phase=Phase.ENDED)


def _phase_of(name: str) -> Phase:
    return Phase[name]


def _written(action: Commit) -> list[Any]:
    """Return the state to be written, and its owner, or the destination of a release."""
    move = action.move
    if move.released is None:
        return [str(OwnershipState.RELEASING), registration_as_json(move.destination)]
    end = action.transition(move.released, _NO_STAMP)
    return [str(end.state), registration_as_json(end.owner)]
