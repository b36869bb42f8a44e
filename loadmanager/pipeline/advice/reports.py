"""On what brokers report of themselves: silence, and limits that they do not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loadmanager.core.load import METRICS, RESOURCES, BrokerReport
from loadmanager.core.names import (
    BrokerId,
)
from loadmanager.core.ownership import Registration
from loadmanager.core.plan import Figure
from loadmanager.core.quality import Gate
from loadmanager.core.resources import ResourceWeights
from loadmanager.core.settings import KEYS, PlannerSettings
from loadmanager.pipeline.advice.pieces import QUIET, UNKNOWN_LIMITS, Advice


def advise_on_silence(broker: str, gaps: int, longest_s: float, reports: int, settings: PlannerSettings) -> Advice:
    """On a broker that was silent so many times for longer than a report counts, and reported again."""
    key, most_s = KEYS["broker_load_data_ttl_in_seconds"], settings.broker_load_data_ttl_in_seconds
    text = (
        f"It was silent {gaps} times for more than {key} {most_s}, up to"
        f" {longest_s:.0f} s, between {reports} reports of one life of it: meanwhile it neither gave nor got anything"
    )
    evidence: dict[str, Figure] = {
        "gaps": gaps,
        "longest_s": longest_s,
        "reports": reports,
        key: most_s,
    }
    return Advice(QUIET, broker, text, evidence)


def advise_on_limits_of_brokers(limits: Mapping[str, Sequence[float]], weights: ResourceWeights) -> list[Advice]:
    """On brokers whose last report has no limit (0) of a resource that has a weight. `limits` (5,) by broker."""
    gate = Gate()
    for broker, each in limits.items():
        gate.judge(Registration(BrokerId(broker), 0), _report_with(each), at_s=0.0, most_age_s=0.0)
    remarks = gate.doubts(0.0, 0.0, weights).remarks
    return [Advice(UNKNOWN_LIMITS, each.subject, each.sentence(), each.why) for each in remarks]


def _report_with(limits: Sequence[float]) -> BrokerReport:
    """A report of which nothing counts but the limits."""
    return BrokerReport(
        usage=np.column_stack([np.zeros(RESOURCES), limits]),
        load=np.zeros(METRICS),
        num_topics=0,
        num_bundles=0,
        num_consumers=0,
        num_producers=0,
        bundle_names=(),
        bundle_load=np.empty((0, METRICS)),
        bundle_topics=np.empty(0, dtype=np.int64),
        bundle_sessions=np.empty(0, dtype=np.int64),
        bundle_cache_bytes=np.empty(0, dtype=np.int64),
        last_update_ms=0,
        start_timestamp_ms=0,
        version="",
        load_manager_class="",
        persistent_enabled=True,
        non_persistent_enabled=True,
    )
