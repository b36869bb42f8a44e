"""Report validation: rejects implausible reports, and defines what replaces them.

A broker with a rejected report keeps the load of its last accepted one. Shedding ignores the broker, as source and as
destination, until a report is accepted again. The first report of a new broker counts even if rejected, because clients
have to be served. So does the last report of a broker that has long been silent.

`core.model.broker_health` finds sick brokers by the figures of accepted reports.

A missing limit is taken from earlier reports. A limit that was never known is listed as a fault: its resource does not
count in the broker's usage, which is not the same as 0 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import FilterReason, ValidationReason
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.model.broker_health import HealthDetector
from loadmanager.core.model.load import (
    MSG_RATE_IN,
    MSG_RATE_OUT,
    RATED,
    THROUGHPUT_IN,
    BrokerReport,
    FloatArray,
    rated_weights,
)

_MIB = 1024 * 1024

MOST_USED = 2.0
"""Maximum plausible usage, as a multiple of the limit."""
CAPACITY_CHANGES = 1.5
"""Maximum plausible change of a capacity without a restart, as a factor."""
ALMOST_NOTHING = 1e-6
"""Load below this counts as 0: it is the remainder of a decayed average."""
MOST_AHEAD_S = 60.0
"""Maximum plausible clock skew of a broker. Synchronized clocks differ by less than a second; a minute tolerates bad
clocks, and is small compared with the maximum age of a report.
"""
SUM_DIFFERS = 2.0
"""Maximum plausible ratio of a broker's load to the sum of its bundles, above minimum amounts."""
_LEAST_RATE, _LEAST_THROUGHPUT = 1_000.0, float(_MIB)


@dataclass(frozen=True, slots=True, eq=False)
class ReportFaults:
    """Faults of brokers and reports, each with the reason: brokers that shedding ignores, other findings, and sick or
    stuck brokers, which receive nothing.
    """

    rejected: Mapping[BrokerId, Verdict] = field(default_factory=dict)
    remarks: tuple[Verdict, ...] = ()
    sick: Mapping[BrokerId, Verdict] = field(default_factory=dict)

    @property
    def unwell(self) -> Mapping[BrokerId, Verdict]:
        """Return the sick brokers, and outliers beyond the limit of sick ones."""
        others = (each for each in self.remarks if each.verdict is ValidationReason.SICK_WITH_OTHERS)
        return {**{BrokerId(each.subject): each for each in others}, **self.sick}

    def is_stuck(self, broker: BrokerId) -> bool:
        return broker in self.sick and self.sick[broker].verdict is FilterReason.BROKER_STUCK

    def with_stuck(self, broker: BrokerId, why: str) -> ReportFaults:
        """Return the faults with this broker stuck, or no longer so if `why` is empty."""
        others = {each: verdict for each, verdict in self.sick.items() if each != broker}
        return replace(self, sick={**others, broker: _stuck(broker, why)} if why else others)


NO_FAULTS = ReportFaults()


@dataclass(frozen=True, slots=True, eq=False)
class ValidatedReport:
    """A validated report, used if it `counts`, and the reason for its rejection, if any."""

    report: BrokerReport
    counts: bool
    fault: str | None


@dataclass(slots=True, eq=False)
class _BrokerState:
    """Last accepted report of one registration, and the fault of its latest report.

    `unknown` are the rated resources without a limit in it; `is_recalled`: earlier limits replace the missing ones.
    """

    registration: Registration
    heard_s: float
    good: BrokerReport | None = None
    fault: str | None = None
    rejected_s: float = 0.0
    unknown: frozenset[int] = frozenset()
    stuck: str = ""
    is_recalled: bool = False


class ReportValidator:
    """Validates reports on arrival. A changed capacity is accepted once it lasts for the maximum age of a report."""

    def __init__(self) -> None:
        self._lives: dict[BrokerId, _BrokerState] = {}
        self._health = HealthDetector()

    def judge(
        self, registration: Registration, report: BrokerReport, at_s: float, most_age_s: float
    ) -> ValidatedReport:
        """Validate a report that arrived at `at_s`, seconds since 1970; one older than `most_age_s` is rejected."""
        life = self._lives.get(registration.broker)
        if life is None or life.registration != registration:
            life = self._lives[registration.broker] = _BrokerState(registration, at_s)
        life.heard_s = at_s
        life.stuck = report.stuck
        life.unknown = frozenset(resource for resource in RATED if report.usage[resource, 1] <= 0)
        report = _with_limits_recalled(report, life)
        fault = find_fault(report, at_s, most_age_s)
        if fault is None and life.good is not None and (life.fault is None or at_s - life.rejected_s <= most_age_s):
            fault = find_change(report, life.good)
        if fault is not None and life.fault is None:
            life.rejected_s = at_s
        life.fault = fault
        counts = fault is None or life.good is None
        if fault is None:
            life.good = report.without_bundles()
            self._health.hear(registration, report.health, at_s)
        return ValidatedReport(report, counts, fault)

    def find_fault(self, broker: BrokerId) -> str | None:
        """Return the fault of the broker's last report, None if accepted."""
        life = self._lives.get(broker)
        return None if life is None else life.fault

    def forget(self, broker: BrokerId) -> None:
        """Forget a broker that has left."""
        self._lives.pop(broker, None)
        self._health.forget(broker)

    def faults(
        self, now_s: float, most_age_s: float, weights: ResourceWeights, sick_after_s: float | None = None
    ) -> ReportFaults:
        """Return the current faults of all brokers; missing limits count for resources with a weight.

        `sick_after_s` is the time a broker has to be an outlier to be sick, None to turn that off.
        """
        rejected: dict[BrokerId, Verdict] = {}
        remarks = []
        rated = weighted_resources(weights)
        for broker in sorted(self._lives):
            life = self._lives[broker]
            silent_s = now_s - life.heard_s
            fault = life.fault
            if fault is None and silent_s > most_age_s:
                fault = f"it has not reported for {silent_s:.0f} s"
            if fault is not None:
                rejected[broker] = Verdict(
                    broker, ValidationReason.REPORT_DISTRUSTED, acted=False, why={"fault": fault}
                )
            unknown = ", ".join(RATED[resource] for resource in sorted(life.unknown & rated))
            if unknown:
                key = "recalled" if life.is_recalled else "unknown"
                remarks.append(Verdict(broker, ValidationReason.LIMIT_UNKNOWN, acted=False, why={key: unknown}))
        health = self._health.look(now_s, sick_after_s)
        remarks += health.left_in
        stuck = {broker: _stuck(broker, life.stuck) for broker, life in sorted(self._lives.items()) if life.stuck}
        sick = {**health.sick, **stuck}
        return ReportFaults(rejected, tuple(remarks), sick) if rejected or remarks or sick else NO_FAULTS


def _stuck(broker: BrokerId, why: str) -> Verdict:
    return Verdict(broker, FilterReason.BROKER_STUCK, acted=False, why={"fault": why})


def find_fault(report: BrokerReport, at_s: float, most_age_s: float) -> str | None:
    """Return the fault of a report by itself, as text; None if there is none."""
    numbers = (report.usage, report.load, report.bundle_load)
    if not all(np.isfinite(each).all() for each in numbers) or any((each < 0).any() for each in numbers[1:]):
        return "it has numbers that are negative, or none"
    age_s = at_s - report.last_update_ms / 1000
    if report.last_update_ms > 0 and age_s > most_age_s:
        return f"it is {age_s:.0f} s old"
    if age_s < -MOST_AHEAD_S:
        return f"it is from {-age_s:.0f} s in the future: the clock of the broker or of the leader is wrong"
    return _find_impossible_usage(report) or _find_decay(report.load) or _find_difference(report)


def find_change(report: BrokerReport, good: BrokerReport) -> str | None:
    """Return an implausible change since the last accepted report without a restart; None if there is none."""
    before, now = good.usage[:, 1], report.usage[:, 1]
    for resource, name in RATED.items():
        if before[resource] <= 0 or now[resource] <= 0:
            continue
        times = float(now[resource] / before[resource])
        if max(times, 1 / times) >= CAPACITY_CHANGES:
            return f"its limit of {name} is {times:.3g} times what it was"
    return None


def _find_impossible_usage(report: BrokerReport) -> str | None:
    for resource, name in RATED.items():
        used, limit = report.usage[resource].tolist()
        if limit > 0 and used > MOST_USED * limit:
            return f"it uses {100 * used / limit:.0f} % of its {name}"
    return None


def _find_decay(load: FloatArray) -> str | None:
    smallest = float(load.max())
    return f"its rates have decayed to {smallest:.0e}" if 0 < smallest < ALMOST_NOTHING else None


def _find_difference(report: BrokerReport) -> str | None:
    """Compare the broker's load with the sum of its bundles, in messages/s and bytes/s."""
    bundles = np.add.reduce(report.bundle_load, axis=0)
    for first, least, scale, unit in (
        (0, _LEAST_RATE, 1.0, "messages/s"),
        (THROUGHPUT_IN, _LEAST_THROUGHPUT, _MIB, "MiB/s"),
    ):
        own = float(report.load[first] + report.load[first + 1])
        total = float(bundles[first] + bundles[first + 1])
        if abs(own - total) > least and max(own, total) > SUM_DIFFERS * min(own, total):
            return f"it carries {own / scale:.4g} {unit} and its bundles {total / scale:.4g}"
    return None


def _with_limits_recalled(report: BrokerReport, life: _BrokerState) -> BrokerReport:
    """Fill in missing limits from the broker's earlier reports."""
    life.is_recalled = False
    if life.good is None or not life.unknown:
        return report
    known = [resource for resource in sorted(life.unknown) if life.good.usage[resource, 1] > 0]
    if not known:
        return report
    life.is_recalled = True
    usage = report.usage.copy()
    usage[known, 1] = life.good.usage[known, 1]
    return replace(report, usage=usage)


def weighted_resources(weights: ResourceWeights) -> frozenset[int]:
    """Return the rated resources with a weight."""
    return frozenset(resource for resource, weight in rated_weights(weights).items() if weight > 0)


RATE_STEPS_PER_UNIT = 1000
"""Resolution of a bundle's message rate: thousandths."""

MAX_RATE = 1e12
"""Upper limit of messages/s per bundle; higher rates are implausible and clamped."""

_RATES = (MSG_RATE_IN, MSG_RATE_OUT)


def recordable(report: BrokerReport) -> BrokerReport:
    """Round a report: bundles sorted by name, message rates in thousandths, throughputs in whole bytes/s.

    The broker's own figures are kept. The function is idempotent.

    A report is rounded on arrival, before any decision. So the history returns exactly the same values, and a replay
    makes the same decisions. Pulsar does not round.
    """
    names = report.bundle_names
    order = sorted(range(len(names)), key=names.__getitem__)
    return replace(
        report,
        bundle_names=tuple([names[row] for row in order]),
        bundle_load=_round_loads(report.bundle_load[order]),
        bundle_topics=report.bundle_topics[order],
        bundle_sessions=report.bundle_sessions[order],
        bundle_cache_bytes=report.bundle_cache_bytes[order],
    )


def _round_loads(load: FloatArray) -> FloatArray:
    """Round loads (k, 4); adding zero removes negative zeros, which integers cannot hold."""
    rounded = np.rint(load) + 0.0
    rates = np.minimum(load[:, _RATES], MAX_RATE)
    rounded[:, _RATES] = np.rint(rates * RATE_STEPS_PER_UNIT) / RATE_STEPS_PER_UNIT + 0.0
    return rounded
