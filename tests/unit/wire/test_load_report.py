from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from loadmanager.errors import InvalidRecordError
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import decode_local_broker_data
from loadmanager.wire.load_report import decode_broker_record, find_load_report
from loadmanager.wire.validation import MAX_COUNT

BUNDLE = "public/default/0x00000000_0x40000000"
OTHER = "public/default/0x40000000_0x80000000"
USAGE = {
    "bandwidthIn": {"usage": 245760.5, "limit": 1.0e7},
    "bandwidthOut": {"usage": 491521.0, "limit": 1.0e7},
    "cpu": {"usage": 137.5, "limit": 800.0},
    "memory": {"usage": 1843.2, "limit": 4096.0},
    "directMemory": {"usage": 512.0, "limit": 8192.0},
}
STATS = {
    "msgRateIn": 1200.5,
    "msgThroughputIn": 1229312.0,
    "msgRateOut": 2401.0,
    "msgThroughputOut": 2458624.0,
    "consumerCount": 8,
    "producerCount": 4,
    "topics": 16,
    "cacheSize": 1048576,
}
ALLOCATED = tuple(
    f"{when}{what}"
    for when in ("allocated", "preAllocated")
    for what in ("CPU", "Memory", "BandwidthIn", "BandwidthOut", "MsgRateIn", "MsgRateOut")
)
WRITTEN_BY_A_BROKER: dict[str, Any] = {
    "name": "b:8080",
    "brokerVersionString": "2.0",
    "webServiceUrl": "http://b:8080",
    "pulsarServiceUrl": "pulsar://b:6650",
    "persistentTopicsEnabled": True,
    "nonPersistentTopicsEnabled": True,
    "timestamp": 1753000015000,
    "msgRateIn": 1200.5,
    "msgRateOut": 2401.0,
    "numTopics": 16,
    "numConsumers": 8,
    "numProducers": 4,
    "numBundles": 1,
    "protocols": {},
    "startTimestamp": 1753000015000,
    "systemResourceUsage": USAGE,
    "bundleStats": {BUNDLE: STATS},
    "bundleGains": [],
    "bundleLosses": [],
    **dict.fromkeys(ALLOCATED, 0.0),
    **USAGE,
    "loadReportType": "LoadReport",
    "lastUpdate": 1753000015000,
    "msgThroughputIn": 1200.5,
    "msgThroughputOut": 2401.0,
    "underLoaded": False,
    "overLoaded": False,
}


def written(**changed: object) -> bytes:
    return orjson.dumps(WRITTEN_BY_A_BROKER | changed)


def test_a_load_report_is_the_same_report_as_that_of_any_other_broker() -> None:
    report = report_of(decode_broker_record(written(), "here"), "here")
    assert report.usage.tolist() == [
        [137.5, 800],
        [1843.2, 4096],
        [512, 8192],
        [245760.5, 1e7],
        [491521, 1e7],
    ]
    assert (report.num_topics, report.num_bundles, report.num_consumers, report.num_producers) == (16, 1, 8, 4)
    assert report.bundle_names == (BUNDLE,)
    assert report.bundle_load.tolist() == [[1200.5, 2401, 1229312, 2458624]]
    assert (report.bundle_topics.tolist(), report.bundle_sessions.tolist()) == ([16], [12])
    assert report.bundle_cache_bytes.tolist() == [1048576]
    assert (report.last_update_ms, report.start_timestamp_ms, report.version) == (1753000015000, 0, "2.0")
    assert (report.persistent_enabled, report.non_persistent_enabled) == (True, True)


def test_its_throughput_is_what_its_bundles_add_up_to_where_its_own_totals_are_message_rates() -> None:
    report = report_of(decode_broker_record(written(bundleStats={BUNDLE: STATS, OTHER: STATS}), "here"), "here")
    assert report.load.tolist() == [2401, 4802, 2 * 1229312, 2 * 2458624]
    assert (report.num_topics, report.num_bundles) == (32, 2)


def test_the_record_keeps_who_the_broker_is_and_what_it_gained_and_lost() -> None:
    record = decode_broker_record(written(bundleGains=[BUNDLE], bundleLosses=[OTHER]), "here")
    assert (record["brokerId"], record["webServiceUrl"]) == ("b:8080", "http://b:8080")
    assert record["pulsarServiceUrl"] == "pulsar://b:6650"
    assert (record["lastBundleGains"], record["lastBundleLosses"]) == ([BUNDLE], [OTHER])


@pytest.mark.parametrize("mark", ["loadReportType", "underLoaded"])
def test_either_of_its_two_marks_is_enough_to_tell_it(mark: str) -> None:
    without = {name: value for name, value in WRITTEN_BY_A_BROKER.items() if name != mark}
    assert decode_broker_record(orjson.dumps(without), "here").get("brokerId") == "b:8080"


def test_a_record_without_its_marks_is_read_as_that_of_any_other_broker() -> None:
    for content in [
        {"brokerId": "b:8080", "loadReportType": "LocalBrokerData"},
        {"brokerId": "LoadReport:80", "protocols": {"is": "LoadReport"}},
    ]:
        data = orjson.dumps(content)
        assert find_load_report(data, "here") is None
        assert decode_broker_record(data, "here") == decode_local_broker_data(data, "here")


@pytest.mark.parametrize("data", [b'{"underLoaded": ', b'["underLoaded"]', b'"LoadReport"'])
def test_what_is_no_record_at_all_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="here"):
        decode_broker_record(data, "here")


def test_a_load_report_with_a_field_of_another_type_is_refused_by_name() -> None:
    with pytest.raises(InvalidRecordError, match=r"here.*timestamp"):
        decode_broker_record(written(timestamp="yesterday"), "here")


def test_what_is_absent_or_null_is_nothing_and_no_error() -> None:
    for data in (b'{"underLoaded": false}', b'{"underLoaded":null,"bundleStats":null,"systemResourceUsage":null}'):
        report = report_of(decode_broker_record(data, "here"), "here")
        assert (report.num_bundles, report.num_topics, report.last_update_ms) == (0, 0, 0)
        assert not np.any(report.usage)


def test_counts_beyond_all_bounds_stay_within_them() -> None:
    stats = {BUNDLE: STATS | {"topics": MAX_COUNT}, OTHER: STATS | {"topics": MAX_COUNT}}
    assert decode_broker_record(written(bundleStats=stats), "here")["numTopics"] == MAX_COUNT
