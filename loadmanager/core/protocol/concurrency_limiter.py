"""Concurrency limiter: a global and a per-broker limit, both changeable at run time.

Tasks that need the same broker, as source or destination, run first come, first served. A task that waits for a busy
broker does not delay tasks of other brokers, and no later task overtakes it at its second broker.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

from loadmanager.core.domain.names import BrokerId

_Brokers = frozenset[BrokerId]

Who = TypeVar("Who")
"""Type of the tasks; any hashable."""


class ConcurrencyLimiter(Generic[Who]):
    """Concurrency limiter. `limits` returns the global and the per-broker limit, and is called at each `give`."""

    def __init__(self, limits: Callable[[], tuple[int, int]]) -> None:
        self._limits = limits
        self._numbers = count()
        self._waiting: dict[Who, tuple[int, _Brokers]] = {}
        self._having: dict[Who, _Brokers] = {}
        self._busy: Counter[BrokerId] = Counter()
        self._queues: dict[_Brokers, deque[Who]] = {}
        self._heads: list[tuple[int, _Brokers]] = []
        """Arrival number of the head of each queue, sorted. Cancelled heads are removed lazily."""
        self._given_within: tuple[int, int] | None = None
        """The limits of the last complete `give`, None once a task has come or gone."""

    @property
    def taken(self) -> int:
        """Return the number of permits in use."""
        return len(self._having)

    def wait(self, who: Who, brokers: _Brokers) -> None:
        """Join the end of the queue."""
        assert who not in self._waiting, "it waits already"
        assert who not in self._having, "it has its turn"
        self._given_within = None
        self._waiting[who] = number, _ = next(self._numbers), brokers
        if brokers not in self._queues:
            self._queues[brokers] = deque()
            self._heads.append((number, brokers))
        self._queues[brokers].append(who)

    def have(self, who: Who, brokers: _Brokers) -> None:
        """Take a permit regardless of the limits, for work that has already begun."""
        self._having[who] = brokers
        self._busy.update(brokers)

    def end(self, who: Who) -> None:
        """Release the permit, or leave the queue. Does nothing for an unknown task."""
        self._given_within = None
        brokers = self._having.pop(who, None)
        if brokers is None:
            self._waiting.pop(who, None)  # its place in the queue is passed over
            return
        for broker in brokers:
            self._busy[broker] -= 1
            if not self._busy[broker]:
                del self._busy[broker]

    def give(self) -> list[Who]:
        """Grant permits as far as the limits allow, and return the tasks that got one, first come first served."""
        limits = most, most_per_broker = self._limits()
        given: list[Who] = []
        if limits == self._given_within:
            return given
        self._given_within = limits
        spoken_for: set[BrokerId] = set()
        place = 0
        while place < len(self._heads) and self.taken < most:
            known = _, brokers = self._heads[place]
            head = self._first_of(brokers)
            if head != known:
                self._replace_head(place, head)
            elif any(broker in spoken_for or self._busy[broker] >= most_per_broker for broker in brokers):
                spoken_for |= brokers
                place += 1
            else:
                who = self._queues[brokers].popleft()
                del self._waiting[who]
                self._having[who] = brokers
                self._busy.update(brokers)
                given.append(who)
                self._replace_head(place, self._first_of(brokers))
        return given

    def _replace_head(self, place: int, head: tuple[int, _Brokers] | None) -> None:
        """Replace the head of a queue by its next entry, or remove an empty queue."""
        del self._heads[place]
        if head is not None:
            insort(self._heads, head, key=lambda each: each[0])

    def _first_of(self, brokers: _Brokers) -> tuple[int, _Brokers] | None:
        """Return the queue's head as its sort key, (arrival number, brokers); None if the queue is empty."""
        queue = self._queues[brokers]
        while queue and queue[0] not in self._waiting:
            queue.popleft()
        if not queue:
            del self._queues[brokers]
            return None
        number, _ = self._waiting[queue[0]]
        return number, brokers
