"""Health figures of a demo broker since the agent's last question."""

from __future__ import annotations

from collections import deque

import numpy as np

from loadmanager.broker import Health

_MOST_KEPT = 10_000
_PERCENTILE = 99


class Vitals:
    """Counts publishes: how long each took, of the last ones, and how many could not be taken."""

    def __init__(self) -> None:
        self._took_s: deque[float] = deque(maxlen=_MOST_KEPT)
        self._done = 0
        self._refused = 0

    def published(self, took_s: float, *, taken: bool) -> None:
        self._took_s.append(took_s)
        self._done += 1
        self._refused += not taken

    def take(self, waiting: int) -> Health:
        """Return the figures and reset them; `waiting` batches are not delivered yet."""
        took_s, done, refused = list(self._took_s), self._done, self._refused
        self._took_s.clear()
        self._done = self._refused = 0
        if not done:
            return Health(queue=waiting)
        latency_ms = 1000 * float(np.percentile(took_s, _PERCENTILE))
        return Health(latency_ms=latency_ms, error_share=refused / done, queue=waiting)
