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

Task = TypeVar("Task")
"""Type of the tasks; any hashable."""


class ConcurrencyLimiter(Generic[Task]):
    """Concurrency limiter. `limits` returns the global and the per-broker limit, and is called at each `give`."""

    def __init__(self, limits: Callable[[], tuple[int, int]]) -> None:
        self._limits = limits
        self._numbers = count()
        self._waiting: dict[Task, tuple[int, _Brokers]] = {}
        self._running: dict[Task, _Brokers] = {}
        self._busy: Counter[BrokerId] = Counter()
        self._queues: dict[_Brokers, deque[Task]] = {}
        self._heads: list[tuple[int, _Brokers]] = []
        """Arrival number of the head of each queue, sorted. Cancelled heads are removed lazily."""
        self._granted_within: tuple[int, int] | None = None
        """The limits of the last complete `give`, None once a task has come or gone."""

    @property
    def in_use(self) -> int:
        """Return the number of permits in use."""
        return len(self._running)

    def enqueue(self, task: Task, brokers: _Brokers) -> None:
        """Join the end of the queue."""
        assert task not in self._waiting, "it waits already"
        assert task not in self._running, "it has its turn"
        self._granted_within = None
        self._waiting[task] = number, _ = next(self._numbers), brokers
        if brokers not in self._queues:
            self._queues[brokers] = deque()
            self._heads.append((number, brokers))
        self._queues[brokers].append(task)

    def acquire(self, task: Task, brokers: _Brokers) -> None:
        """Take a permit regardless of the limits."""
        self._running[task] = brokers
        self._busy.update(brokers)

    def release(self, task: Task) -> None:
        """Release the permit, or leave the queue. Does nothing for an unknown task."""
        self._granted_within = None
        brokers = self._running.pop(task, None)
        if brokers is None:
            self._waiting.pop(task, None)  # its place in the queue is passed over
            return
        for broker in brokers:
            self._busy[broker] -= 1
            if not self._busy[broker]:
                del self._busy[broker]

    def grant(self) -> list[Task]:
        """Grant permits as far as the limits allow, and return the tasks that got one, first come first served."""
        limits = most, most_per_broker = self._limits()
        granted: list[Task] = []
        if limits == self._granted_within:
            return granted
        self._granted_within = limits
        reserved: set[BrokerId] = set()
        place = 0
        while place < len(self._heads) and self.in_use < most:
            known = _, brokers = self._heads[place]
            head = self._find_head(brokers)
            if head != known:
                self._replace_head(place, head)
            elif any(broker in reserved or self._busy[broker] >= most_per_broker for broker in brokers):
                reserved |= brokers
                place += 1
            else:
                task = self._queues[brokers].popleft()
                del self._waiting[task]
                self._running[task] = brokers
                self._busy.update(brokers)
                granted.append(task)
                self._replace_head(place, self._find_head(brokers))
        return granted

    def _replace_head(self, place: int, head: tuple[int, _Brokers] | None) -> None:
        """Replace the head of a queue by its next entry, or remove an empty queue."""
        del self._heads[place]
        if head is not None:
            insort(self._heads, head, key=lambda each: each[0])

    def _find_head(self, brokers: _Brokers) -> tuple[int, _Brokers] | None:
        """Return the queue's head as its sort key, (arrival number, brokers); None if the queue is empty."""
        queue = self._queues[brokers]
        while queue and queue[0] not in self._waiting:
            queue.popleft()
        if not queue:
            del self._queues[brokers]
            return None
        number, _ = self._waiting[queue[0]]
        return number, brokers
