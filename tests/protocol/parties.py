"""Simulated processes: an event loop in virtual time that runs each callback as its party.

    running ──pause──▶ paused      nothing of it runs; what became due waits (SIGSTOP)
       ▲                  │
       └─────resume───────┘        all that waited runs, late: messages first, then timers, as in asyncio's loops
    running ──freeze──▶ frozen     paused, and its monotonic clock stands still (its machine is suspended)
    running or paused ──kill──▶ dead: nothing of it runs ever again (SIGKILL)

The context of a callback names its party; asyncio copies it from task to task. Callbacks of one party run in order of
readiness, as in any event loop; the next party is drawn. Each party has its own monotonic clock, with drift and offset,
and a boot-time clock that includes suspensions. Time passes only when no callback is ready. A stuttering party halts at
random between two of its callbacks.

For speed (hundreds of thousands of callbacks a second) the loop has its own handles and no debug mode.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any

_THREAD_S = 0.02
"""Longest duration of work in a worker thread."""

_CALLBACK_S = 2e-6
"""Duration of a callback; with 0 a wait for a rounded time might never end."""


class StuckError(Exception):
    """No party has anything to wait for, or callbacks call each other without end."""


class Party:
    """One process. `rate` and `offset_s` are the speed and the start value of its monotonic clock."""

    def __init__(self, name: str, host: str, rate: float = 1.0, offset_s: float = 0.0) -> None:
        self.name = name
        self.host = host
        self.rate = rate
        self.offset_s = offset_s
        self.is_paused = False
        self.is_dead = False
        self.stutter: tuple[float, float] | None = None
        """Share of callbacks after which it halts, and the longest halt in seconds."""
        self.is_between = False
        """True while it halts between two callbacks."""
        self.frozen_s = 0.0
        """Total time frozen; `frozen_at_s` is the start of the current freeze."""
        self.frozen_at_s: float | None = None
        self.on_death: list[Callable[[], None]] = []
        self.ready: deque[_Handle] = deque()
        self.late_timers: list[_Handle] = []
        """Timers that became due during a pause; they run after messages that arrived meanwhile."""
        self.frozen_timers: list[_Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(_PARTY.set, self)

    @property
    def is_halted(self) -> bool:
        return self.is_paused or self.is_between

    def boottime_s(self, now_s: float) -> float:
        """Return its clock that includes suspensions."""
        return self.offset_s + now_s * self.rate

    def monotonic_s(self, now_s: float) -> float:
        """Return its clock that stops during suspensions."""
        awake_until_s = now_s if self.frozen_at_s is None else self.frozen_at_s
        return self.offset_s + (awake_until_s - self.frozen_s) * self.rate

    def world_s(self, monotonic_s: float) -> float:
        """Return the world's time at which its monotonic clock shows this, if it is not frozen until then."""
        return (monotonic_s - self.offset_s) / self.rate + self.frozen_s

    def __repr__(self) -> str:
        return self.name


_PARTY: ContextVar[Party] = ContextVar("party")


def current_party() -> Party | None:
    """Party of the running code; None for the world's own."""
    return _PARTY.get(None)


class _Handle:
    """A scheduled callback; replaces asyncio's handles."""

    __slots__ = ("args", "callback", "context", "due_s", "frozen_s", "is_cancelled", "timer_of")

    def __init__(
        self, due_s: float, callback: Callable[..., object], args: tuple[object, ...], context: Context
    ) -> None:
        self.due_s = due_s
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False
        self.timer_of: Party | None = None
        self.frozen_s = 0.0
        """Time for which its party had been frozen when it was set."""

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. `now_s` is the world's time, starting at 0; `time()` is the clock of the running party."""

    _stopping: bool

    def __init__(self, rng: random.Random, most_callbacks_a_second: int = 200_000) -> None:
        super().__init__()
        self.now_s = 0.0
        self.is_over = False
        """Set at the end: later calls are ignored without an error."""
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks so far. Tasks of killed parties would otherwise be garbage-collected, which resumes them."""
        self.set_task_factory(self._keep)  # type: ignore[arg-type]  # a stub that wants more of a factory
        self._rng = rng
        self._world = Party("world", "")
        self._busy: list[Party] = []
        """Parties with a ready callback that are not paused."""
        self._timers: list[tuple[float, int, _Handle]] = []
        self._number = 0
        self._most_a_second = self._left = most_callbacks_a_second
        self._second = 0

    def time(self) -> float:
        party = _PARTY.get(None)
        return self.now_s if party is None else party.monotonic_s(self.now_s)

    def boottime(self) -> float:
        """Virtual time that continues while the party is frozen."""
        party = _PARTY.get(None)
        return self.now_s if party is None else party.boottime_s(self.now_s)

    def call_soon(self, callback: Callable[..., object], *args: object, context: Context | None = None) -> _Handle:  # type: ignore[override]  # as good as asyncio's
        handle = _Handle(0.0, callback, args, contextvars.copy_context() if context is None else context)
        self._take(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_later(  # type: ignore[override]  # as good as asyncio's
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # as good as asyncio's
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Handle:
        """Schedule a callback by the clock of the running party."""
        party = _PARTY.get(None)
        due_s = when if party is None else party.world_s(when)
        handle = self._later(due_s, callback, args, contextvars.copy_context() if context is None else context)
        if party is not None:
            handle.timer_of, handle.frozen_s = party, party.frozen_s
        return handle

    def as_party(self, party: Party, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        """Run a callback as this party after `delay_s` seconds of the world."""
        self._later(self.now_s + delay_s, callback, args, party.context)

    def _later(
        self, due_s: float, callback: Callable[..., object], args: tuple[object, ...], context: Context
    ) -> _Handle:
        handle = _Handle(due_s, callback, args, context)
        self._number += 1
        heapq.heappush(self._timers, (due_s, self._number, handle))
        return handle

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
        """Simulate a worker thread: run the function at once, after a random delay."""
        del executor
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is for who waits
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._rng.uniform(0.0, _THREAD_S), work)
        return future

    def _keep(self, _: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401 - asyncio's
        task = asyncio.Task(work, loop=self, **options)
        self.tasks.append(task)
        return task

    def pause(self, party: Party) -> None:
        party.is_paused = True
        self._halt(party)

    def resume(self, party: Party) -> None:
        """Resume a paused or frozen party."""
        party.is_paused = False
        if party.frozen_at_s is not None:
            self._thaw(party, self.now_s - party.frozen_at_s)
        self._go_on(party)

    def freeze(self, party: Party) -> None:
        """Pause a party together with its monotonic clock."""
        self.pause(party)
        party.frozen_at_s = self.now_s

    def _thaw(self, party: Party, frozen_s: float) -> None:
        """End a freeze and delay timers by its length, as their clock did not count it."""
        party.frozen_s += frozen_s
        party.frozen_at_s = None
        for handle in party.frozen_timers:
            self._put_off(handle, party)
        party.frozen_timers.clear()

    def _put_off(self, handle: _Handle, party: Party) -> None:
        handle.due_s += party.frozen_s - handle.frozen_s
        handle.frozen_s = party.frozen_s
        self._number += 1
        heapq.heappush(self._timers, (handle.due_s, self._number, handle))

    def _halt(self, party: Party) -> None:
        if party in self._busy:
            self._busy.remove(party)

    def _go_on(self, party: Party) -> None:
        if party.is_halted or party.is_dead:
            return
        party.ready.extend(party.late_timers)
        party.late_timers.clear()
        if party.ready and party not in self._busy:
            self._busy.append(party)

    def _stand_still(self, party: Party, longest_s: float) -> None:
        def end() -> None:
            party.is_between = False
            self._go_on(party)

        party.is_between = True
        self._halt(party)
        self._later(self.now_s + self._rng.uniform(0.0, longest_s), end, (), self._world.context)

    def kill(self, party: Party) -> None:
        """Kill a party at once."""
        self.pause(party)
        party.is_dead = True
        party.ready.clear()
        party.late_timers.clear()
        for told in party.on_death:
            told()

    def _run_once(self) -> None:
        busy = self._busy
        while not self._stopping:
            if busy:
                self._run_next(busy[int(self._rng.random() * len(busy))] if len(busy) > 1 else busy[0])
            elif not self._let_time_pass():
                raise StuckError("nobody has anything to do, or to wait for")

    def _run_next(self, party: Party) -> None:
        handle = party.ready.popleft()
        if not party.ready:
            self._busy.remove(party)
        if handle.is_cancelled:
            return
        self.now_s += _CALLBACK_S
        self._left -= 1
        if not self._left:
            raise StuckError(f"{self._most_a_second} callbacks within {self._second} s, the last ones of {party}")
        try:
            handle.context.run(handle.callback, *handle.args)
        except Exception as error:  # noqa: BLE001 - as asyncio's loops do
            self.call_exception_handler({"message": f"in {handle.callback}", "exception": error})
        if party.stutter is not None and self._rng.random() < party.stutter[0]:
            self._stand_still(party, party.stutter[1])

    def _take(self, handle: _Handle) -> None:
        """Queue a ready callback at its party, unless that is dead."""
        party = handle.context.get(_PARTY, self._world)
        if party.is_dead:
            return
        if party.is_halted and handle.timer_of is party:
            party.late_timers.append(handle)
            return
        if not party.ready and not party.is_halted:
            self._busy.append(party)
        party.ready.append(handle)

    def _let_time_pass(self) -> bool:
        """Advance time to the next timer; return false if there is none."""
        while self._timers:
            due_s, _, handle = heapq.heappop(self._timers)
            if handle.is_cancelled or self._is_put_off(handle):
                continue
            self.now_s = max(self.now_s, due_s)
            if int(self.now_s) != self._second:
                self._second, self._left = int(self.now_s), self._most_a_second
            self._take(handle)
            return True
        return False

    def _is_put_off(self, handle: _Handle) -> bool:
        """Return true if the timer is delayed because its party is, or was, frozen."""
        party = handle.timer_of
        if party is None:
            return False
        if party.frozen_at_s is not None:
            party.frozen_timers.append(handle)
            return True
        if party.frozen_s > handle.frozen_s:
            self._put_off(handle, party)
            return True
        return False

    def _check_closed(self) -> None:
        if not self.is_over:
            super()._check_closed()  # type: ignore[misc]  # BaseEventLoop has it
