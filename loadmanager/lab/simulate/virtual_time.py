"""Virtual time: an event queue, and a driver of state machines that it wakes.

The clock stands still during an action, then jumps to the next one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from loadmanager.core.protocol.state_machine import Machine, Signal


class Agenda:
    """Event queue. Actions at the same time run in the order of their calls of `put`. `now_s` is the current time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def put(self, at_s: float, action: Callable[[], None]) -> None:
        """Schedule an action at that time, or now if the time has passed."""
        heapq.heappush(self._entries, (max(at_s, self.now_s), self._count, action))
        self._count += 1

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.put(self.now_s + delay_s, action)

    def run_until(self, end_s: float) -> None:
        """Run all actions up to that time, then set the clock to it."""
        while self._entries and self._entries[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._entries)
            action()
        self.now_s = end_s


_Event = TypeVar("_Event")
_Action = TypeVar("_Action")


class SimDriver(Generic[_Event, _Action]):
    """Steps a state machine. `do` executes an action, and returns the resulting event if it completes at once; `wake`
    is called at the machine's `wake_s`, by default to step it with `Signal.TIME`.
    """

    def __init__(
        self,
        agenda: Agenda,
        machine: Machine[_Event | Signal, _Action],
        do: Callable[[_Action], _Event | None],
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._agenda = agenda
        self._machine = machine
        self._do = do
        self._wake = wake or partial(self.step, Signal.TIME)
        self._alarm_s: float | None = None

    def step(self, event: _Event | Signal) -> None:
        for action in self._machine.step(event, self._agenda.now_s):
            following = self._do(action)
            if following is not None:
                self.step(following)
        wake_s = self._machine.wake_s
        if wake_s is not None and wake_s != self._alarm_s:
            self._alarm_s = wake_s
            self._agenda.put(wake_s, partial(self._ring, wake_s))

    def _ring(self, alarm_s: float) -> None:
        if alarm_s == self._alarm_s:  # the alarm was not replaced
            self._alarm_s = None
            self._wake()
