"""Brokers and namespaces of a simulated fleet, and its events: brokers join, stop, fail and report wrongly.

Times are seconds since the start of the simulation. Events of the same time are applied in the given order, before the
step that begins at that time. Events at time 0 are applied after the first step. Those with a kind may be in a file.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from loadmanager.core.domain.bundles import equal_boundaries, validate_boundaries
from loadmanager.core.domain.names import BrokerId, BundleRange, NamespaceName
from loadmanager.lab.simulate.run_rules import (
    Amount,
    Broker,
    BundleRefs,
    Duration,
    Factor,
    Part,
    Positive,
    Seconds,
)

_EIGHT_CORES = (800.0, 16_384.0, 8_192.0, 10_000_000.0, 10_000_000.0)
"""Eight cores, 16 GiB of heap, 8 GiB of direct memory, and 10 Gbit/s each way."""


@dataclass(frozen=True, slots=True)
class BrokerSpec:
    """Broker: its capacity per resource, in the units of load reports, and the speed of its CPU."""

    id: BrokerId
    capacity: tuple[float, ...] = _EIGHT_CORES
    speed: float = 1.0
    version: str = "1.0.0"
    load_manager_class: str = ""


@dataclass(frozen=True, slots=True)
class NamespaceSpec:
    """Namespace: the boundaries of its bundles, and the owner of each; None: chosen by placement.

    Without `owners` the planner places all bundles. Raises `InvalidNameError` or `ValueError`.
    """

    name: str
    boundaries: tuple[int, ...]
    owners: tuple[BrokerId | None, ...] | None = None

    def __post_init__(self) -> None:
        NamespaceName.parse_any(self.name)
        validate_boundaries(self.boundaries)
        if self.owners is not None and len(self.owners) != len(self):
            raise ValueError(f"owners of {self.name}: expected one for each of {len(self)} bundles")

    def __len__(self) -> int:
        return len(self.boundaries) - 1

    @classmethod
    def of(cls, name: str, bundles: int, owners: Sequence[BrokerId | None] | None = None) -> NamespaceSpec:
        """Build a namespace with this number of equal bundles."""
        return cls(name, equal_boundaries(bundles), None if owners is None else tuple(owners))

    def ranges(self) -> list[BundleRange]:
        return [BundleRange(*ends) for ends in zip(self.boundaries, self.boundaries[1:], strict=False)]

    def bundle_names(self) -> list[str]:
        return [f"{self.name}/{each}" for each in self.ranges()]


class FleetEvent(Part):
    at_s: Seconds = Field(description="Time of the event.")


class BrokersStop(FleetEvent):
    """An operator stops brokers."""

    kind: Literal["brokersStop"] = "brokersStop"
    brokers: tuple[Broker, ...] = Field(min_length=1)
    drain: bool = Field(
        default=True, description="Drain them first; else they stop at once, and their bundles are free."
    )


class BrokersCrash(FleetEvent):
    """Brokers crash; their registrations end with their sessions."""

    kind: Literal["brokersCrash"] = "brokersCrash"
    brokers: tuple[Broker, ...] = Field(min_length=1)
    down_s: Duration | None = Field(None, description="Time until they return without bundles; without it never.")


class BrokersRestart(FleetEvent):
    """Brokers are restarted, all at once, or one every `everyS`. They return without bundles."""

    kind: Literal["brokersRestart"] = "brokersRestart"
    brokers: tuple[Broker, ...] = Field(min_length=1)
    down_s: Seconds = Field(30.0, description="Downtime of each.")
    every_s: Seconds = Field(0.0, description="Interval between two of them.")

    def one_by_one(self) -> Iterator[BrokersRestart]:
        """Yield the restart of each broker."""
        for number, broker in enumerate(self.brokers):
            yield self.model_copy(update={"at_s": self.at_s + number * self.every_s, "brokers": (broker,)})


class BrokerSlows(FleetEvent):
    """A broker's CPU becomes slower or faster."""

    kind: Literal["brokerSlows"] = "brokerSlows"
    broker: Broker
    factor: Positive = Field(description="Factor of the specified CPU speed; 0.5: half as fast.")


class _BrokerFault(FleetEvent):
    broker: Broker
    until_s: Seconds | None = Field(None, description="End; without it, never.")

    def is_over(self, now_s: float) -> bool:
        return self.until_s is not None and now_s >= self.until_s


class BrokerFallsSick(_BrokerFault):
    """A broker serves badly, so that its load drops. All brokers of the simulation then report their health.

    Its sickness ends at the latest with a restart.
    """

    kind: Literal["brokerFallsSick"] = "brokerFallsSick"
    latency_ms: Amount = Field(2_000.0, description="Latency in ms.")
    error_share: Factor = Field(0.5, le=1, description="Share of failed requests.")
    queue: Amount = Field(5_000.0, description="Queue length.")
    carries: Factor = Field(0.1, le=1, description="Part of its load that it still serves.")


class ReportFault(enum.StrEnum):
    """Fault of a broker's reports."""

    STALE = "stale"
    """It keeps reporting on time, but always the last values from before the fault."""
    DECAYED = "decayed"
    """All rates are almost 0, although it has load."""
    SILENT = "silent"
    """It does not report, although it stays registered."""
    UNKNOWN_NIC = "unknown_nic"
    """The limits of its bandwidth are 0."""
    WRONG_CAPACITY = "wrong_capacity"
    """All its limits are wrong by a factor."""
    SUM_DIFFERS = "sum_differs"
    """Its reported load is the sum of its bundles times a factor."""


class ReportsGoBad(_BrokerFault):
    """A broker sends wrong reports."""

    kind: Literal["reportsGoBad"] = "reportsGoBad"
    fault: ReportFault
    factor: Positive = Field(10.0, description="Factor for wrong_capacity and sum_differs.")


class LoadJumps(FleetEvent):
    """Some bundles have more or less load for a time. In a world, `bundles` are names."""

    kind: Literal["loadJumps"] = "loadJumps"
    until_s: Seconds = Field(description="End.")
    bundles: BundleRefs = Field(min_length=1)
    factor: Factor


@dataclass(frozen=True, slots=True)
class BrokerJoins:
    """A new broker registers, with its first report."""

    at_s: float
    broker: BrokerSpec


@dataclass(frozen=True, slots=True)
class NewNamespace:
    """A namespace is created. Its bundles are the next rows of the workload; they have no owner before a lookup."""

    at_s: float
    namespace: NamespaceSpec


@dataclass(frozen=True, slots=True)
class LeaderElected:
    """Another leader is elected. Its first shedding round comes an interval later; it continues with the memory of the
    previous leader.
    """

    at_s: float


Event = (
    BrokersStop
    | BrokersCrash
    | BrokersRestart
    | BrokerSlows
    | BrokerFallsSick
    | ReportsGoBad
    | LoadJumps
    | BrokerJoins
    | NewNamespace
    | LeaderElected
)
