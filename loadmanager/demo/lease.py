"""The broker's lease: the right to serve anything at all, pulled from its agent, on the broker's own clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from loadmanager.wire.http import LeaseAnswer

Clock = Callable[[], float]


class Lease:
    """Valid from the moment of **asking** for as long as the answer says.

    A process that was stopped in between wakes up with an old answer in its socket; counted from the moment of asking
    that answer is as old as it really is.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.incarnation: int | None = None
        self.valid_until_s = -math.inf

    def is_valid(self) -> bool:
        return self._clock() < self.valid_until_s

    def renew(self, asked_at_s: float, answer: LeaseAnswer) -> None:
        self.incarnation = answer.incarnation
        self.valid_until_s = asked_at_s + answer.valid_for_ms / 1000

    def end(self) -> None:
        """The agent said that there is no lease."""
        self.valid_until_s = min(self.valid_until_s, self._clock())
