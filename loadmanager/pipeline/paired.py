"""Paired differences: their mean with its confidence interval, and its significance."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

from loadmanager.core.model.load import FloatArray

CONFIDENCE = 0.95


def interval(differences: Sequence[float] | FloatArray) -> MeanDifference:
    """Return their mean with Student's t-interval. Raises `ValueError` for none."""
    values = np.asarray(differences, dtype=np.float64)
    if not len(values):
        raise ValueError("differences: there are no pairs")
    mean = float(values.mean())
    if len(values) == 1:
        return MeanDifference(mean, None, None, 1)
    error = float(values.std(ddof=1)) / float(np.sqrt(len(values)))
    margin = _student(len(values) - 1) * error
    return MeanDifference(mean, mean - margin, mean + margin, len(values))


@lru_cache
def _student(freedom: int) -> float:
    return float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))


FEWEST_PAIRS = 5


class Significance(enum.StrEnum):
    """Significance of a measured difference between two alternatives, lower is better.

    Missing data never shows equality (equivalence is shown by two one-sided tests), and a certain difference too small
    to matter is equal. docs/pipeline.md has the rules, under "What is shown".
    """

    BETTER = "better"
    EQUAL = "equal"
    WORSE = "worse"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """Mean difference of two alternatives over `pairs`, and its confidence interval; None if unknown."""

    mean: float
    low: float | None
    high: float | None
    pairs: int

    def shows(self, margin: float) -> Significance:
        """Classify the difference; within `margin` it does not matter."""
        if self.low is None or self.high is None or self.pairs < FEWEST_PAIRS:
            return Significance.INCONCLUSIVE
        if max(-self.low, self.high) <= margin:
            return Significance.EQUAL
        if self.high < 0:
            return Significance.BETTER
        return Significance.WORSE if self.low > 0 else Significance.INCONCLUSIVE
