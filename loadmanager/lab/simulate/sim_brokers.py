"""Simulated brokers: capacity, usage, and reports."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.resources import HealthFigures, ResourceWeights
from loadmanager.core.model.broker_health import has_changed
from loadmanager.core.model.load import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    METRICS,
    RESOURCES,
    BoolArray,
    BrokerReport,
    FloatArray,
    IntArray,
    RowArray,
    percent_usage,
    weighted_max_usage,
)
from loadmanager.core.model.report_rule import ReportFigures, report_due
from loadmanager.lab.simulate.fleet_events import BrokerFallsSick, BrokerSpec, ReportFault, ReportsGoBad
from loadmanager.lab.simulate.run_rules import CostModel, WorldRules
from loadmanager.lab.simulate.sim_bundles import BundleTable, SimLoads

_IDLE_LATENCY_MS, _MOST_USED = 5.0, 0.9
_NO_ROWS: RowArray = np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class SimBroker:
    """Simulated broker; its `number` does not change when it registers again.

    `registration` is None while it is not registered. After a crash `is_up` is False, but it stays registered for a
    time. It measures with the phase `phase_s`, as far as steps allow, and checks `pause_s` later if a report is due.
    `written` are the figures of its last report, `report` that report; `rows` and `names` are the bundles with topics
    that it serves. `has_unloaded` since the report. `used` (5,) is the usage of its host at the last measurement.
    """

    number: int
    spec: BrokerSpec
    phase_s: float
    pause_s: float
    registration: Registration | None = None
    is_up: bool = False
    started_s: float = 0.0
    written: ReportFigures | None = None
    report: BrokerReport | None = None
    has_unloaded: bool = False
    used: FloatArray | None = None
    rows: RowArray = field(default_factory=lambda: _NO_ROWS)
    names: tuple[str, ...] = ()
    faults: list[ReportsGoBad] = field(default_factory=list)
    sickness: BrokerFallsSick | None = None

    def begin(self, registration: Registration, now_s: float) -> None:
        """Start with a new registration, without a report."""
        self.registration, self.is_up, self.started_s = registration, True, now_s
        self.written = self.report = self.used = None
        self.has_unloaded = False
        self.sickness = None

    def sickness_at(self, now_s: float) -> BrokerFallsSick | None:
        """Return the sickness of the broker at that time, if any."""
        return None if self.sickness is None or self.sickness.is_over(now_s) else self.sickness

    def serves_at(self, now_s: float) -> float:
        """Return the part of its load that it serves."""
        sickness = self.sickness_at(now_s)
        return 1.0 if sickness is None else sickness.carries

    def fault_at(self, now_s: float) -> ReportsGoBad | None:
        """Return the fault of its reports at that time; the latest of several."""
        return next((fault for fault in reversed(self.faults) if not fault.is_over(now_s)), None)


@dataclass(slots=True, eq=False)
class Carried:
    """Loads of brokers (M,) at one moment: load (M, 4), topics, sessions, bundles (M,), and usage (M, 5)."""

    load: FloatArray
    topics: IntArray
    sessions: IntArray
    bundles: IntArray
    usage: FloatArray


class SimFleet:
    """All brokers of the simulation, also past ones, by number, with their capacity (M, 5) and speed (M,)."""

    def __init__(self, cost: CostModel, rules: WorldRules, weights: ResourceWeights, start_s: float) -> None:
        self.brokers: list[SimBroker] = []
        self.capacity: FloatArray = np.empty((0, RESOURCES))
        self.speed: FloatArray = np.empty(0)
        self.says_health = False
        """True if brokers report their health."""
        self._cost = cost
        self._rules = rules
        self._weights = weights
        self._start_s = start_s
        self._number_of: dict[BrokerId, int] = {}
        self._grouped: tuple[int, IntArray] = -1, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.brokers)

    def find(self, broker: BrokerId) -> SimBroker | None:
        number = self._number_of.get(broker)
        return None if number is None else self.brokers[number]

    def add(self, spec: BrokerSpec, phase_s: float, pause_s: float) -> SimBroker:
        broker = SimBroker(len(self.brokers), spec, phase_s, pause_s)
        self.brokers.append(broker)
        self._number_of[spec.id] = broker.number
        self.capacity = np.vstack([self.capacity, spec.capacity])
        self.speed = np.append(self.speed, spec.speed)
        return broker

    def up(self) -> BoolArray:
        """Return a mask (M,) of the brokers that serve."""
        return np.array([broker.is_up for broker in self.brokers], dtype=bool)

    def set_speed(self, broker_id: BrokerId, factor: float) -> None:
        """Set the CPU speed to `factor` times the specified one."""
        broker = self.find(broker_id)
        if broker is not None:
            self.speed[broker.number] = broker.spec.speed * factor

    def afflict(self, event: ReportsGoBad | BrokerFallsSick) -> None:
        """Start a fault of a broker or of its reports, until the event's end."""
        broker = self.find(event.broker)
        if broker is None:
            return
        if isinstance(event, ReportsGoBad):
            broker.faults.append(event)
        elif broker.is_up:
            broker.sickness = event

    def measuring(self, now_s: float, step_s: float) -> BoolArray:
        """Return a mask (M,) of the brokers that measure in the step that begins now.

        Each measures once per interval, with its own phase.
        """
        interval_s = self._rules.stats_interval_s
        phase_s = np.array([broker.phase_s for broker in self.brokers])
        before, now = np.floor((now_s - step_s - phase_s) / interval_s), np.floor((now_s - phase_s) / interval_s)
        return self.up() & (now > before)

    def first_report(self, broker: SimBroker, now_s: float) -> BrokerReport:
        """Return the report of a broker that has just registered, without bundles."""
        size, none = len(self), np.zeros(len(self), dtype=np.int64)
        idle = Carried(np.zeros((size, METRICS)), none, none, none, np.empty((size, RESOURCES)))
        idle.usage[:] = self._cost.usage(idle.load, none, self.speed)
        broker.rows, broker.names = _NO_ROWS, ()
        loads = SimLoads(np.empty((0, METRICS)), none[:0], none[:0])
        report = self._build(broker, loads, idle, np.minimum(idle.usage, self.capacity)[broker.number], now_s)
        broker.written = ReportFigures.of(report.load, report.usage, report.num_bundles, self._weights, now_s)
        broker.report = report
        return report

    def carried(self, table: BundleTable, loads: SimLoads, connecting: FloatArray) -> Carried:
        """Add up the loads of served bundles by broker; `connecting` clients (M,) add CPU usage."""
        bins, size = table.serving.astype(np.intp) + 1, len(self) + 1

        def add_up(column: FloatArray | IntArray) -> FloatArray:
            return np.bincount(bins, weights=column, minlength=size)[1:].astype(np.float64)

        load = np.stack([add_up(loads.load[:, metric]) for metric in range(METRICS)], axis=1)
        topics, sessions = add_up(loads.topics).astype(np.int64), add_up(loads.sessions).astype(np.int64)
        bundles = np.bincount(bins, minlength=size)[1:].astype(np.int64)
        usage = self._cost.usage(load, topics, self.speed)
        usage[:, CPU] += connecting / self.speed
        return Carried(load, topics, sessions, bundles, usage)

    def served(self, carried: Carried, now_s: float) -> Carried:
        """Reduce the loads of sick brokers to the part that they serve."""
        part = np.array([broker.serves_at(now_s) for broker in self.brokers])
        if (part == 1).all():
            return carried
        load = carried.load * part[:, np.newaxis]
        return replace(carried, load=load, usage=self._cost.usage(load, carried.topics, self.speed))

    def report(
        self, table: BundleTable, loads: SimLoads, carried: Carried, now_s: float, measuring: BoolArray
    ) -> list[tuple[SimBroker, BrokerReport]]:
        """Return those of the measuring brokers whose reports are due, with the reports."""
        self._group(table, loads.topics)
        usage = np.minimum(carried.usage, self.capacity) if self._rules.reports_at_most_limit else carried.usage
        usage = self._host_usage(usage, measuring)
        highest = weighted_max_usage(percent_usage(usage, self.capacity), self._weights).tolist()
        rates = (carried.load[:, 0] + carried.load[:, 1]).tolist()
        throughputs = (carried.load[:, 2] + carried.load[:, 3]).tolist()
        found = []
        for number in np.flatnonzero(measuring).tolist():
            broker = self.brokers[number]
            figures = ReportFigures(now_s, rates[number], throughputs[number], len(broker.names), highest[number])
            fault = broker.fault_at(now_s)
            health = self._health(broker, highest[number], now_s)
            if fault is None and not self._is_due(broker, figures, health):
                continue
            report = self._build(broker, loads, carried, usage[number], now_s, health)
            if fault is not None:
                report = corrupted(report, fault, broker.report)
                figures = ReportFigures.of(report.load, report.usage, report.num_bundles, self._weights, now_s)
                if fault.fault is ReportFault.SILENT or not self._is_due(broker, figures, health):
                    continue
            broker.written, broker.report, broker.has_unloaded = figures, report, False
            found.append((broker, report))
        return found

    def _host_usage(self, usage: FloatArray, measuring: BoolArray) -> FloatArray:
        """Return the measured usage (M, 5) of the hosts; with `host_usage_lags` that of the previous measurement."""
        if not self._rules.host_usage_lags:
            return usage
        shown = usage.copy()
        for number in np.flatnonzero(measuring).tolist():
            broker = self.brokers[number]
            shown[number], broker.used = usage[number] if broker.used is None else broker.used, usage[number]
        return shown

    def _health(self, broker: SimBroker, used: float, now_s: float) -> HealthFigures | None:
        """Return the health figures: latency grows with usage; only a sick broker has errors and a queue."""
        if not self.says_health:
            return None
        sickness = broker.sickness_at(now_s)
        if sickness is None:
            return HealthFigures(_IDLE_LATENCY_MS / (1 - min(max(used, 0.0), _MOST_USED)), 0.0, 0.0)
        return HealthFigures(sickness.latency_ms, sickness.error_share, sickness.queue)

    def _is_due(self, broker: SimBroker, figures: ReportFigures, health: HealthFigures | None) -> bool:
        """Return True if a report is due: after an unload, by Pulsar's rules, or if bundles or health have changed."""
        rules = self._rules
        return (
            broker.has_unloaded
            or report_due(broker.written, figures, rules.report_threshold_percent, rules.report_max_interval_s)
            is not None
            or broker.report is None
            or broker.report.bundle_names != broker.names
            or has_changed(broker.report.health, health)
        )

    def _group(self, table: BundleTable, topics: IntArray) -> None:
        """Update the bundles with topics that each broker serves."""
        version, grouped = self._grouped
        if table.version == version and np.array_equal(topics, grouped):
            return
        self._grouped = table.version, topics
        all_names = table.names
        for broker, served in zip(self.brokers, table.rows_by_broker(len(self)), strict=True):
            broker.rows = served[topics[served] > 0]
            names = tuple([all_names[row] for row in broker.rows.tolist()])
            if names != broker.names:
                broker.names = names

    def _build(
        self,
        broker: SimBroker,
        loads: SimLoads,
        carried: Carried,
        usage: FloatArray,
        now_s: float,
        health: HealthFigures | None = None,
    ) -> BrokerReport:
        number, rows, spec = broker.number, broker.rows, broker.spec
        part = broker.serves_at(now_s)
        return BrokerReport(
            usage=np.stack([usage, self.capacity[number]], axis=1),
            load=carried.load[number].copy(),
            num_topics=int(carried.topics[number]),
            num_bundles=len(rows),
            num_consumers=int(carried.sessions[number]),
            num_producers=0,
            bundle_names=broker.names,
            bundle_load=loads.load[rows] if part == 1 else loads.load[rows] * part,
            bundle_topics=loads.topics[rows],
            bundle_sessions=loads.sessions[rows],
            bundle_cache_bytes=np.zeros(len(rows), dtype=np.int64),
            last_update_ms=round((self._start_s + now_s) * 1000),
            start_timestamp_ms=round((self._start_s + broker.started_s) * 1000),
            version=spec.version,
            load_manager_class=spec.load_manager_class,
            persistent_enabled=True,
            non_persistent_enabled=True,
            health=health,
        )


_ALMOST_NOTHING = 1e-20
"""Factor of rates that have decayed without a reset."""


def corrupted(report: BrokerReport, fault: ReportsGoBad, last: BrokerReport | None) -> BrokerReport:
    """Return the report with the fault; `last` is the broker's last report."""
    match fault.fault:
        case ReportFault.STALE:
            return report if last is None else replace(last, last_update_ms=report.last_update_ms)
        case ReportFault.DECAYED:
            return replace(
                report,
                load=np.full_like(report.load, _ALMOST_NOTHING),
                bundle_load=np.full_like(report.bundle_load, _ALMOST_NOTHING),
            )
        case ReportFault.UNKNOWN_NIC:
            return replace(report, usage=_with_limits(report, 0.0, (BANDWIDTH_IN, BANDWIDTH_OUT)))
        case ReportFault.WRONG_CAPACITY:
            return replace(report, usage=_with_limits(report, fault.factor, tuple(range(len(report.usage)))))
        case ReportFault.SUM_DIFFERS:
            return replace(report, load=report.load * fault.factor)
        case ReportFault.SILENT:
            return report


def _with_limits(report: BrokerReport, factor: float, resources: tuple[int, ...]) -> np.typing.NDArray[np.float64]:
    usage = report.usage.copy()
    usage[list(resources), 1] *= factor
    return usage
