from __future__ import annotations

import json
from unittest.mock import AsyncMock, Mock

from support.clock import ManualClock

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.host_usage import NOTHING_KNOWN, HostUsage
from loadmanager.agent.reporter import Reporter, build_report, identity_of
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.resources import HealthFigures
from loadmanager.store import znode_codec
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import (
    AGENT_PROTOCOL,
    LocalBrokerData,
    NamespaceBundleStats,
    decode_local_broker_data,
    encode_local_broker_data,
)
from loadmanager.wire.http_bodies import BrokerStats, HealthStats

SETTINGS = AgentSettings(
    broker_id="a:8080",
    broker_url="http://a:1",
    broker_service_url="pulsar://a:6650",
    load_manager_urls=("http://n:8080",),
    broker_lease_ms=3000,
)
IDENTITY = identity_of(SETTINGS, "http://127.0.0.1:9090", "here/1")
LEFT, RIGHT = "t/ns/0x00000000_0x7fffffff", "t/ns/0x7fffffff_0xffffffff"


def some_stats(rate: float = 10.0, topics: int = 2) -> NamespaceBundleStats:
    return NamespaceBundleStats(
        msgRateIn=rate,
        msgThroughputIn=rate * 100,
        msgRateOut=rate * 2,
        msgThroughputOut=rate * 200,
        consumerCount=3,
        producerCount=1,
        topics=topics,
        cacheSize=0,
    )


def a_report(
    *bundles: str,
    identity: LocalBrokerData = IDENTITY,
    usage: HostUsage = NOTHING_KNOWN,
    health: HealthStats | None = None,
    written: LocalBrokerData | None = None,
) -> LocalBrokerData:
    stats = BrokerStats(pid=1, monotonic_s=0.0, version="1.2.3", start_timestamp=1_700_000_000_000, health=health)
    return build_report(identity, usage, {name: some_stats() for name in bundles}, stats, written, 1_753_000_015_000)


def test_report_has_the_json_of_pulsar_brokers() -> None:
    report = a_report(LEFT, usage={**NOTHING_KNOWN, "cpu": {"usage": 50.0, "limit": 400.0}})
    written = json.loads(encode_local_broker_data(report))
    assert written["brokerId"] == "a:8080"
    assert written["webServiceUrl"] == "http://a:8080"
    assert written["pulsarServiceUrl"] == "pulsar://a:6650"
    assert written["cpu"] == {"usage": 50.0, "limit": 400.0}
    assert written["lastStats"] == {LEFT: dict(some_stats())}
    assert written["bundles"] == [LEFT]
    assert written["protocols"] == {AGENT_PROTOCOL: "http://127.0.0.1:9090"}
    assert written["lastUpdate"] == 1_753_000_015_000
    assert written["loadReportType"] == "LocalBrokerData"
    assert written["maxResourceUsage"] == 0.125
    assert None not in written.values()


def test_report_sums_are_over_all_bundles() -> None:
    report = a_report(LEFT, RIGHT)
    assert (report["numBundles"], report["numTopics"], report["numConsumers"], report["numProducers"]) == (2, 4, 6, 2)
    assert (report["msgRateIn"], report["msgRateOut"]) == (20.0, 40.0)
    assert (report["msgThroughputIn"], report["msgThroughputOut"]) == (2_000.0, 4_000.0)


def test_gains_and_losses_are_relative_to_the_last_report() -> None:
    first = a_report(LEFT)
    assert (first["lastBundleGains"], first["lastBundleLosses"]) == ([LEFT], [])
    second = a_report(RIGHT, written=first)
    assert (second["lastBundleGains"], second["lastBundleLosses"]) == ([RIGHT], [LEFT])


def test_unknown_limit_counts_as_no_usage() -> None:
    report = a_report(usage={**NOTHING_KNOWN, "bandwidthIn": {"usage": 10**9, "limit": 0.0}})
    assert report["maxResourceUsage"] == 0.0
    assert report["bandwidthIn"] == {"usage": 10**9, "limit": 0.0}


def test_large_compressed_report_is_read_back() -> None:
    names = [f"t/ns/0x{i:08x}_0x{i + 1:08x}" for i in range(3000)]
    report = a_report(*names)
    data = znode_codec.pack(encode_local_broker_data(report))
    assert data.startswith(b"\x1f\x8b")
    record = decode_local_broker_data(znode_codec.decode(data, "here"), "here")
    assert record == report
    assert report_of(record, "here").num_bundles == 3000


def test_report_has_the_agent_life_and_lease_length() -> None:
    report = a_report()
    assert (report["agentLife"], report["brokerLeaseMs"]) == ("here/1", 3000)


def test_tls_urls_are_published_only_by_brokers_that_have_them() -> None:
    urls = {"broker_service_url_tls": "pulsar+ssl://a:6651", "broker_web_service_url_tls": "https://a:8443"}
    by_tls = SETTINGS.model_copy(update=urls)
    written = a_report(identity=identity_of(by_tls, "", ""))
    assert (written["pulsarServiceUrlTls"], written["webServiceUrlTls"]) == ("pulsar+ssl://a:6651", "https://a:8443")
    assert not {"pulsarServiceUrlTls", "webServiceUrlTls"} & a_report().keys()


def test_broker_without_service_url_publishes_none() -> None:
    without = SETTINGS.model_copy(update={"broker_service_url": ""})
    assert "pulsarServiceUrl" not in a_report(identity=identity_of(without, "", ""))


def test_health_is_published_only_when_the_broker_states_it() -> None:
    assert "health" not in a_report()
    assert "health" not in a_report(health=HealthStats())
    health = HealthStats(latency_ms=12.5, error_share=0.0)
    report = a_report(health=health)
    assert json.loads(encode_local_broker_data(report))["health"] == {"latencyMs": 12.5, "errorShare": 0.0}
    assert report_of(report, "here").health == HealthFigures(12.5, 0.0, None)


class Reporting:
    """A reporter of a broker without topics, in virtual time: what it reads, and the number of its reports."""

    def __init__(self, stats: BrokerStats | None) -> None:
        self.clock, self.measured_s, self.fault = ManualClock(), 0.0, ""
        self.registration = Mock(incarnation=7, is_overwritten=False, publish=AsyncMock())
        self.watch = Mock(stats=stats, loads={})
        self.reporter = Reporter(
            IDENTITY,
            SETTINGS,
            self.watch,
            Mock(refresh=AsyncMock()),
            lambda: NOTHING_KNOWN,
            lambda: self.measured_s,
            AgentMetrics(BrokerId("a:8080")),
            self.clock,
            lambda: self.fault or None,
        )

    async def count(self) -> int:
        """Return the number of reports after one more look."""
        await self.reporter.tick(self.registration)
        return int(self.registration.publish.call_count)


async def test_no_report_is_written_without_statistics() -> None:
    """It would not say when the process started, and so be taken for that of another process."""
    reporting = Reporting(None)
    assert await reporting.count() == 0
    first = decode_local_broker_data(znode_codec.decode(await reporting.reporter.first_record(), "here"), "here")
    assert first["startTimestamp"] == 0


async def test_one_report_follows_an_unload_after_a_later_measurement() -> None:
    reporting = Reporting(BrokerStats(pid=1, monotonic_s=0.0))
    await reporting.reporter.first_record()
    before = await reporting.count()
    reporting.clock.advance(5.0)
    reporting.reporter.bundle_unloaded()
    reporting.measured_s = reporting.clock()
    assert await reporting.count() == before
    reporting.measured_s += 1.0
    assert [await reporting.count() for _ in range(2)] == [before + 1] * 2


async def test_one_report_follows_a_change_of_health_or_a_fault() -> None:
    reporting = Reporting(BrokerStats(pid=1, monotonic_s=0.0))
    await reporting.reporter.first_record()
    before = await reporting.count()
    reporting.watch.stats = BrokerStats(pid=1, monotonic_s=0.0, health=HealthStats(latency_ms=900.0, error_share=0.5))
    assert [await reporting.count() for _ in range(2)] == [before + 1] * 2
    reporting.fault = "it opens none"
    assert [await reporting.count() for _ in range(2)] == [before + 2] * 2
