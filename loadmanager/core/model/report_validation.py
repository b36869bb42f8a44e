"""Whether a report of a broker is to be believed, and what is done about one that is not.

A broker whose report is doubted keeps the load of its last good one, and shedding leaves it alone: it neither gives nor
gets, until a report is good again. A new broker whose first report is doubted has nothing better, so that one counts:
clients have to be served. So it is with a broker that has long been silent, and with its last report.

Whether a broker is sick by the figures in its report is found out by `core.model.broker_health`, which hears those that
are not doubted.

A limit that is not known any more is taken to be what it was. One that never was known is said: the resource has no
part in the broker's usage, and nobody is to believe that it is 0 %.
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
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    RATED,
    THROUGHPUT_IN,
    BrokerReport,
    FloatArray,
)

_MIB = 1024 * 1024

MOST_USED = 2.0
"""Nothing uses more than this many times what it has."""
CAPACITY_CHANGES = 1.5
"""No broker has so many times as much of something as before, or so much less, without being started anew."""
ALMOST_NOTHING = 1e-6
"""Messages/s or bytes/s: less is no load, but what is left of one that decayed and was never set back."""
MOST_AHEAD_S = 60.0
"""How far the clock of a broker may be ahead of the leader's. Clocks that are kept together differ by less than a
second; a minute forgives one that is kept badly, and is little beside the age to which a report is believed.
"""
SUM_DIFFERS = 2.0
"""What a broker carries, and what its bundles add up to, are never so many times apart, above the least amounts."""
_LEAST_RATE, _LEAST_THROUGHPUT = 1_000.0, float(_MIB)


@dataclass(frozen=True, slots=True, eq=False)
class Doubts:
    """What is wrong with brokers or their reports at a moment: those to leave alone, and why; what else has to be said;
    and those that are sick or stuck, to which nothing is to be moved.
    """

    quarantined: Mapping[BrokerId, Verdict] = field(default_factory=dict)
    remarks: tuple[Verdict, ...] = ()
    sick: Mapping[BrokerId, Verdict] = field(default_factory=dict)

    @property
    def unwell(self) -> Mapping[BrokerId, Verdict]:
        """The sick brokers, and those that are no better, but too many to be kept away."""
        others = (each for each in self.remarks if each.verdict is ValidationReason.SICK_WITH_OTHERS)
        return {**{BrokerId(each.subject): each for each in others}, **self.sick}

    def is_stuck(self, broker: BrokerId) -> bool:
        return broker in self.sick and self.sick[broker].verdict is FilterReason.BROKER_STUCK

    def with_stuck(self, broker: BrokerId, why: str) -> Doubts:
        """Return the doubts with this broker stuck, or no longer so where `why` is empty."""
        others = {each: verdict for each, verdict in self.sick.items() if each != broker}
        return replace(self, sick={**others, broker: _stuck(broker, why)} if why else others)


NO_DOUBTS = Doubts()


@dataclass(frozen=True, slots=True, eq=False)
class ValidatedReport:
    """A report as it is to be taken in, if it `counts`, and why it is doubted, if it is."""

    report: BrokerReport
    counts: bool
    doubt: str | None


@dataclass(slots=True, eq=False)
class _Life:
    """What is known of one life of a broker: its last report that was not doubted, and of the very last what was wrong.

    `unknown` are the rated resources without a limit in it, `is_recalled` whether earlier limits stand in for those.
    """

    registration: Registration
    heard_s: float
    good: BrokerReport | None = None
    doubt: str | None = None
    doubted_s: float = 0.0
    unknown: frozenset[int] = frozenset()
    stuck: str = ""
    is_recalled: bool = False


class ReportValidator:
    """Judges reports as they come in. A capacity that stays changed for as long as a report may be old is believed."""

    def __init__(self) -> None:
        self._lives: dict[BrokerId, _Life] = {}
        self._health = HealthDetector()

    def judge(
        self, registration: Registration, report: BrokerReport, at_s: float, most_age_s: float
    ) -> ValidatedReport:
        """`at_s`, seconds since 1970, is when the report came in; one that is older than `most_age_s` is doubted."""
        life = self._lives.get(registration.broker)
        if life is None or life.registration != registration:
            life = self._lives[registration.broker] = _Life(registration, at_s)
        life.heard_s = at_s
        life.stuck = report.stuck
        life.unknown = frozenset(resource for resource in RATED if report.usage[resource, 1] <= 0)
        report = _with_limits_recalled(report, life)
        doubt = find_doubt(report, at_s, most_age_s)
        if doubt is None and life.good is not None and (life.doubt is None or at_s - life.doubted_s <= most_age_s):
            doubt = find_change(report, life.good)
        if doubt is not None and life.doubt is None:
            life.doubted_s = at_s
        life.doubt = doubt
        counts = doubt is None or life.good is None
        if doubt is None:
            life.good = report.without_bundles()
            self._health.hear(registration, report.health, at_s)
        return ValidatedReport(report, counts, doubt)

    def find_doubt(self, broker: BrokerId) -> str | None:
        """What is wrong with its last report."""
        life = self._lives.get(broker)
        return None if life is None else life.doubt

    def forget(self, broker: BrokerId) -> None:
        """The broker is gone."""
        self._lives.pop(broker, None)
        self._health.forget(broker)

    def doubts(
        self, now_s: float, most_age_s: float, weights: ResourceWeights, patience_s: float | None = None
    ) -> Doubts:
        """What is wrong with any broker now; limits are missed of resources that have a weight.

        `patience_s` is how long a broker has to be far off its peers to be sick, None where none is to be.
        """
        quarantined: dict[BrokerId, Verdict] = {}
        remarks = []
        rated = weighted_resources(weights)
        for broker in sorted(self._lives):
            life = self._lives[broker]
            silent_s = now_s - life.heard_s
            doubt = life.doubt
            if doubt is None and silent_s > most_age_s:
                doubt = f"it has not reported for {silent_s:.0f} s"
            if doubt is not None:
                quarantined[broker] = Verdict(
                    broker, ValidationReason.REPORT_DISTRUSTED, acted=False, why={"doubt": doubt}
                )
            unknown = ", ".join(RATED[resource] for resource in sorted(life.unknown & rated))
            if unknown:
                key = "recalled" if life.is_recalled else "unknown"
                remarks.append(Verdict(broker, ValidationReason.LIMIT_UNKNOWN, acted=False, why={key: unknown}))
        health = self._health.look(now_s, patience_s)
        remarks += health.left_in
        stuck = {broker: _stuck(broker, life.stuck) for broker, life in sorted(self._lives.items()) if life.stuck}
        sick = {**health.sick, **stuck}
        return Doubts(quarantined, tuple(remarks), sick) if quarantined or remarks or sick else NO_DOUBTS


def _stuck(broker: BrokerId, why: str) -> Verdict:
    return Verdict(broker, FilterReason.BROKER_STUCK, acted=False, why={"fault": why})


def find_doubt(report: BrokerReport, at_s: float, most_age_s: float) -> str | None:
    """What is wrong with a report by itself, in words; None when nothing is."""
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
    """What cannot have become of a good report without a restart; None when there is no such thing."""
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
    """Between the load of the broker and that of its bundles, as messages/s and as bytes/s."""
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


def _with_limits_recalled(report: BrokerReport, life: _Life) -> BrokerReport:
    """The report with the limits that the broker had before, where it has none now."""
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
    """Return the rated resources that have a weight."""
    by_resource = {
        CPU: weights.cpu,
        DIRECT_MEMORY: weights.direct_memory,
        BANDWIDTH_IN: weights.bandwidth_in,
        BANDWIDTH_OUT: weights.bandwidth_out,
    }
    return frozenset(resource for resource, weight in by_resource.items() if weight > 0)
