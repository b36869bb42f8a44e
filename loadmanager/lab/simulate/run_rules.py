"""Rules of a simulation that scenario files can state: types of fields, timing, and the cost of load."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from loadmanager.core.domain.names import BrokerId, parse_broker_id
from loadmanager.core.model.load import CPU, METRICS, RESOURCES, FloatArray, IntArray

_MOST_S = 366 * 86_400

Seconds = Annotated[float, Field(ge=0, le=_MOST_S, allow_inf_nan=False)]
Duration = Annotated[float, Field(gt=0, le=_MOST_S, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Broker = Annotated[BrokerId, AfterValidator(parse_broker_id)]
BundleRef = Annotated[str, Field(min_length=1, max_length=400)]
"""A bundle by its name, `tenant/namespace/0x.._0x..`, or by its position in the namespace, `tenant/namespace#0`."""
BundleRefs = tuple[BundleRef, ...]
"""Bundles; `tenant/namespace#*` stands for all initial bundles of the namespace."""


class Part(BaseModel):
    """Base of the models of a scenario file; unknown keys are errors. Times are seconds since the start."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


_Moves = Annotated[int, Field(ge=1)]


class Rules(Part):
    """Timing of the simulated fleet, besides the settings.

    A broker measures with a phase of its own as far as the steps allow. The default backlog is the timeout of Pulsar's
    clients. A reconnection costs a lookup (a quarter of a millisecond on a real Pulsar) and the opening of a producer
    or consumer.
    """

    first_round_s: Seconds | None = Field(
        None, description="Time of the first shedding round; by default one and a half intervals."
    )
    stats_interval_s: Duration = Field(60.0, description="Measuring interval of brokers (statsUpdateFrequencyInSecs).")
    report_check_s: Seconds = Field(5.0, description="Maximum delay until a broker checks if a report is due.")
    report_max_interval_s: Duration = Field(900.0, description="Maximum interval between reports.")
    report_threshold_percent: Factor = Field(10.0, description="Change that makes a report due.")
    report_delay_s: Seconds = Field(0.5, description="Delay until the leader reads a report.")
    reports_at_most_limit: bool = Field(default=True, description="Brokers report a usage of at most 100 %.")
    unload_s: Seconds = Field(2.0, description="Interruption of a moving bundle.")
    unload_deadline_s: Duration = Field(60.0, description="Timeout of an unload without an answer.")
    lookup_s: Seconds = Field(0.5, description="Delay until clients look a free bundle up again.")
    session_timeout_s: Duration = Field(10.0, description="Delay until a crashed broker's registration ends.")
    backlog_most_s: Seconds = Field(30.0, description="Maximum backlog of clients, in seconds of load.")
    catch_up_factor: float = Field(
        2.0,
        gt=1,
        le=1000,
        allow_inf_nan=False,
        description="Maximum factor of a bundle's load while clients send their backlog.",
    )
    reconnect_cpu_s: Seconds = Field(0.001, description="CPU time of one core per reconnecting client.")


class WorldRules(Rules):
    """Rules of a world: those of a scenario, and those that a node has settings for, with the defaults of leader and
    agents.

    The leader is elected half an interval after the start, so that rounds do not coincide with measurements. With
    `host_usage_lags` a report has the usage of the previous measurement, as if the host were measured separately.
    Raises `ValueError` for a number that is not allowed in a scenario file.
    """

    shedding_interval_s: Duration = 60.0
    grace_period_s: Seconds = 1800.0
    split_interval_s: Duration = 60.0
    unload_split_bundles: bool = True
    max_concurrent_unloads: _Moves = 16
    max_concurrent_unloads_per_broker: _Moves = 8
    host_usage_lags: bool = False

    def get_first_round_s(self) -> float:
        """Return the time of the first round of shedding."""
        return 1.5 * self.shedding_interval_s if self.first_round_s is None else self.first_round_s


_KBIT = 8 / 1000
"""kbit in a byte."""
_MIB = 1024 * 1024
_CORE = 100.0
"""Percent of one core."""


_PerResource = Field(min_length=RESOURCES, max_length=RESOURCES)
_Coefficients = Annotated[tuple[Amount, ...], Field(min_length=METRICS + 1, max_length=METRICS + 1)]


class CostModel(Part):
    """Usage of a broker's five resources = base + coefficients * (load, topics), linear in each.

    Units are those of load reports: CPU in percent of one core, memory and direct memory in MiB, bandwidth in kbit/s.

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
