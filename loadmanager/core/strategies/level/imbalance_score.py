"""Imbalance score: excess above a target heat, and its square, summed over all brokers and resources.

Load below the target adds nothing, so no more is moved than needed. The sum is convex: two slightly hot brokers score
better than one that is twice as hot. Each resource is weighted by the broker's part of all capacity.

On the **usual** scale a move must gain at least half of the moved load, or a quarter while some broker is urgent. It
gains all of it if the source stays above the target and the destination below. If no move gains enough, the scales for
the **left-over** excess follow: its square is weighted 5 times, then 50 times, and the minimum gain is smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.model.load import FloatArray
from loadmanager.core.strategies.level.hysteresis import URGENT_HEAT


@dataclass(frozen=True, slots=True)
class Scale:
    """Weight of the squared excess, and the minimum gain per moved load, usually and while a broker is urgent."""

    square: float
    pays: float
    pays_in_need: float

    def least_gain(self, heat: FloatArray) -> float:
        """Return the minimum gain of score per unit of cost at these heats (M, R); one of M brokers at the level has
        share 1 / M and heat 1.
        """
        return (self.pays_in_need if heat.max(initial=0.0) >= URGENT_HEAT else self.pays) * len(heat)


USUAL = Scale(square=1.0, pays=0.5, pays_in_need=0.25)
LEFT_OVER = (
    Scale(square=5.0, pays=0.3, pays_in_need=0.15),
    Scale(square=50.0, pays=0.3, pays_in_need=0.15),
)


def penalty(heat: FloatArray, target: float, scale: Scale = USUAL) -> FloatArray:
    """Return the contribution of each heat to the score, in the same shape."""
    above = np.maximum(heat - target, 0.0)
    return np.asarray(above + scale.square * above * above)


def compute_parts(per_need: FloatArray) -> FloatArray:
    """Return the capacity of each broker relative to the mean (M, R); 0 where none is known."""
    having = np.divide(1.0, per_need, out=np.zeros_like(per_need), where=per_need > 0)
    return np.asarray(np.divide(having, having.mean(axis=0), out=np.zeros_like(having), where=having > 0))


def score(heat: FloatArray, part: FloatArray, target: float, scale: Scale = USUAL) -> float:
    """Return the score of heats (M, R) of brokers with these capacities (M, R); 0 if none is above the target."""
    return float((part * penalty(heat, target, scale)).sum())
