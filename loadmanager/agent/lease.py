"""Leases: the time for which a broker may serve without hearing from its agent.

The broker asks; the answer holds from the moment *before* it asked. So an answer that waited in a socket while the
broker was stopped is out of date by the broker's own clock, and no clock is ever compared with another one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

_CLOCK_DRIFT_RATIO = 0.01
"""How much slower than ours the broker's clock may run; time daemons slew a clock by 0.05 % at most."""


def lease_ms(now_s: float, session_valid_until_s: float, broker_lease_ms: int) -> int:
    """The lease to grant at `now_s`: never longer than the own session with the metadata store is certain to live.

    Both times are seconds on the same monotonic clock. 0 when nothing may be granted.
    """
    certain_ms = (session_valid_until_s - now_s) * 1000
    return int(max(0.0, min(broker_lease_ms, certain_ms)))


class Leases:
    """Grants leases, and knows when the last of them has lapsed at the broker, whatever became of the broker.

    A holder is a process that is known for certain to be who asked, and to share its lease with nobody: its leases end
    with it. All others (None) are over when they have lapsed. All times are seconds on the agent's monotonic clock.
    """

    def __init__(self, broker_lease_ms: int) -> None:
        self._broker_lease_ms = broker_lease_ms
        self._lapse_at_s: dict[Hashable | None, float] = {}
        self._last_granted_at_s: float | None = None

    @property
    def lapsed_at_s(self) -> float:
        """Time at which all leases granted so far have lapsed."""
        return max(self._lapse_at_s.values(), default=-math.inf)

    @property
    def last_granted_at_s(self) -> float | None:
        """Time of the last granted lease, which is a heartbeat of the broker."""
        return self._last_granted_at_s

    def grant(self, now_s: float, session_valid_until_s: float, holder: Hashable | None = None) -> int:
        """The lease in milliseconds from the moment the broker asked; 0 refuses it."""
        granted_ms = lease_ms(now_s, session_valid_until_s, self._broker_lease_ms)
        if granted_ms > 0:
            self._note(now_s, granted_ms, holder)
            self._last_granted_at_s = now_s
        return granted_ms

    def ended(self, holder: Hashable) -> None:
        """This holder has died: nobody is left to use what it was granted."""
        self._lapse_at_s.pop(holder, None)

    def assume_granted_by_predecessor(self, now_s: float, longest_lease_ms: int) -> None:
        """A former life of this agent may have granted its longest lease a moment ago."""
        self._note(now_s, longest_lease_ms, None)

    def _note(self, granted_at_s: float, granted_ms: int, holder: Hashable | None) -> None:
        lapse_at_s = granted_at_s + granted_ms / 1000 * (1 + _CLOCK_DRIFT_RATIO)
        self._lapse_at_s[holder] = max(self._lapse_at_s.get(holder, -math.inf), lapse_at_s)
