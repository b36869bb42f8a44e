"""Delays of messages of stores in memory: random, by a seed that each test has (`--store-seeds`)."""

from __future__ import annotations

import random
from collections.abc import Callable

from support.memory_store import MemoryCluster

from loadmanager.util.clock import now_s

TURNS = (1, 1, 1, 2, 3, 5, 8, 20)
"""Turns of the event loop: mostly few, sometimes so many that a whole HTTP request comes in between."""


class Seed:
    """The seed of the test that runs."""

    value = 1


def drawn_turns() -> Callable[[], int]:
    """Source of the delays of a `MemoryCluster`."""
    chance = random.Random(Seed.value)
    return lambda: chance.choice(TURNS)


def a_memory_cluster(clock: Callable[[], float] = now_s) -> MemoryCluster:
    """A cluster in memory that takes its time, by default on the clock that nodes look at."""
    return MemoryCluster(clock, drawn_turns())
