from __future__ import annotations

from typing import Any

import orjson
import pytest
from support.registrations import a_record, load_of

from loadmanager.core.domain.resources import HealthFigures
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import LocalBrokerData, decode_local_broker_data, encode_local_broker_data

BUNDLE = "public/default/0x00000000_0x40000000"
WRITTEN_BY_A_BROKER: dict[str, Any] = {
    "brokerId": "broker-1.example.com:8080",
    "webServiceUrl": "http://broker-1.example.com:8080",
    "pulsarServiceUrl": "pulsar://broker-1.example.com:6650",
    "persistentTopicsEnabled": True,
    "nonPersistentTopicsEnabled": False,
    "cpu": {"usage": 137.5, "limit": 800.0},
    "memory": {"usage": 1843.2, "limit": 4096.0},
    "directMemory": {"usage": 512.0, "limit": 8192.0},
    "bandwidthIn": {"usage": 245760.5, "limit": 1.0e7},
    "bandwidthOut": {"usage": -1.0, "limit": -1.0},
    "msgThroughputIn": 1229312.0,
    "msgThroughputOut": 2458624.0,
    "msgRateIn": 1200.5,
    "msgRateOut": 2401.0,
    "lastUpdate": 1753000015000,
    "lastStats": {
        BUNDLE: {
            "msgRateIn": 1200.5,
            "msgThroughputIn": 1229312.0,
            "msgRateOut": 2401.0,
            "msgThroughputOut": 2458624.0,
            "consumerCount": 8,
            "producerCount": 4,
            "topics": 16,
            "cacheSize": 1048576,
        }
    },
    "numTopics": 16,
    "numBundles": 1,
    "numConsumers": 8,
    "numProducers": 4,
    "bundles": [BUNDLE],
    "lastBundleGains": [BUNDLE],
    "lastBundleLosses": [],
    "brokerVersionString": "5.0.0",
    "protocols": {},
    "advertisedListeners": {"internal": {"brokerServiceUrl": "pulsar://broker-1.example.com:6650"}},
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
    "startTimestamp": 1753000000000,
    "maxResourceUsage": 0.171875,
    "loadReportType": "LocalBrokerData",
}


def decode(text: bytes | str) -> LocalBrokerData:
    return decode_local_broker_data(text.encode() if isinstance(text, str) else text, "/the/znode")


def test_broker_record_survives_a_round_trip() -> None:
    data = orjson.dumps(WRITTEN_BY_A_BROKER)
    assert orjson.loads(encode_local_broker_data(decode(data))) == WRITTEN_BY_A_BROKER


def test_broker_record_becomes_report_columns() -> None:
    report = report_of(decode(orjson.dumps(WRITTEN_BY_A_BROKER)), "/the/znode")
    assert report.usage.tolist()[0] == [137.5, 800.0]
    assert report.usage.tolist()[4] == [-1.0, -1.0]
    assert report.load.tolist() == [1200.5, 2401.0, 1229312.0, 2458624.0]
    assert report.bundle_names == (BUNDLE,)
    assert report.bundle_load.tolist() == [[1200.5, 2401.0, 1229312.0, 2458624.0]]
    assert (report.bundle_topics.tolist(), report.bundle_sessions.tolist()) == ([16], [12])
    assert (report.num_topics, report.num_bundles, report.num_consumers, report.num_producers) == (16, 1, 8, 4)
    assert (report.version, report.persistent_enabled, report.non_persistent_enabled) == ("5.0.0", True, False)


def test_empty_record_is_an_idle_broker() -> None:
    report = report_of(decode("{}"), "/the/znode")
    assert report.usage.tolist() == [[0.0, 0.0]] * 5
    assert report.bundle_names == ()
    assert report.bundle_load.shape == (0, 4)
    assert (report.num_bundles, report.persistent_enabled) == (0, True)


def test_health_has_only_the_stated_figures() -> None:
    whole = decode('{"health":{"latencyMs":12,"errorShare":0.25,"queue":3}}')
    assert report_of(whole, "/the/znode").health == HealthFigures(12.0, 0.25, 3.0)
    part = decode('{"health":{"latencyMs":12.5,"queue":null,"more":1}}')
    assert report_of(part, "/the/znode").health == HealthFigures(latency_ms=12.5)
    for nothing in ("{}", '{"health":{}}', '{"health":null}', '{"health":{"queue":null}}'):
        assert report_of(decode(nothing), "/the/znode").health is None


@pytest.mark.parametrize("health", ['{"latencyMs":-1}', '{"errorShare":1.5}', '{"queue":"long"}', "7"])
def test_invalid_health_is_named(health: str) -> None:
    with pytest.raises(InvalidRecordError, match="health"):
        decode(f'{{"health":{health}}}')


def test_record_without_a_time_has_the_time_of_the_read() -> None:
    assert report_of(decode("{}"), "/the/znode", read_at_ms=7).last_update_ms == 7
    assert report_of(decode('{"lastUpdate":5}'), "/the/znode", read_at_ms=7).last_update_ms == 5


def test_unknown_fields_are_ignored_at_every_level() -> None:
    stats = {BUNDLE: {"msgRateIn": 1, "new": {}}}
    data = orjson.dumps({"lastStats": stats, "bundleStats": {}, "cpu": {"usage": 1, "limit": 2, "x": 3}})
    assert decode(data) == {"lastStats": {BUNDLE: {"msgRateIn": 1.0}}, "cpu": {"usage": 1.0, "limit": 2.0}}


def test_numbers_are_accepted_as_strings_and_integral_floats() -> None:
    record = decode('{"msgRateIn":"3.5","msgRateOut":1.0E7,"numTopics":3.0,"numConsumers":"4"}')
    assert record == {"msgRateIn": 3.5, "msgRateOut": 1.0e7, "numTopics": 3, "numConsumers": 4}


def test_null_counts_as_absent() -> None:
    text = f'{{"lastStats":{{"{BUNDLE}":{{"msgRateIn":null,"topics":2}}}},"cpu":null,"bundles":null,"numTopics":null}}'
    assert decode(text) == {"lastStats": {BUNDLE: {"topics": 2}}}
    assert decode('{"lastStats":null,"webServiceUrlTls":null}') == {}


def test_missing_figures_of_a_bundle_are_zero() -> None:
    report = report_of(decode(f'{{"lastStats":{{"{BUNDLE}":{{"msgThroughputIn":5}}}}}}'), "/the/znode")
    assert report.bundle_load.tolist() == [[0.0, 0.0, 5.0, 0.0]]
    assert report.bundle_topics.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "Invalid JSON"),
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ("null", "Input should be an object"),
        ('"x"', "Input should be an object"),
        (f'{{"a":{"[" * 100_000}', "Invalid JSON"),
        ('{"msgRateIn":NaN}', "msgRateIn: Input should be a finite number"),
        ('{"msgRateIn":"NaN"}', "msgRateIn: Input should be a finite number"),
        ('{"msgThroughputOut":"Infinity"}', "msgThroughputOut: Input should be a finite number"),
        ('{"msgRateIn":-1}', "msgRateIn: Input should be greater than or equal to 0"),
        ('{"msgRateIn":1e308}', "msgRateIn: Input should be less than or equal to 1"),
        ('{"msgRateIn":"fast"}', "msgRateIn: Input should be a valid number"),
        ('{"cpu":{"usage":NaN,"limit":1}}', "cpu.usage: Input should be a finite number"),
        ('{"cpu":{"usage":1e308,"limit":1}}', "cpu.usage: Input should be less than or equal to 1"),
        ('{"cpu":{"usage":1}}', "cpu.limit: Field required"),
        ('{"cpu":5}', "cpu: Input should be an object"),
        ('{"numTopics":1.5}', "numTopics: Input should be a valid integer"),
        ('{"numTopics":1e300}', "numTopics"),
        ('{"lastStats":[]}', "lastStats: Input should be an object"),
        (f'{{"lastStats":{{"{BUNDLE}":{{"topics":-1}}}}}}', f"lastStats.{BUNDLE}.topics: Input should be greater"),
        (f'{{"lastStats":{{"{BUNDLE}":{{"producerCount":{2**63}}}}}}}', "producerCount: Input should be less than"),
    ],
)
def test_invalid_record_is_rejected_with_path_and_field(text: str, complaint: str) -> None:
    with pytest.raises(InvalidRecordError) as refusal:
        decode(text)
    assert str(refusal.value).startswith("/the/znode: ")
    assert complaint in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    "name",
    ["", "x", "t/ns", "t/ns/x", "t/ns/0x0_0x1", "t/ns/0x40000000_0x00000000", "a b/ns/0x00000000_0xffffffff"]
    + [f"{'A' * 500_000}{end}" for end in ("", "/x", "/x/y")],
)
def test_invalid_bundle_name_in_statistics_is_rejected_briefly(name: str) -> None:
    record = decode(orjson.dumps({"lastStats": {name: {}}}))
    with pytest.raises(InvalidRecordError, match=r"^/the/znode: lastStats: ") as refusal:
        report_of(record, "/the/znode")
    assert len(str(refusal.value)) < 500


def test_many_long_errors_are_shortened() -> None:
    stats = {f"{'A' * 10_000}{number}": {"msgRateIn": "x" * 10_000} for number in range(100)}
    with pytest.raises(InvalidRecordError, match="and 97 more") as refusal:
        decode(orjson.dumps({"lastStats": stats}))
    assert len(str(refusal.value)) < 1000


def test_null_is_never_written() -> None:
    record = a_record("b1:8080", {BUNDLE: load_of(1.0)})
    assert b"null" not in encode_local_broker_data(record)
