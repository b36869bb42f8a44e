"""Significance of measured differences between two alternatives, lower is better.

    the interval of the mean difference, one less the other      shows
    -----------------------------------------------------------  --------------------------------------------------
    of fewer than five pairs                                     NOTHING: it may be any of the others
    wholly within the margin, to both sides                      EQUAL: whatever it is, it does not matter
    wholly below 0                                               BETTER: the one is
    wholly above 0                                               WORSE
    any other                                                    NOTHING

So missing data never shows equality (equivalence is shown by two one-sided tests), and a certain difference too small
to matter is equal. The pipeline's league of configurations uses it, and the back-test of forecasts, on which Level's
profiles depend.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

FEWEST_PAIRS = 5


class Significance(enum.StrEnum):
    BETTER = "better"
    EQUAL = "equal"
    WORSE = "worse"
    NOTHING = "nothing"


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
            return Significance.NOTHING
        if max(-self.low, self.high) <= margin:
            return Significance.EQUAL
        if self.high < 0:
            return Significance.BETTER
        return Significance.WORSE if self.low > 0 else Significance.NOTHING
