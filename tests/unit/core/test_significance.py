from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.pipeline.paired import FEWEST_PAIRS, MeanDifference, Significance

MIRRORED = {Significance.BETTER: Significance.WORSE, Significance.WORSE: Significance.BETTER}
AMOUNTS = st.floats(-10, 10)


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (-0.3, -0.1, Significance.BETTER),
        (0.1, 0.3, Significance.WORSE),
        (-0.3, 0.3, Significance.INCONCLUSIVE),
        (-0.01, 0.3, Significance.INCONCLUSIVE),
        (-0.02, 0.02, Significance.EQUAL),
        (0.005, 0.01, Significance.EQUAL),  # certain, and too little to matter
        (0.0, 0.0, Significance.EQUAL),
    ],
)
def test_interval_has_one_significance(low: float, high: float, shown: Significance) -> None:
    assert MeanDifference((low + high) / 2, low, high, FEWEST_PAIRS).shows(0.02) is shown


def test_too_few_pairs_are_inconclusive() -> None:
    assert MeanDifference(0.0, 0.0, 0.0, FEWEST_PAIRS - 1).shows(0.02) is Significance.INCONCLUSIVE
    assert MeanDifference(0.5, None, None, 1).shows(0.02) is Significance.INCONCLUSIVE


@given(AMOUNTS, AMOUNTS, st.floats(0, 10), st.integers(1, 20))
def test_significance_is_symmetric_and_monotonic(one: float, other: float, margin: float, pairs: int) -> None:
    low, high = min(one, other), max(one, other)
    shown = MeanDifference((low + high) / 2, low, high, pairs).shows(margin)

    assert MeanDifference(-(low + high) / 2, -high, -low, pairs).shows(margin) is MIRRORED.get(shown, shown)
    if shown is Significance.INCONCLUSIVE:
        assert MeanDifference((low + high) / 2, low - 1, high + 1, pairs).shows(margin) is Significance.INCONCLUSIVE
