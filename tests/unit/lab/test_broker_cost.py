from __future__ import annotations

import numpy as np
import pytest

from loadmanager.core.model.load import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, MEMORY
from loadmanager.lab.simulate.run_rules import CostModel


def test_idle_broker_uses_only_the_base() -> None:
    cost = CostModel()
    usage = cost.usage(np.zeros((2, 4)), np.zeros(2), np.ones(2))
    assert usage.tolist() == [list(cost.base)] * 2


def test_usage_is_linear_in_load_and_topics() -> None:
    cost = CostModel()
    load, topics = np.array([[10.0, 20.0, 3e6, 4e6], [1.0, 2.0, 5e5, 6e5]]), np.array([7, 11])
    together = cost.demand(load.sum(axis=0, keepdims=True), topics.sum(keepdims=True))
    assert together[0] == pytest.approx(cost.demand(load, topics).sum(axis=0))


def test_twice_as_fast_broker_uses_half_the_cpu() -> None:
    cost = CostModel()
    load = np.tile([100.0, 100.0, 1e7, 2e7], (2, 1))
    slow, fast = cost.usage(load, np.array([5, 5]), np.array([1.0, 2.0])) - np.array(cost.base)
    assert fast[CPU] == pytest.approx(slow[CPU] / 2)
    assert fast[MEMORY:].tolist() == slow[MEMORY:].tolist()


def test_bandwidth_is_bytes_as_kilobits() -> None:
    usage = CostModel().demand(np.array([[0.0, 0.0, 1000.0, 2000.0]]), np.array([0]))[0]
    assert usage[[BANDWIDTH_IN, BANDWIDTH_OUT]].tolist() == [8.0, 16.0]


@pytest.mark.parametrize(
    ("base", "coefficients", "message"),
    [
        ((1.0,), ((0.0,) * 5,) * 5, "base\n  Tuple should have at least 5 items"),
        ((1.0, 1.0, 1.0, 1.0, -1.0), ((0.0,) * 5,) * 5, "base.4\n  Input should be greater than or equal to 0"),
        ((0.0,) * 5, ((0.0,) * 5,) * 4, "coefficients\n  Tuple should have at least 5 items"),
        ((0.0,) * 5, (((0.0,) * 4, *((0.0,) * 5,) * 4)), "coefficients.0\n  Tuple should have at least 5 items"),
        (
            (0.0,) * 5,
            (((float("nan"),) * 5, *((0.0,) * 5,) * 4)),
            "coefficients.0.0\n  Input should be a finite",
        ),
    ],
)
def test_bad_model(base: tuple[float, ...], coefficients: tuple[tuple[float, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CostModel(base=base, coefficients=coefficients)
