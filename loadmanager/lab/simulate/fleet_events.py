"""Events of a simulated fleet besides its load: brokers join, stop, fail and report wrongly, namespaces are created.

Times are seconds since the start of the simulation. Events of the same time are applied in the given order, before the
step that begins at that time. Events at time 0 are applied after the first step.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from loadmanager.core.domain.names import BrokerId
from loadmanager.lab.simulate.initial_fleet import BrokerSpec, NamespaceSpec


@dataclass(frozen=True, slots=True)
class BrokerJoins:
    """A new broker registers, with its first report."""

    at_s: float
    broker: BrokerSpec


@dataclass(frozen=True, slots=True)
class BrokerStops:
    """An operator stops a broker: after a drain, or, without a drain, at once, which frees its bundles."""

    at_s: float
    broker: BrokerId
    drain: bool = True


@dataclass(frozen=True, slots=True)
class BrokerCrashes:
    """A broker stops serving; its registration ends with its session.

    It registers again after `down_s`, as a new incarnation without bundles; None: never.
    """

    at_s: float
    broker: BrokerId
    down_s: float | None = None


@dataclass(frozen=True, slots=True)
class BrokerRestarts:
    """A broker leaves at once, and registers again after `down_s` as a new incarnation without bundles."""

    at_s: float
    broker: BrokerId
    down_s: float = 30.0


@dataclass(frozen=True, slots=True)
class BrokerSlower:
    """The broker's CPU changes to `factor` times its specified speed: 0.5 is half as fast."""

    at_s: float
    broker: BrokerId
    factor: float


@dataclass(frozen=True, slots=True)
class BrokerFallsSick:
    """Until `until_s`, or until it is restarted, the broker serves only the part `carries` of its load.

    It reports its latency in ms, the share of failed requests and the queue length. With such an event in a simulation,
    all brokers report their health.
    """

    at_s: float
    broker: BrokerId
    until_s: float = math.inf
    latency_ms: float = 2_000.0
    error_share: float = 0.5
    queue: float = 5_000.0
    carries: float = 0.1


@dataclass(frozen=True, slots=True)
class NewNamespace:
    """A namespace is created. Its bundles are the next rows of the workload; they have no owner before a lookup."""

    at_s: float
    namespace: NamespaceSpec


@dataclass(frozen=True, slots=True)
class HotSpot:
    """Until `until_s` the load of these bundles, by name, is `factor` times that of the workload."""

    at_s: float
    until_s: float
    bundles: tuple[str, ...]
    factor: float


@dataclass(frozen=True, slots=True)
class LeaderElected:
    """Another leader is elected. Its first shedding round comes an interval later; it continues with the memory of the
    previous leader.
    """

    at_s: float


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


@dataclass(frozen=True, slots=True)
class BadReports:
    """Until `until_s` the reports of a broker have this fault; only some faults use `factor`."""

    at_s: float
    broker: BrokerId
    fault: ReportFault
    until_s: float = math.inf
    factor: float = 10.0


Event = (
    BrokerJoins
    | BrokerStops
    | BrokerCrashes
    | BrokerRestarts
    | BrokerSlower
    | BrokerFallsSick
    | NewNamespace
    | HotSpot
    | LeaderElected
    | BadReports
)
