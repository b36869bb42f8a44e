"""Turns for unloads: so many at a time in the cluster, and so many that concern one broker, where limits may change."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

from loadmanager.core.names import BrokerId
from loadmanager.errors import UnloadCancelledError

_Brokers = frozenset[BrokerId]


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    number: int
    bundle: str
    batch: object
    turn: asyncio.Future[None]

    @property
    def has_turn(self) -> bool:
        """Whether it was given its turn, which `cancel` takes from nobody who has it."""
        return self.turn.done() and not self.turn.cancelled() and self.turn.exception() is None


class Slots:
    """`limits` gives the number in all and the number per broker; they are asked anew whenever somebody comes or goes.

    Of those who need the same broker, whether it gives or gets the bundle, the first to come is the first to go. Those
    who wait for a busy broker hold up nobody who does not need it, and nobody overtakes them on their other broker.
    """

    def __init__(self, limits: Callable[[], tuple[int, int]]) -> None:
        self._limits = limits
        self._taken = 0
        self._busy: Counter[BrokerId] = Counter()
        self._queues: dict[_Brokers, deque[_Waiting]] = {}
        self._numbers = count()

    @asynccontextmanager
    async def turn(self, bundle: str, *brokers: BrokerId | None, batch: object = None) -> AsyncIterator[None]:
        """Wait for the bundle's turn and have it; `UnloadCancelledError` when it was cancelled while it waited, alone
        or with its batch.
        """
        needed = frozenset(broker for broker in brokers if broker is not None)
        waiting = _Waiting(next(self._numbers), bundle, batch, asyncio.get_running_loop().create_future())
        self._queues.setdefault(needed, deque()).append(waiting)
        self._give_turns()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting.has_turn:  # it came at the same moment
                self._end(needed)
            raise
        try:
            yield
        finally:
            self._end(needed)

    def cancel(self, bundle: str) -> bool:
        """Take the bundle out of the queue, and say whether it was in it."""
        return self._cancel(lambda waiting: waiting.bundle == bundle, "cancelled before it began")

    def cancel_batch(self, batch: object) -> None:
        """Take all that wait as this batch out of the queue."""
        self._cancel(lambda waiting: waiting.batch is batch, "called off before it began")

    def _cancel(self, is_meant: Callable[[_Waiting], bool], why: str) -> bool:
        found = [
            waiting
            for queue in self._queues.values()
            for waiting in queue
            if is_meant(waiting) and not waiting.turn.done()
        ]
        for waiting in found:
            waiting.turn.set_exception(UnloadCancelledError(f"{waiting.bundle}: {why}"))
        self._give_turns()
        return bool(found)

    def _end(self, brokers: _Brokers) -> None:
        self._taken -= 1
        for broker in brokers:
            self._busy[broker] -= 1
            if not self._busy[broker]:
                del self._busy[broker]
        self._give_turns()

    def _give_turns(self) -> None:
        most, most_per_broker = self._limits()
        if self._taken >= most:
            return
        first = [(queue[0].number, brokers) for brokers, queue in self._queues.items()]
        heapq.heapify(first)
        spoken_for: set[BrokerId] = set()
        while first and self._taken < most:
            _, brokers = heapq.heappop(first)
            queue = self._queues[brokers]
            if not queue[0].turn.done():
                if any(broker in spoken_for or self._busy[broker] >= most_per_broker for broker in brokers):
                    spoken_for |= brokers
                    continue
                self._taken += 1
                self._busy.update(brokers)
                queue[0].turn.set_result(None)
            queue.popleft()
            if queue:
                heapq.heappush(first, (queue[0].number, brokers))
            else:
                del self._queues[brokers]
