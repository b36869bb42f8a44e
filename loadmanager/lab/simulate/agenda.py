"""Event queue in virtual time. The clock stands still during an action, then jumps to the next one."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Agenda:
    """Things of one moment are done in the order in which they were put here. `now_s` is the moment."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def put(self, at_s: float, action: Callable[[], None]) -> None:
        """Have it done at that time, now if that is over."""
        heapq.heappush(self._entries, (max(at_s, self.now_s), self._count, action))
        self._count += 1

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.put(self.now_s + delay_s, action)

    def run_until(self, end_s: float) -> None:
        """Do everything up to that time, and make it the time."""
        while self._entries and self._entries[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._entries)
            action()
        self.now_s = end_s
