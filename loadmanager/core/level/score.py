"""How uneven load lies, as one number: what is above a target heat, and its square, of all brokers and resources.

What lies below the target costs nothing, so that no more moves than has to. The sum is convex, so that two brokers
which are both a bit too hot are better than one that is too hot by as much. Every resource counts by itself, and a
broker by its part of what all have.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.load import FloatArray


def badness(heat: FloatArray, target: float) -> FloatArray:
    """The same shape: what each of these heats, usage over the level, adds to the score."""
    above = np.maximum(heat - target, 0.0)
    return np.asarray(above + above * above)


def part_of(per_need: FloatArray) -> FloatArray:
    """(M, R): how large each broker is of each resource beside the mean; 0 of one that is known of nobody."""
    having = np.divide(1.0, per_need, out=np.zeros_like(per_need), where=per_need > 0)
    return np.asarray(np.divide(having, having.mean(axis=0), out=np.zeros_like(having), where=having > 0))


def score(heat: FloatArray, part: FloatArray, target: float) -> float:
    """Of heats (M, R) of brokers that are so large (M, R); 0 when nothing is above the target."""
    return float((part * badness(heat, target)).sum())
