"""A clock that a test advances."""

from __future__ import annotations


class ManualClock:
    """Monotonic seconds, as `time.monotonic` gives them; it stands still until `advance`."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self._now_s = now_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        assert seconds >= 0
        self._now_s += seconds
