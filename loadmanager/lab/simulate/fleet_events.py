"""Events of a simulated fleet besides its load: brokers join, stop, fail and report wrongly, namespaces are created.

Times are seconds since the world began. Events of one moment happen in the order in which they were given, and
before the step that begins then; those of the very beginning after the first step.
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
    """A broker is stopped by an operator: drained, then gone; or without a drain gone at once, its bundles free."""

    at_s: float
    broker: BrokerId
    drain: bool = True


@dataclass(frozen=True, slots=True)
class BrokerCrashes:
    """A broker serves nothing from now on; its registration ends with its session.

    It registers again after `down_s`, as another incarnation, with nothing; None: never.
    """

    at_s: float
    broker: BrokerId
    down_s: float | None = None


@dataclass(frozen=True, slots=True)
class BrokerRestarts:
    """A broker is gone at once and registers again after `down_s`, as another incarnation, with nothing."""

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

    It says so, by its latency in ms, the share of requests that fail, and how many wait: where this happens, all do.
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
    """A namespace is created. Its bundles are the next rows of the workload; nobody owns them before a lookup."""

    at_s: float
    namespace: NamespaceSpec


@dataclass(frozen=True, slots=True)
class HotSpot:
    """Until `until_s` the load of these bundles, by name, is so many times what the workload says."""

    at_s: float
    until_s: float
    bundles: tuple[str, ...]
    factor: float


@dataclass(frozen=True, slots=True)
class LeaderElected:
    """Another leader is elected: its first round of shedding comes an interval later. It goes on with what the last one
    remembered.
    """

    at_s: float


class ReportFault(enum.StrEnum):
    """Fault of a broker's reports."""

    STALE = "stale"
    """It goes on reporting in time, but always what it measured last before."""
    DECAYED = "decayed"
    """All rates are almost nothing, though it carries load."""
    SILENT = "silent"
    """It does not report, though it stays registered."""
    UNKNOWN_NIC = "unknown_nic"
    """The limits of its bandwidth are 0."""
    WRONG_CAPACITY = "wrong_capacity"
    """All its limits are wrong by a factor."""
    SUM_DIFFERS = "sum_differs"
    """Its reported load is the sum of its bundles times a factor."""


@dataclass(frozen=True, slots=True)
class BadReports:
    """Until `until_s` the reports of a broker have this fault; `factor` is for those faults that need one."""

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
