"""Driver of passive state machines: steps, timers, and waiting callers."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.ownership import IllegalTransitionError, Ownership
from loadmanager.core.protocol.state_machine import Machine, Signal, Write, WriteEnded, do_all
from loadmanager.errors import LoadManagerError
from loadmanager.leader.election.ownership_ledger import OwnershipLedger
from loadmanager.util.timed_wait import wait_at_most

_Event = TypeVar("_Event")
_Action = TypeVar("_Action")
_What = TypeVar("_What", bound=Hashable)
_Result = TypeVar("_Result")


class MachineDriver(Generic[_Event, _Action]):
    """Steps a state machine. `do` executes an action, or returns a coroutine that returns the resulting event."""

    def __init__(
        self,
        machine: Machine[_Event | Signal, _Action],
        do: Callable[[_Action], Coroutine[Any, Any, _Event] | None],
    ) -> None:
        self._machine = machine
        self._do = do
        self._stepped = asyncio.Event()
        self._work: asyncio.TaskGroup
        self._context: contextvars.Context

    def step(self, event: _Event | Signal) -> None:
        try:
            do_all(self._machine.step(event, time.monotonic()), self._begin)
        finally:
            self._stepped.set()

    async def run(self) -> None:
        """Step the machine with TIME when it is due, for as long as the term lasts."""
        self._context = contextvars.copy_context()  # of the term, not of the request that woke it
        async with asyncio.TaskGroup() as self._work:
            while True:
                self.step(Signal.TIME)
                self._stepped.clear()  # earlier events were handled by this step
                due_s = self._machine.wake_s
                await wait_at_most(self._stepped, None if due_s is None else max(0.0, due_s - time.monotonic()))

    def _begin(self, action: _Action) -> None:
        work = self._do(action)
        if work is None:
            return
        task = self._work.create_task(self._finish(work), context=self._context.copy())
        # A task that is cancelled before it begins never awaits the coroutine.
        task.add_done_callback(lambda _: work.close())

    async def _finish(self, work: Coroutine[Any, Any, _Event]) -> None:
        self.step(await work)


class Waiters(Generic[_What, _Result]):
    """Futures of callers that wait for an outcome; each caller has its own, and may be cancelled."""

    def __init__(self) -> None:
        self._futures: dict[_What, list[asyncio.Future[_Result]]] = {}

    def __contains__(self, what: _What) -> bool:
        return what in self._futures

    def future(self, what: _What) -> asyncio.Future[_Result]:
        """Return a new future of its outcome."""
        future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(what, []).append(future)
        return future

    def resolve(self, what: _What, result: _Result | Exception) -> None:
        for future in self._futures.pop(what, ()):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
                future.exception()  # retrieved here: nobody may be waiting any more
            else:
                future.set_result(result)

    def fail_all(self, error: Exception) -> None:
        for what in list(self._futures):
            self.resolve(what, error)


async def write(ledger: OwnershipLedger, action: Write) -> WriteEnded:
    """Have the ledger commit the transitions; a failure of the write becomes the outcome of each bundle."""
    ranges = {bundle: BundleRange.parse(bundle.rpartition("/")[2]) for bundle in action.transitions}
    transitions = {own: action.transitions[bundle] for bundle, own in ranges.items()}
    made: dict[BundleRange, Ownership | Exception]
    try:
        made = await ledger.apply_all(action.namespace, transitions, action.reason)
    except (LoadManagerError, IllegalTransitionError) as error:
        made = dict.fromkeys(transitions, error)
    return WriteEnded(action, {bundle: made[own] for bundle, own in ranges.items()})
