"""Processes in one Python process: an event loop in virtual time that runs each callback as the party it belongs to.

    running ──pause──▶ paused      nothing of it runs; what became due waits (SIGSTOP)
       ▲                  │
       └─────resume───────┘        all that waited runs, late
    running or paused ──kill──▶ dead: nothing of it runs ever again (SIGKILL)

Which party a callback belongs to is in its context, which asyncio hands on from task to task. Callbacks of one party
run in the order in which they became ready, as in any event loop; whose turn it is among several is drawn. Each party
has a monotonic clock of its own, which runs a little fast or slow and began at some other time. Time passes only when
nobody has anything left to do, so a day takes as long as what happens in it.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any

_LONGEST_RUN = 3
"""Callbacks of one party in a row, at most."""

_THREAD_S = 0.02
"""How long work in a worker thread takes, at most."""

_CALLBACK_S = 2e-6
"""How long a callback takes: without any, rounded times could be waited for for ever."""


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
        self.on_death: list[Callable[[], None]] = []
        self.ready: deque[events.Handle] = deque()
        self.context = contextvars.copy_context()
        self.context.run(_PARTY.set, self)

    def local_s(self, at_s: float) -> float:
        """What its clock shows at a moment of the world."""
        return self.offset_s + at_s * self.rate

    def world_s(self, local_s: float) -> float:
        """The moment of the world at which its clock shows this."""
        return (local_s - self.offset_s) / self.rate

    def __repr__(self) -> str:
        return self.name


_PARTY: ContextVar[Party] = ContextVar("party")


def current_party() -> Party | None:
    """Whose code is running; None for the world's own."""
    return _PARTY.get(None)


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. `now_s` is the world's time, from 0 on; `time()` what the party that runs takes it for."""

    _ready: deque[events.Handle]
    """Where `call_soon` puts what is to be run."""
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
        self._busy: dict[Party, None] = {}
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._number = 0
        self._most_a_second = most_callbacks_a_second
        self._second, self._in_second = 0, 0

    def time(self) -> float:
        party = _PARTY.get(None)
        return self.now_s if party is None else party.local_s(self.now_s)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> events.TimerHandle:
        """At a time by the clock of the party that is running now."""
        party = _PARTY.get(None)
        due_s = when if party is None else party.world_s(when)
        timer = events.TimerHandle(due_s, callback, args, self, context)
        self._number += 1
        heapq.heappush(self._timers, (due_s, self._number, timer))
        return timer

    def as_party(self, party: Party, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        """Have the party run this after so many seconds of the world."""
        timer = events.TimerHandle(self.now_s + delay_s, callback, args, self, party.context)
        self._number += 1
        heapq.heappush(self._timers, (self.now_s + delay_s, self._number, timer))

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> events.Handle:
        return self.call_soon(callback, *args, context=context)

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

    def resume(self, party: Party) -> None:
        party.is_paused = False

    def kill(self, party: Party) -> None:
        """End it in the middle of whatever it does."""
        party.is_dead = True
        party.ready.clear()
        self._busy.pop(party, None)
        for told in party.on_death:
            told()

    def _run_once(self) -> None:
        while not self._stopping:
            self._sort_ready()
            running = [party for party in self._busy if not party.is_paused]
            if running:
                party = running[0] if len(running) == 1 else self._rng.choice(running)
                self._run_some(party)
            elif not self._let_time_pass():
                raise StuckError("nobody has anything to do, or to wait for")
        self._sort_ready()

    def _run_some(self, party: Party) -> None:
        for _ in range(self._rng.randint(1, _LONGEST_RUN)):
            if not party.ready:
                break
            handle = party.ready.popleft()
            if not handle.cancelled():
                self._in_second += 1
                self.now_s += _CALLBACK_S
                handle._run()
                if self._stopping or self._ready:
                    break
        if not party.ready:
            self._busy.pop(party, None)
        if int(self.now_s) != self._second:
            self._second, self._in_second = int(self.now_s), 0
        if self._in_second > self._most_a_second:
            raise StuckError(f"{self._in_second} callbacks within {self._second} s, the last ones of {party}")

    def _sort_ready(self) -> None:
        """To each party what has become ready of it."""
        ready = self._ready
        while ready:
            handle = ready.popleft()
            party: Party = handle._context.get(_PARTY, self._world)  # type: ignore[attr-defined]
            if party.is_dead:
                continue
            self._busy[party] = None
            party.ready.append(handle)

    def _let_time_pass(self) -> bool:
        """Until the next timer; False when there is none."""
        while self._timers:
            due_s, _, timer = heapq.heappop(self._timers)
            if timer.cancelled():
                continue
            self.now_s = max(self.now_s, due_s)
            self._ready.append(timer)
            return True
        return False

    def _check_closed(self) -> None:
        if not self.is_over:
            super()._check_closed()  # type: ignore[misc]  # BaseEventLoop has it

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """Found when its time comes."""
