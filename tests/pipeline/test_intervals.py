from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.model.load import FloatArray
from loadmanager.pipeline.forecast.intervals import Calibration, calibrated_in_turn, covered, widening

NAN = float("nan")


def around(median: FloatArray, below: float, above: float) -> FloatArray:
    """(3, 1, hours)."""
    return np.stack([median - below, median, median + above])[:, np.newaxis]


@pytest.mark.parametrize("width", [0.0, 0.1, 1.0, 10.0])
def test_calibration_corrects_any_believed_width(width: float) -> None:
    rng = np.random.default_rng(4)
    median = 100 + 50 * np.sin(np.arange(4000) / 4)
    actual = (median + rng.standard_exponential(4000) * 5)[np.newaxis]  # never below
    forecast = around(median, width, width)

    known = Calibration.of(actual[:, :2000], forecast[..., :2000], ahead=1)
    made = known.applied(forecast[..., 2000:])

    inside = covered(actual[:, 2000:], made)
    assert (made[0] == made[1]).all()
    assert inside.mean() == pytest.approx(0.9, abs=0.015)  # a tenth above, and nothing below


def test_calibration_keeps_the_widths_relative_to_each_other() -> None:
    median, wide = np.full(400, 100.0), np.tile([1.0, 9.0], 200)
    rng = np.random.default_rng(4)
    forecast = np.stack([median - wide, median, median + wide])[:, np.newaxis]
    actual = (median + 3 * wide * rng.standard_normal(400))[np.newaxis]

    made = Calibration.of(actual, forecast, ahead=1).applied(forecast)

    widths = (made[2] - made[0])[0]
    assert widths[1] > 2 * widths[0]
    assert covered(actual, made).mean() == pytest.approx(0.8, abs=0.02)


def test_each_part_is_calibrated_by_the_parts_before_it() -> None:
    median = np.full(60, 100.0)
    forecast = around(median, 1.0, 1.0)
    actual = median[np.newaxis] + np.tile([-2.0, 2.0], 30)
    other = actual.copy()
    other[:, 40:] += 50

    made, unlike = (calibrated_in_turn(each, forecast, [20, 40, 60], ahead=1) for each in (actual, other))

    assert made.shape == (3, 1, 40)
    assert np.array_equal(made, unlike)
    assert made[:, 0, 0] == pytest.approx([98, 100, 102], abs=0.2)
    assert (covered(actual[:, 20:], made) == 1).all()


def test_calibration_without_past_values_keeps_the_forecast() -> None:
    forecast = around(np.full(3, 5.0), 1.0, 2.0)

    for actual in (np.full((1, 3), NAN), np.empty((1, 0))):
        known = Calibration.of(actual, forecast[..., : actual.shape[1]], ahead=1)
        assert np.array_equal(known.applied(forecast), forecast)


def test_errorless_series_has_intervals_of_no_width() -> None:
    forecast = around(np.full(30, 5.0), 0.0, 0.0)

    made = Calibration.of(forecast[1], forecast, ahead=1).applied(forecast)

    assert np.array_equal(made, forecast)


def test_intervals_widen_for_persistent_but_not_independent_errors() -> None:
    rng = np.random.default_rng(4)
    independent = rng.standard_normal(672)
    shifting = np.repeat([1.0, -1.0, 1.0, 1.0], 168)

    factors = widening(np.stack([independent, shifting, np.full(672, NAN)]), ahead=168)

    assert factors[0] == pytest.approx(1, abs=0.02)
    assert factors[1] == pytest.approx(1.638 * np.sqrt(1 + 1 / 4) / 1.2816, rel=1e-3)  # Student's t of four errors
    assert factors[2] == 1
    assert widening(np.array([[1.0, 1.0]]), ahead=24) == pytest.approx(3.078 * np.sqrt(1 + 1 / 2) / 1.2816, rel=1e-3)


def test_unknown_hours_are_neither_covered_nor_missed() -> None:
    inside = covered(np.array([[1.0, NAN, 1.0]]), np.array([[[0.0, 0.0, 2.0]], [[1.0, 1.0, 3.0]], [[2.0, 2.0, 4.0]]]))

    assert inside[0, [0, 2]].tolist() == [1, 0]
    assert np.isnan(inside[0, 1])


LOADS = st.lists(st.one_of(st.floats(0, 1e9), st.just(NAN)), min_size=3, max_size=60)


@given(LOADS, st.floats(0, 1e6), st.floats(0, 1e6))
def test_calibrated_intervals_are_finite_ordered_and_non_negative(
    load: list[float], below: float, above: float
) -> None:
    actual = np.array([load])
    forecast = around(np.linspace(0, 1e6, len(load)), below, above)

    made = Calibration.of(actual, forecast, ahead=1).applied(forecast)

    assert np.isfinite(made).all()
    assert (made >= 0).all()
    assert (np.diff(made, axis=0) >= 0).all()
