"""Processes in one Python process: an event loop in virtual time that runs each callback as the party it belongs to.

    running ──pause──▶ paused      nothing of it runs; what became due waits (SIGSTOP)
       ▲                  │
       └─────resume───────┘        all that waited runs, late: messages first, then timers, as in asyncio's loops
    running ──freeze──▶ frozen     paused, and its monotonic clock stands still (its machine is suspended)
    running or paused ──kill──▶ dead: nothing of it runs ever again (SIGKILL)

Which party a callback belongs to is in its context, which asyncio hands on from task to task. Callbacks of one party
run in the order in which they became ready, as in any event loop; whose turn it is among several is drawn. Each party
has a monotonic clock of its own, which runs a little fast or slow and began at some other time, and a boot-time clock
that counts suspensions as well. Time passes only when nobody has anything left to do, so a day takes as long as what
happens in it; but a party that stutters stands still, now and then, between two of its callbacks.

Hundreds of thousands of callbacks a second go through here: the loop has handles of its own, and no debug mode.
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
"""Duration of a callback: without any, a wait for rounded times might never end."""


class StuckError(Exception):
    """Nobody has anything to wait for, or callbacks call each other without end."""


class Party:
    """One process. `rate` is how fast its monotonic clock runs, `offset_s` what that shows at the beginning."""

    def __init__(self, name: str, host: str, rate: float = 1.0, offset_s: float = 0.0) -> None:
        self.name = name
        self.host = host
        self.rate = rate
        self.offset_s = offset_s
        self.is_paused = False
        self.is_dead = False
        self.stutter: tuple[float, float] | None = None
        """The share of its callbacks after which it stands still, and for how many seconds at most."""
        self.is_between = False
        """It stands still between two callbacks."""
        self.frozen_s = 0.0
        """For how long it was frozen in all; `frozen_at_s` is since when it is now."""
        self.frozen_at_s: float | None = None
        self.on_death: list[Callable[[], None]] = []
        self.ready: deque[_Handle] = deque()
        self.late_timers: list[_Handle] = []
        """Timers that became due while it was paused: they run after the messages that arrived meanwhile."""
        self.frozen_timers: list[_Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(_PARTY.set, self)

    @property
    def is_halted(self) -> bool:
        return self.is_paused or self.is_between

    def boottime_s(self, now_s: float) -> float:
        """Its clock that goes on while the machine is suspended."""
        return self.offset_s + now_s * self.rate

    def monotonic_s(self, now_s: float) -> float:
        """Its clock that stands still meanwhile."""
        awake_until_s = now_s if self.frozen_at_s is None else self.frozen_at_s
        return self.offset_s + (awake_until_s - self.frozen_s) * self.rate

    def world_s(self, monotonic_s: float) -> float:
        """The moment of the world at which its monotonic clock shows this, unless it is frozen until then."""
        return (monotonic_s - self.offset_s) / self.rate + self.frozen_s

    def __repr__(self) -> str:
        return self.name


_PARTY: ContextVar[Party] = ContextVar("party")


def current_party() -> Party | None:
    """Party of the running code; None for the world's own."""
    return _PARTY.get(None)


class _Handle:
    """A callback that is to run, in place of asyncio's own handles."""

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
    """The loop. `now_s` is the world's time, from 0 on; `time()` what the party that runs takes it for."""

    _stopping: bool

    def __init__(self, rng: random.Random, most_callbacks_a_second: int = 200_000) -> None:
        super().__init__()
        self.now_s = 0.0
        self.is_over = False
        """Set at the end: what is still asked of it is not done, and no mistake."""
        self.tasks: list[asyncio.Task[Any]] = []
        """All there have been: those of killed parties would else be collected, and so run once more, at any time."""
        self.set_task_factory(self._keep)  # type: ignore[arg-type]  # a stub that wants more of a factory
        self._rng = rng
        self._world = Party("world", "")
        self._busy: list[Party] = []
        """Those whose turn it may be: they have something ready, and are not paused."""
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
        """At a time by the clock of the party that is running now."""
        party = _PARTY.get(None)
        due_s = when if party is None else party.world_s(when)
        handle = self._later(due_s, callback, args, contextvars.copy_context() if context is None else context)
        if party is not None:
            handle.timer_of, handle.frozen_s = party, party.frozen_s
        return handle

    def as_party(self, party: Party, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        """Have the party run this after so many seconds of the world."""
        self._later(self.now_s + delay_s, callback, args, party.context)

    def _later(
        self, due_s: float, callback: Callable[..., object], args: tuple[object, ...], context: Context
    ) -> _Handle:
        handle = _Handle(due_s, callback, args, context)
        self._number += 1
        heapq.heappush(self._timers, (due_s, self._number, handle))
        return handle

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
        """A worker thread: it is done in one go, some time later."""
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
        """Let it go on, also if it was frozen."""
        party.is_paused = False
        if party.frozen_at_s is not None:
            self._thaw(party, self.now_s - party.frozen_at_s)
        self._go_on(party)

    def freeze(self, party: Party) -> None:
        """Pause it, together with its monotonic clock."""
        self.pause(party)
        party.frozen_at_s = self.now_s

    def _thaw(self, party: Party, frozen_s: float) -> None:
        """Timers are as late as the freeze was long: the clock that they go by did not count it."""
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
        """End it in the middle of whatever it does."""
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
        """It is ready: to be run once it is the turn of its party, which is not, if that is dead."""
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
        """Until the next timer; False when there is none."""
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
