"""Whose turn it is: so many at a time in all, and so many that concern one broker, where the limits may change.

Of those who need the same broker, whether it gives or gets a bundle, the first to come is the first to go. Those who
wait for a busy broker hold up nobody who does not need it, and nobody overtakes them on their other broker.
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
"""Whatever waits for its turn; told apart by identity or equality, as it pleases."""


class ConcurrencyLimiter(Generic[Who]):
    """`limits` gives the number in all and the number per broker; they are asked anew whenever turns are given."""

    def __init__(self, limits: Callable[[], tuple[int, int]]) -> None:
        self._limits = limits
        self._numbers = count()
        self._waiting: dict[Who, tuple[int, _Brokers]] = {}
        self._having: dict[Who, _Brokers] = {}
        self._busy: Counter[BrokerId] = Counter()
        self._queues: dict[_Brokers, deque[Who]] = {}
        self._heads: list[tuple[int, _Brokers]] = []
        """When the first of each queue came, in that order; one that has left since is there until it is looked at."""
        self._given_within: tuple[int, int] | None = None
        """The limits within which all turns are given, None once somebody has come or gone."""

    @property
    def taken(self) -> int:
        """How many have their turn."""
        return len(self._having)

    def wait(self, who: Who, brokers: _Brokers) -> None:
        """Come to the end of the queue."""
        assert who not in self._waiting, "it waits already"
        assert who not in self._having, "it has its turn"
        self._given_within = None
        self._waiting[who] = number, _ = next(self._numbers), brokers
        if brokers not in self._queues:
            self._queues[brokers] = deque()
            self._heads.append((number, brokers))
        self._queues[brokers].append(who)

    def have(self, who: Who, brokers: _Brokers) -> None:
        """Have a turn at once, whatever the limits: it was begun already."""
        self._having[who] = brokers
        self._busy.update(brokers)

    def end(self, who: Who) -> None:
        """Leave, whether it waits or has its turn; nothing if it does neither."""
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
        """Those whose turn has come, in the order in which they came; they have it from now on."""
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
        """The queue whose first was there has another first, who came later, or nobody."""
        del self._heads[place]
        if head is not None:
            insort(self._heads, head, key=lambda each: each[0])

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
