"""Whose turn it is: so many at a time in all, and so many that concern one broker, where the limits may change.

Of those who need the same broker, whether it gives or gets a bundle, the first to come is the first to go. Those who
wait for a busy broker hold up nobody who does not need it, and nobody overtakes them on their other broker.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

from loadmanager.core.names import BrokerId

_Brokers = frozenset[BrokerId]

Who = TypeVar("Who")
"""Whatever waits for its turn; told apart by identity or equality, as it pleases."""


class Turns(Generic[Who]):
    """`limits` gives the number in all and the number per broker; they are asked anew whenever turns are given."""

    def __init__(self, limits: Callable[[], tuple[int, int]]) -> None:
        self._limits = limits
        self._numbers = count()
        self._waiting: dict[Who, tuple[int, _Brokers]] = {}
        self._having: dict[Who, _Brokers] = {}
        self._busy: Counter[BrokerId] = Counter()
        self._queues: dict[_Brokers, deque[Who]] = {}

    @property
    def taken(self) -> int:
        """How many have their turn."""
        return len(self._having)

    def wait(self, who: Who, brokers: _Brokers) -> None:
        """Come to the end of the queue."""
        assert who not in self._waiting, "it waits already"
        assert who not in self._having, "it has its turn"
        self._waiting[who] = next(self._numbers), brokers
        self._queues.setdefault(brokers, deque()).append(who)

    def have(self, who: Who, brokers: _Brokers) -> None:
        """Have a turn at once, whatever the limits: it was begun already."""
        self._having[who] = brokers
        self._busy.update(brokers)

    def end(self, who: Who) -> None:
        """Leave, whether it waits or has its turn; nothing if it does neither."""
        brokers = self._having.pop(who, None)
        if brokers is None:
            self._waiting.pop(who, None)  # its place in the queue is passed over
            return
        for broker in brokers:
            self._busy[broker] -= 1
            if not self._busy[broker]:
                del self._busy[broker]

    def give(self) -> list[Who]:
        """Those whose turn has come, in the order in which they came; they have it from now on."""
        most, most_per_broker = self._limits()
        given: list[Who] = []
        if self.taken >= most:
            return given
        first = [self._first_of(brokers) for brokers in list(self._queues)]
        heads = [head for head in first if head is not None]
        heapq.heapify(heads)
        spoken_for: set[BrokerId] = set()
        while heads and self.taken < most:
            _, brokers = heapq.heappop(heads)
            if any(broker in spoken_for or self._busy[broker] >= most_per_broker for broker in brokers):
                spoken_for |= brokers
                continue
            who = self._queues[brokers].popleft()
            del self._waiting[who]
            self._having[who] = brokers
            self._busy.update(brokers)
            given.append(who)
            head = self._first_of(brokers)
            if head is not None:
                heapq.heappush(heads, head)
        return given

    def _first_of(self, brokers: _Brokers) -> tuple[int, _Brokers] | None:
        """Who of those who need these brokers came first, as it is sorted; None when nobody is left."""
        queue = self._queues[brokers]
        while queue and queue[0] not in self._waiting:
            queue.popleft()
        if not queue:
            del self._queues[brokers]
            return None
        number, _ = self._waiting[queue[0]]
        return number, brokers
