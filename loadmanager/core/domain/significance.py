"""What measured differences show of two alternatives, of what the less is the better.

    the interval of the mean difference, one less the other      shows
    -----------------------------------------------------------  --------------------------------------------------
    of fewer than five pairs                                     NOTHING: it may be any of the others
    wholly within the margin, to both sides                      EQUAL: whatever it is, it does not matter
    wholly below 0                                               BETTER: the one is
    wholly above 0                                               WORSE
    any other                                                    NOTHING

So nothing is equal because too little was seen to tell (equivalence is shown by two one-sided tests), and what is
certain and too small to matter is equal. Configurations in the league of the pipeline go by it, forecasts in their
back-test, and by that the profiles that Level goes by.
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
    """One less the other: the mean over `pairs`, and the interval of that mean; None where no pairs can tell it."""

    mean: float
    low: float | None
    high: float | None
    pairs: int

    def shows(self, margin: float) -> Significance:
        """`margin` is the difference up to which it does not matter which of the two it is."""
        if self.low is None or self.high is None or self.pairs < FEWEST_PAIRS:
            return Significance.NOTHING
        if max(-self.low, self.high) <= margin:
            return Significance.EQUAL
        if self.high < 0:
            return Significance.BETTER
        return Significance.WORSE if self.low > 0 else Significance.NOTHING
