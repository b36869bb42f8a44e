"""Mean of paired differences with its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import stats

from loadmanager.core.domain.significance import MeanDifference
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
