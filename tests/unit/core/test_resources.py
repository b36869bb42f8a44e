from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.domain.resources import ResourceWeights, UsedResources, percent_of
from loadmanager.core.model.load import percent_usage, weighted_max_usage

AMOUNTS = st.floats() | st.sampled_from([0.0, -1.0, 30.0, 100.0, 1e-46, 1e-300, 1e300])
USAGES = st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=5, max_size=5)


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@given(AMOUNTS, AMOUNTS)
def test_percent_of_equals_percent_usage(usage: float, limit: float) -> None:
    assert same(percent_of(usage, limit), float(percent_usage(usage, limit)))


@given(USAGES, st.tuples(*[st.floats(0, 10)] * 4))
def test_equal_to_arrays(usage: list[tuple[float, float]], factors: tuple[float, float, float, float]) -> None:
    percent = percent_usage(np.array(usage)[:, 0], np.array(usage)[:, 1])
    used, weights = UsedResources.of(usage), ResourceWeights(*factors)
    assert same(used.most_weighted(weights), float(weighted_max_usage(percent, weights)))


def test_percent_of_has_32_bit_precision() -> None:
    assert 30 < percent_of(30, 100) < 30.00001
    assert percent_of(30, 0) == 0
