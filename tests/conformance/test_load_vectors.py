"""Pulsar's figures for resource usage, averages and report rules (rows A and A-R)."""

from __future__ import annotations

import numpy as np
import pytest
from support.builders import report

from loadmanager.core.domain.resources import ResourceWeights, UsedResources
from loadmanager.core.model.load import (
    BrokerReport,
    next_average,
    percent_usage,
    weighted_max_usage,
)
from loadmanager.core.model.report_rule import ReportFigures, report_due

HALF = ResourceWeights(0.5, 0.5, 0.5, 0.5)


def percentages(given: BrokerReport) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return percent_usage(given.usage[:, 0], given.usage[:, 1])


def test_a1_maximum_usage_is_of_the_most_used_resource_without_memory() -> None:
    given = report(cpu=1, memory=99, direct_memory=2, bandwidth_in=3, bandwidth_out=4)
    assert UsedResources.of(given.usage.tolist()).most() == 0.03999999910593033
    assert float(weighted_max_usage(percentages(given), HALF)) == pytest.approx(0.02, abs=1e-5)


def test_a2_percent_usage_of_half_the_limit_is_50() -> None:
    assert float(percent_usage(614, 1228)) == pytest.approx(50, abs=1e-4)


def test_a3_each_resource_has_its_own_percentage() -> None:
    given = report(cpu=10, memory=50, direct_memory=90, bandwidth_in=30, bandwidth_out=20)
    assert [f"{value:.2f}%" for value in percentages(given)] == ["10.00%", "50.00%", "90.00%", "30.00%", "20.00%"]


@pytest.mark.parametrize(
    ("usage", "limit", "percent"),
    [
        (999, 1000, 99.9000015258789),
        (15, 100, 15.000000953674316),
        (30, 100, 30.000001907348633),
        (60, 100, 60.000003814697266),
        (85, 100, 85.0),
        (1, 3, 33.333335876464844),
        (7, 0, 0.0),
        (-1, -1, 0.0),
    ],
)
def test_a4_percent_usage_is_computed_in_32_bit_floats(usage: float, limit: float, percent: float) -> None:
    assert float(percent_usage(usage, limit)) == percent


def test_a8_the_first_sample_replaces_the_default() -> None:
    average, count = np.full((1, 4), 50.0), np.zeros(1, dtype=np.int8)
    average, count = next_average(average, count, np.full((1, 4), 10.0), 10)
    assert average.tolist() == [[10.0] * 4]
    average, count = next_average(average, count, np.full((1, 4), 20.0), 10)
    assert average.tolist() == [[15.0] * 4]
    assert count.tolist() == [2]


def is_due(last: BrokerReport, now: BrokerReport, weights: ResourceWeights | None = None) -> bool:
    figures = [
        ReportFigures.of(each.load, each.usage, each.num_bundles, weights or ResourceWeights(), 0.0)
        for each in (last, now)
    ]
    return report_due(figures[0], figures[1], 5, 900) is not None


@pytest.mark.parametrize(
    ("last", "now", "due"),
    [
        (100, 104, False),
        (100, 105.1, True),
        (100, 94, True),
        (100, 95.1, False),
        (0, 1e-8, True),
        (1e-8, 0, True),
        (0, 0, False),
    ],
)
def test_a_r_report_is_due_above_the_threshold(last: float, now: float, *, due: bool) -> None:
    assert is_due(report(load=(last, 0, 0, 0)), report(load=(now, 0, 0, 0))) is due


def test_a_r_usage_counts_in_percentage_points_and_by_its_weight() -> None:
    last = report(cpu=(100, 1000))
    assert not is_due(last, report(cpu=(106, 1000)))
    assert is_due(last, report(cpu=(206, 1000)))
    assert not is_due(last, report(cpu=(206, 1000)), ResourceWeights(cpu=0))


def test_a_r_throughput_and_number_of_bundles_count() -> None:
    assert is_due(report(load=(0, 0, 100, 0)), report(load=(0, 0, 106, 0)))
    assert is_due(report(num_bundles=100), report(num_bundles=106))
    assert not is_due(report(num_bundles=100), report(num_bundles=100))
