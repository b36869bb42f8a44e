"""How uneven load lies, as one number: what is above a target heat, and its square, of all brokers and resources.

What lies below the target costs nothing, so that no more moves than has to. The sum is convex, so that two brokers
which are both a bit too hot are better than one that is too hot by as much. Every resource counts by itself, and a
broker by its part of what all have.

By the **usual** scale a move has to pay: half of the load that it takes along has to be a gain, a quarter while some
broker is much too hot; all is, when it leaves a broker that stays above the target for one that stays below. Where
nothing pays any more, what is **left over** counts for more: its square 5 times, then 50 times, and less is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.model.load import FloatArray
from loadmanager.core.strategies.level.hysteresis import MUCH


@dataclass(frozen=True, slots=True)
class Scale:
    """What the square of what is above the target counts for, and what part of what moves has to be a gain."""

    square: float
    pays: float
    pays_in_need: float

    def least_gain(self, heat: FloatArray) -> float:
        """By how much the score has to be less for a unit of cost, when heat is such (M, R): the share of one of M
        brokers at the level is 1 / M, and its heat 1.
        """
        return (self.pays_in_need if heat.max(initial=0.0) >= MUCH else self.pays) * len(heat)


USUAL = Scale(square=1.0, pays=0.5, pays_in_need=0.25)
LEFT_OVER = (
    Scale(square=5.0, pays=0.3, pays_in_need=0.15),
    Scale(square=50.0, pays=0.3, pays_in_need=0.15),
)


def badness(heat: FloatArray, target: float, scale: Scale = USUAL) -> FloatArray:
    """The same shape: what each of these heats, usage over the level, adds to the score."""
    above = np.maximum(heat - target, 0.0)
    return np.asarray(above + scale.square * above * above)


def part_of(per_need: FloatArray) -> FloatArray:
    """(M, R): how large each broker is of each resource beside the mean; 0 of one that is known of nobody."""
    having = np.divide(1.0, per_need, out=np.zeros_like(per_need), where=per_need > 0)
    return np.asarray(np.divide(having, having.mean(axis=0), out=np.zeros_like(having), where=having > 0))


def score(heat: FloatArray, part: FloatArray, target: float, scale: Scale = USUAL) -> float:
    """Of heats (M, R) of brokers that are so large (M, R); 0 when nothing is above the target."""
    return float((part * badness(heat, target, scale)).sum())
