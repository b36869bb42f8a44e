"""Event log of a check: agent, broker and clients, in order."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

_MOST_EVENTS = 40


def short(topic: str) -> str:
    """A topic's last part: all topics of a check have the same namespace."""
    return topic.rpartition("/")[2]


@dataclass(slots=True)
class EventLog:
    """The last events of one try of a rule."""

    _began_s: float = field(default_factory=time.monotonic)
    _events: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))

    def begin(self) -> None:
        self._began_s = time.monotonic()
        self._events.clear()

    def note(self, event: str) -> None:
        self._events.append(f"{time.monotonic() - self._began_s:8.3f} s  {event}")

    def events(self) -> tuple[str, ...]:
        return tuple(self._events)
