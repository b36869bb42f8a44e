"""Cost model: usage of a broker's five resources as a linear function of its load.

Units are those of load reports: CPU in percent of one core, memory and direct memory in MiB, bandwidth in kbit/s.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from loadmanager.core.model.load import CPU, METRICS, RESOURCES, FloatArray, IntArray
from loadmanager.lab.simulate.scenario_fields import Amount, Part

_KBIT = 8 / 1000
"""kbit in a byte."""
_MIB = 1024 * 1024
_CORE = 100.0
"""Percent of one core."""


_PerResource = Field(min_length=RESOURCES, max_length=RESOURCES)
_Coefficients = Annotated[tuple[Amount, ...], Field(min_length=METRICS + 1, max_length=METRICS + 1)]


class CostModel(Part):
    """Usage = base + coefficients * (load, topics), linear in each.

    `base` is the usage of an idle broker, per resource. `coefficients` has a row per resource, with a number per metric
    of a load and one for topics. A broker of speed 2 needs half the CPU for the same load, and the same amount of the
    other resources. Raises `ValueError` for numbers that are missing, negative or not finite.
    """

    base: Annotated[tuple[Amount, ...], _PerResource] = (10.0, 1024.0, 64.0, 0.0, 0.0)
    coefficients: Annotated[tuple[_Coefficients, ...], _PerResource] = (
        (0.004, 0.004, _CORE / (200 * _MIB), _CORE / (200 * _MIB), 0.01),
        (0.0, 0.0, 0.0, 0.0, 0.05),
        (0.0, 0.0, 0.5 / _MIB, 0.5 / _MIB, 0.0),
        (0.0, 0.0, _KBIT, 0.0, 0.0),
        (0.0, 0.0, 0.0, _KBIT, 0.0),
    )

    def demand(self, load: FloatArray, topics: IntArray | FloatArray) -> FloatArray:
        """Return the cost (n, 5) of loads (n, 4) with `topics` (n,), for a broker of speed 1."""
        return np.stack([self.demand_of(resource, load, topics) for resource in range(RESOURCES)], axis=1)

    def demand_of(self, resource: int, load: FloatArray, topics: IntArray | FloatArray) -> FloatArray:
        """Return the cost (n,) in one resource; summed in a fixed order, so that it is equal on every machine."""
        found = np.zeros(len(load))
        *metrics, per_topic = self.coefficients[resource]
        for metric, cost in enumerate(metrics):
            if cost:
                found += load[:, metric] * cost
        if per_topic:
            found += topics * per_topic
        return found

    def usage(self, load: FloatArray, topics: IntArray | FloatArray, speed: FloatArray) -> FloatArray:
        """Return the usage (M, 5) of brokers with these speeds (M,), loads (M, 4) and topics (M,)."""
        used = self.demand(load, topics)
        used[:, CPU] /= speed
        used += np.array(self.base)
        return used
