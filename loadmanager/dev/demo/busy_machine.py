"""Detection of CPU starvation: the demo's processes wait for a processor instead of using one.

Linux tells how long a process was ready to run and was not (`/proc/<pid>/schedstat`). Elsewhere nothing is known, and
no machine is too busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

TOO_BUSY = "this machine is too busy"
_STARVED = 0.25
"""A process that waits for this part of the time does not keep up."""
_LOOKS = 10
_NS_PER_S = 1e9


def waited_s(pid: int) -> float | None:
    """Return how long the process has waited for a processor so far; None if unknown."""
    try:
        _, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return int(waited_ns) / _NS_PER_S


class ProcessorWait:
    """Fraction of the time that the processes have waited for a processor, over the last samples."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Mapping[int, float]]] = deque(maxlen=_LOOKS + 1)

    def look(self, pids: Iterable[int], now_s: float) -> float | None:
        """The mean over the processes that were there all the time; None before there were enough looks."""
        self._looks.append((now_s, {pid: waited for pid in pids if (waited := waited_s(pid)) is not None}))
        (then_s, before), (_, now) = self._looks[0], self._looks[-1]
        both = before.keys() & now.keys()
        if len(self._looks) <= _LOOKS or not both or now_s <= then_s:
            return None
        return sum(now[pid] - before[pid] for pid in both) / len(both) / (now_s - then_s)

    def is_too_much(self, pids: Iterable[int], now_s: float) -> bool:
        part = self.look(pids, now_s)
        return part is not None and part >= _STARVED
