"""Load report of the broker: its content, and when it is due by Pulsar's rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

import structlog

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.broker_watch import BrokerWatch
from loadmanager.agent.bundle_stats import bundle_loads
from loadmanager.agent.host_usage import HostUsage
from loadmanager.agent.node_queries import NamespaceCache
from loadmanager.agent.registration import Registrar
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.core.domain.reasons import ReportReason
from loadmanager.core.domain.resources import UsedResources
from loadmanager.core.model.broker_health import has_changed
from loadmanager.core.model.report_rule import ReportDue, ReportFigures, report_due
from loadmanager.errors import StoreError
from loadmanager.store import znode_codec
from loadmanager.util import clock
from loadmanager.util.timed_wait import wait_at_most
from loadmanager.wire.broker_data import (
    AGENT_PROTOCOL,
    HealthData,
    LocalBrokerData,
    NamespaceBundleStats,
    encode_local_broker_data,
    health_of,
    load_and_usage_of,
)
from loadmanager.wire.http_bodies import BrokerStats

log = structlog.get_logger(__name__)

LOAD_MANAGER_CLASS = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
"""Class name in reports: readers of the format drop brokers whose load manager differs from their own."""


def identity_of(settings: AgentSettings, agent_url: str, agent_life: str) -> LocalBrokerData:
    """Return the constant fields of all reports of the agent."""
    urls = {
        "pulsarServiceUrl": settings.broker_service_url,
        "pulsarServiceUrlTls": settings.broker_service_url_tls,
        "webServiceUrl": settings.broker_web_service_url or f"http://{settings.broker_id}",
        "webServiceUrlTls": settings.broker_web_service_url_tls,
    }
    return {
        "brokerId": settings.broker_id,
        **cast("LocalBrokerData", {name: url for name, url in urls.items() if url}),
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "protocols": {AGENT_PROTOCOL: agent_url},
        "advertisedListeners": {},
        "loadManagerClassName": LOAD_MANAGER_CLASS,
        "loadReportType": "LocalBrokerData",
        "agentLife": agent_life,
        "brokerLeaseMs": settings.broker_lease_ms,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Report:
    record: LocalBrokerData
    figures: ReportFigures


def build_report(
    identity: LocalBrokerData,
    usage: HostUsage,
    bundles: Mapping[str, NamespaceBundleStats],
    stats: BrokerStats | None,
    written: LocalBrokerData | None,
    now_ms: int,
) -> LocalBrokerData:
    """Build the current report; `identity` has its constant fields, `bundles` the load by full bundle name.

    Gains and losses are relative to `written`, the last report in the store.
    """
    names = sorted(bundles)
    before = set((written or {}).get("bundles") or ())
    record: LocalBrokerData = {
        **identity,
        **cast("LocalBrokerData", usage),
        "lastUpdate": now_ms,
        "lastStats": {name: bundles[name] for name in names},
        "numBundles": len(names),
        "bundles": names,
        "lastBundleGains": [name for name in names if name not in before],
        "lastBundleLosses": sorted(before.difference(names)),
        "brokerVersionString": stats.version if stats else "",
        "startTimestamp": stats.start_timestamp if stats else 0,
    }
    health = stats.health if stats else None
    if health is not None and (figures := health.model_dump(by_alias=True, exclude_none=True)):
        record["health"] = cast("HealthData", figures)
    _add_sums(record, bundles.values())
    record["maxResourceUsage"] = UsedResources.of(load_and_usage_of(record).usage).most()
    return record


@dataclass(slots=True, eq=False)
class Reporter:
    """Writes the load report when it is due.

    It is due when `report_due` says so, when bundles, limits, health or faults change, and after an unload once
    everything was measured again. Until then the leader moves nothing more from this broker.

    `host_usage()` is the last usage, measured at `measured_at_s()`; `find_fault()` returns why the broker is stuck.
    """

    identity: LocalBrokerData
    settings: AgentSettings
    watch: BrokerWatch
    namespaces: NamespaceCache
    host_usage: Callable[[], HostUsage]
    measured_at_s: Callable[[], float]
    metrics: AgentMetrics
    clock: Callable[[], float]
    find_fault: Callable[[], str | None]
    _unloaded_at_s: float | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _first: _Report | None = None
    _written: _Report | None = None
    _incarnation: int | None = None

    async def first_record(self) -> bytes:
        """Return the content of a new znode."""
        self._first = self._build(None)
        return await asyncio.to_thread(pack_report, self._first.record)

    def bundle_unloaded(self) -> None:
        """Note that the broker has closed a bundle: the last report no longer shows its load."""
        self._unloaded_at_s = self.clock()

    def bundles_changed(self) -> None:
        """Check now whether a report is due: boundaries have changed, and the last report has the old bundles."""
        self._wake.set()

    async def run(self, registration: Registrar) -> None:
        while True:
            await wait_at_most(self._wake, self.settings.load_balancer_report_update_min_interval_millis / 1000)
            self._wake.clear()
            await self.tick(registration)

    async def tick(self, registration: Registrar) -> None:
        """Write the report if it is due."""
        await self.namespaces.refresh(self.watch.loads)
        incarnation = registration.incarnation
        if incarnation is None or self.watch.stats is None:
            return
        if incarnation != self._incarnation:
            self._incarnation, self._written = incarnation, self._first
        report = self._build(self._written)
        last = self._written.figures if self._written else None
        threshold_percent = self.settings.load_balancer_report_update_threshold_percentage
        longest_s = self.settings.load_balancer_report_update_max_interval_minutes * 60
        due = (
            self._unload_reported()
            or report_due(last, report.figures, threshold_percent, longest_s)
            or self._find_change(report)
            or (ReportDue(ReportReason.RECORD_OVERWRITTEN, "", 0.0) if registration.is_overwritten else None)
        )
        if due is not None:
            await self._write(registration, report, due)

    def _unload_reported(self) -> ReportDue | None:
        """Due after an unload, once all figures were measured after it."""
        if self._unloaded_at_s is None or self.measured_at_s() <= self._unloaded_at_s:
            return None
        return ReportDue(ReportReason.BUNDLE_UNLOADED, "bundles", 0.0)

    def _find_change(self, report: _Report) -> ReportDue | None:
        """Due if something has changed that the figures of `report_due` do not show."""
        if self._written is None:
            return None
        before, now = self._written.record, report.record
        has_other = {
            "bundles": before["bundles"] != now["bundles"],  # until then a new one counts with its old load
            "limits": _limits(before) != _limits(now),  # the first report, before any measurement, has none
            "health": has_changed(health_of(before), health_of(now)),  # a sick broker may change no other figure
            "stuck": ("stuck" in before) != ("stuck" in now),
        }
        figure = next((name for name, is_other in has_other.items() if is_other), None)
        return None if figure is None else ReportDue(ReportReason.LOAD_CHANGED, figure, 0.0)

    async def _write(self, registration: Registrar, report: _Report, due: ReportDue) -> None:
        try:
            await registration.publish(await asyncio.to_thread(pack_report, report.record))
        except StoreError as error:
            log.warning("report_not_written", reason=due.reason, error=str(error))
            self.metrics.reports.labels("failed").inc()
            return
        self._written = report
        if due.reason is ReportReason.BUNDLE_UNLOADED:
            self._unloaded_at_s = None
        self.metrics.reports.labels("written").inc()
        log.info("report_written", reason=due.reason, figure=due.figure, bundles=report.record["numBundles"])

    def _build(self, written: _Report | None) -> _Report:
        bundles, unmapped = bundle_loads(self.watch.loads, self._bundle_of)
        self.metrics.unmapped_topics.set(len(unmapped))
        before = written.record if written else None
        record = build_report(self.identity, self.host_usage(), bundles, self.watch.stats, before, clock.now_ms())
        if (fault := self.find_fault()) is not None:
            record["stuck"] = fault
        figures = ReportFigures.of(*load_and_usage_of(record), self.settings.resource_weights, self.clock())
        return _Report(record, figures)

    def _bundle_of(self, topic: str) -> str | None:
        bundle = self.namespaces.find_bundle(topic)
        return str(bundle) if bundle else None


def pack_report(record: LocalBrokerData) -> bytes:
    """Encode the record as a znode. Call it in a thread: many bundles take long."""
    return znode_codec.pack_rounded(lambda digits: encode_local_broker_data(record, digits))


def _limits(record: LocalBrokerData) -> list[float]:
    resources = (record[name] for name in ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut"))
    return [resource["limit"] for resource in resources]


def _add_sums(record: LocalBrokerData, stats: Collection[NamespaceBundleStats]) -> None:
    record["msgThroughputIn"] = sum(entry["msgThroughputIn"] for entry in stats)
    record["msgThroughputOut"] = sum(entry["msgThroughputOut"] for entry in stats)
    record["msgRateIn"] = sum(entry["msgRateIn"] for entry in stats)
    record["msgRateOut"] = sum(entry["msgRateOut"] for entry in stats)
    record["numTopics"] = sum(entry["topics"] for entry in stats)
    record["numConsumers"] = sum(entry["consumerCount"] for entry in stats)
    record["numProducers"] = sum(entry["producerCount"] for entry in stats)
