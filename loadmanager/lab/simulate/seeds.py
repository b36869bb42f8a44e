"""Random generators: one seed for a run, and an independent stream for each purpose.

What is drawn is whole numbers and uniform fractions, and what is made of them is made by arithmetic that IEEE 754 fixes
to the last bit: the functions of libm and of vectorised numpy (`exp`, `sin`, normal variates) differ between machines.
"""

from __future__ import annotations

import enum

import numpy as np


class Purpose(enum.IntEnum):
    """Purpose of a random stream. The numbers are part of what a seed means: append new ones."""

    PLANNER = 0
    REPORTS = 1
    LOADS = 2
    NOISE = 3
    TOPICS = 4
    FLEET = 5
    DRIFT = 6
    BURSTS = 7


def generator(seed: int, purpose: Purpose, *more: int) -> np.random.Generator:
    """The generator for a purpose, the child of the seed's sequence with this number; `more` tells apart many."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(purpose, *more))))
