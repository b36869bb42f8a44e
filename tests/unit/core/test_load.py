from __future__ import annotations

import numpy as np
import pytest
from support.builders import report

from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.model.load import (
    DEFAULT_LOAD,
    next_average,
    percent_usage,
    read_only,
    weighted_max_usage,
)


def test_nan_resources_are_ignored_in_maximum_usage() -> None:
    percent = np.full((2, 5), np.nan, dtype=np.float32)
    percent[0, 0] = 40
    assert weighted_max_usage(percent, ResourceWeights()).tolist() == [0.4, -np.inf]


def test_heap_memory_does_not_count_as_usage() -> None:
    percent = percent_usage([[0, 99, 0, 0, 0]], 100)
    assert weighted_max_usage(percent, ResourceWeights()).tolist() == [0.0]


def test_usage_may_exceed_the_limit_and_even_a_32_bit_float() -> None:
    assert float(percent_usage(140, 100)) == 140
    assert float(percent_usage(1e300, 1)) == np.inf


def test_running_mean_becomes_exponential_when_its_window_is_full() -> None:
    average, count = DEFAULT_LOAD.reshape(1, 4), np.zeros(1, dtype=np.int8)
    expected = 0.0
    for sample in range(30):
        n = min(sample + 1, 10)
        expected = ((n - 1) * expected + sample) / n
        average, count = next_average(average, count, np.full((1, 4), float(sample)), 10)
        assert average.tolist() == [[expected] * 4]
    assert count.tolist() == [10]
    assert count.dtype == np.int8


def test_report_is_read_only_with_checked_column_lengths() -> None:
    given = report(["t/ns/0x00000000_0x00000001"])
    with pytest.raises(ValueError, match="read-only"):
        given.load[0] = 1
    with pytest.raises(AssertionError, match="expected"):
        read_only(np.zeros(3), 4)
