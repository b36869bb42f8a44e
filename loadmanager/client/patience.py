"""How long to wait before the next try: longer each time, and by chance, so that thousands do not come at once."""

from __future__ import annotations

import random

_JITTER = 0.5


class Patience:
    """Waits of up to `shortest_s`, twice that, and so on up to `longest_s`; each of them is any part of that."""

    def __init__(self, chance: random.Random, shortest_s: float, longest_s: float) -> None:
        self._chance = chance
        self._shortest_s = self._bound_s = shortest_s
        self._longest_s = longest_s

    def next_s(self) -> float:
        bound_s, self._bound_s = self._bound_s, min(2 * self._bound_s, self._longest_s)
        return self._chance.uniform(0.0, bound_s)

    def begin_anew(self) -> None:
        self._bound_s = self._shortest_s


def pause_s(chance: random.Random, failures: int, shortest_s: float, longest_s: float) -> float:
    """After so many failures in a row, at least one: at least half of what is meant."""
    meant_s = min(shortest_s * 2.0 ** min(failures - 1, 30), longest_s)
    return meant_s * chance.uniform(_JITTER, 1.0)
