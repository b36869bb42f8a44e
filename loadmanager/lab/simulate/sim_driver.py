"""Driver of state machines in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from loadmanager.core.protocol.signals import Signal
from loadmanager.core.protocol.state_machine import Machine
from loadmanager.lab.simulate.agenda import Agenda

_Event = TypeVar("_Event")
_Instruction = TypeVar("_Instruction")


class SimDriver(Generic[_Event, _Instruction]):
    """Steps a machine. `do` does what it says, and gives what came of that if it is known at once; `wake` is called at
    the time at which it wants to be stepped by itself.
    """

    def __init__(
        self,
        agenda: Agenda,
        machine: Machine[_Event | Signal, _Instruction],
        do: Callable[[_Instruction], _Event | None],
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._agenda = agenda
        self._machine = machine
        self._do = do
        self._wake = wake or partial(self.step, Signal.TIME)
        self._alarm_s: float | None = None

    def step(self, event: _Event | Signal) -> None:
        for instruction in self._machine.step(event, self._agenda.now_s):
            following = self._do(instruction)
            if following is not None:
                self.step(following)
        wake_s = self._machine.wake_s
        if wake_s is not None and wake_s != self._alarm_s:
            self._alarm_s = wake_s
            self._agenda.put(wake_s, partial(self._ring, wake_s))

    def _ring(self, alarm_s: float) -> None:
        if alarm_s == self._alarm_s:  # no other was set since
            self._alarm_s = None
            self._wake()
