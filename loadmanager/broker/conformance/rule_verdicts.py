"""Verdicts about a broker, what a rule needs, and the event log of a check."""

from __future__ import annotations

import enum
import time
from collections import deque
from dataclasses import dataclass, field

from loadmanager.errors import LoadManagerError


class RuleVerdict(enum.StrEnum):
    """Verdict about a rule. `NOT_JUDGED`: attempts proved nothing, as on a machine that is too slow."""

    KEPT = "kept"
    BROKEN = "broken"
    NOT_TESTED = "not tested"
    NOT_JUDGED = "not judged"
    DOES_NOT_APPLY = "does not apply"


class RuleRequirement(enum.StrEnum):
    """Requirement of a rule's test; the text is the fix."""

    PROBE = "needs --probe: nothing is opened without a client"
    PROCESS = "needs the broker's process on this machine: --start, or --pid"
    START = "needs --start: only what was started here is told to end"
    HANG = "needs --hang: a client that keeps the broker from closing its topic"


class BrokenError(LoadManagerError):
    """The broker has broken the rule; the message is the event that showed it."""


class UnsettledError(LoadManagerError):
    """The attempt proves nothing about the rule; the message says why. Try again."""


class LateError(UnsettledError):
    """The required action did not happen in time. If that repeats, the rule is broken."""


class NotApplicableError(LoadManagerError):
    """The rule does not apply to this broker; the message says why."""


_MOST_EVENTS = 40


def short(topic: str) -> str:
    """Return the topic's last part: all topics of a check have the same namespace."""
    return topic.rpartition("/")[2]


@dataclass(slots=True)
class EventLog:
    """Last events of one attempt at a rule."""

    _began_s: float = field(default_factory=time.monotonic)
    _events: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))

    def begin(self) -> None:
        self._began_s = time.monotonic()
        self._events.clear()

    def note(self, event: str) -> None:
        self._events.append(f"{time.monotonic() - self._began_s:8.3f} s  {event}")

    def events(self) -> tuple[str, ...]:
        return tuple(self._events)
