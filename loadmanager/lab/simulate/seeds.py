"""Random generators: one seed for a run, and an independent stream for each purpose.

Only integers and uniform fractions are drawn. They are used only in arithmetic for which IEEE 754 defines the exact
result: functions of libm and of vectorised numpy (`exp`, `sin`, normal variates) differ between machines.
"""

from __future__ import annotations

import enum

import numpy as np


class Purpose(enum.IntEnum):
    """Purpose of a random stream. The numbers must not change, or a seed gives other results: append new ones."""

    PLANNER = 0
    REPORTS = 1
    LOADS = 2
    NOISE = 3
    TOPICS = 4
    FLEET = 5
    DRIFT = 6
    BURSTS = 7


def generator(seed: int, purpose: Purpose, *more: int) -> np.random.Generator:
    """Return the generator for a purpose, a child of the seed's sequence; `more` distinguishes several per purpose."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(purpose, *more))))
