"""Exponential back-off with jitter."""

from __future__ import annotations

import random


def pause_s(
    chance: random.Random, failures: int, shortest_s: float, longest_s: float, *, at_least: float = 0.5
) -> float:
    """After so many failures in a row, at least one: `shortest_s`, twice that, and so on up to `longest_s`, of which it
    is any part from `at_least` on.
    """
    meant_s = min(shortest_s * 2.0 ** min(failures - 1, 30), longest_s)
    return meant_s * chance.uniform(at_least, 1.0)
