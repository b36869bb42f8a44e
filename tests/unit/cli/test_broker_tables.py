from __future__ import annotations

import json

import pytest

from loadmanager.cli.broker_monitor import (
    ClusterRow,
    Figure,
    Reading,
    broker_rows,
    cluster_rows,
    reading_of,
)
from loadmanager.store.metadata_store import Znode

AVERAGES = {
    "shortTermMsgThroughputIn": 2048.0,
    "shortTermMsgThroughputOut": 4096.0,
    "shortTermMsgRateIn": 3.0,
    "shortTermMsgRateOut": 5.0,
    "longTermMsgThroughputIn": 1024.0,
    "longTermMsgThroughputOut": 512.0,
    "longTermMsgRateIn": 30.0,
    "longTermMsgRateOut": 50.0,
}


def a_record(**fields: object) -> dict[str, object]:
    return {
        "cpu": {"usage": 100.0, "limit": 400.0},
        "memory": {"usage": 3.0, "limit": 4.0},
        "directMemory": {"usage": 1.0, "limit": 8.0},
        "bandwidthIn": {"usage": 1.0, "limit": 2.0},
        "bandwidthOut": {"usage": 1.0, "limit": 0.0},
        "msgRateIn": 10.0,
        "msgRateOut": 20.0,
        "msgThroughputIn": 10240.0,
        "msgThroughputOut": 20480.0,
        "numTopics": 16,
        "numBundles": 4,
        "numProducers": 7,
        "numConsumers": 9,
        "lastBundleGains": ["a", "b"],
        "lastBundleLosses": ["c"],
        **fields,
    }


def a_reading(record: object, averages: object | None = AVERAGES, broker_id: str = "b:1") -> Reading:
    written = None if averages is None else a_znode("/loadbalance/broker-time-average/b:1", averages)
    return reading_of(broker_id, a_znode("/loadbalance/brokers/b:1", record), written)


def a_znode(path: str, content: object) -> Znode:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Znode(path, data, 0, 1, 1, 0)


def figures(reading: Reading, label: str) -> dict[str, Figure]:
    [row] = [row for row in broker_rows(reading) if row.label == label]
    return dict(zip(row.headings, row.figures, strict=True))


def test_system_shows_usage_in_percent_of_the_limits_and_0_where_there_is_none() -> None:
    assert figures(a_reading(a_record()), "SYSTEM") == {
        "CPU %": 25.0,
        "MEMORY %": 75.0,
        "DIRECT %": 12.5,
        "BW IN %": 50.0,
        "BW OUT %": 0.0,
        "MAX %": 50.0,
    }


def test_the_highest_usage_leaves_heap_memory_out() -> None:
    full_heap = a_record(memory={"usage": 4.0, "limit": 4.0})
    assert figures(a_reading(full_heap), "SYSTEM")["MAX %"] == 50.0


def test_count_shows_what_the_broker_holds_and_which_bundles_came_and_went() -> None:
    assert figures(a_reading(a_record()), "COUNT") == {
        "TOPIC": 16,
        "BUNDLE": 4,
        "PRODUCER": 7,
        "CONSUMER": 9,
        "BUNDLE +": 2,
        "BUNDLE -": 1,
    }


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("LATEST", (10.0, 20.0, 30.0, 10.0, 20.0, 30.0)),
        ("SHORT", (3.0, 5.0, 8.0, 2.0, 4.0, 6.0)),
        ("LONG", (30.0, 50.0, 80.0, 1.0, 0.5, 1.5)),
    ],
)
def test_rates_are_shown_per_second_and_throughput_in_kib_per_second(label: str, expected: tuple[float, ...]) -> None:
    [row] = [row for row in broker_rows(a_reading(a_record())) if row.label == label]
    assert row.headings == ("MSG/S IN", "MSG/S OUT", "TOTAL", "KB/S IN", "KB/S OUT", "TOTAL")
    assert row.figures == expected


def test_a_broker_without_averages_is_shown_with_unknown_averages() -> None:
    reading = a_reading(a_record(), averages=None)
    assert set(figures(reading, "SHORT").values()) == {None}
    assert set(figures(reading, "LONG").values()) == {None}
    assert figures(reading, "LATEST")["TOTAL"] == 30.0
    assert reading.faults == ()


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"", "empty"),
        (b"{", "EOF"),
        (b"\xff\xfe", "not UTF-8"),
        ({"msgRateIn": -1}, "msgRateIn"),
        ({"cpu": {"usage": "much", "limit": 1}}, "cpu.usage"),
        ({"lastStats": {"no bundle": {}}}, "no bundle"),
    ],
)
def test_a_record_that_cannot_be_read_shows_its_fault_and_no_figure(record: object, said: str) -> None:
    reading = a_reading(record)
    assert [row.label for row in broker_rows(reading) if set(row.figures) == {None}] == ["SYSTEM", "COUNT", "LATEST"]
    assert len(reading.faults) == 1
    assert reading.faults[0].startswith("/loadbalance/brokers/b:1: ")
    assert said in reading.faults[0]


def test_averages_that_cannot_be_read_leave_the_rest_of_the_broker_as_it_is() -> None:
    reading = a_reading(a_record(), averages={"longTermMsgRateIn": "often"})
    assert figures(reading, "COUNT")["TOPIC"] == 16
    assert set(figures(reading, "LONG").values()) == {None}
    assert reading.faults[0].startswith("/loadbalance/broker-time-average/b:1: longTermMsgRateIn")


def test_an_empty_record_shows_a_broker_without_load() -> None:
    reading = a_reading({}, averages=None)
    assert set(figures(reading, "SYSTEM").values()) == {0.0}
    assert set(figures(reading, "COUNT").values()) == {0}
    assert reading.faults == ()


def test_bundles_are_counted_from_the_statistics_when_the_record_gives_no_number() -> None:
    record: dict[str, object] = {"lastStats": {"t/n/0x00000000_0x80000000": {}, "t/n/0x80000000_0xffffffff": {}}}
    assert figures(a_reading(record), "COUNT")["BUNDLE"] == 2


def test_a_usage_that_overflows_is_unknown() -> None:
    record = a_record(cpu={"usage": 1e300, "limit": 1e-300})
    assert figures(a_reading(record), "SYSTEM")["CPU %"] is None
    assert figures(a_reading(record), "SYSTEM")["MAX %"] is None


def test_the_table_of_all_brokers_has_each_figure_under_its_own_heading() -> None:
    """Bundles, messages/s, long-term messages/s, KB/s, MAX %."""
    [row, _] = cluster_rows([a_reading(a_record())])
    assert row == ClusterRow("b:1", (4, 30.0, 80.0, 30.0, 50.0))


def test_the_total_adds_up_what_is_known_and_shows_the_highest_usage() -> None:
    readings = [
        a_reading(a_record()),
        a_reading(a_record(cpu={"usage": 90.0, "limit": 100.0}), averages=None, broker_id="b:2"),
        a_reading(b"{", averages=None, broker_id="b:3"),
    ]
    *_, total = cluster_rows(readings)
    assert total.broker == "TOTAL"
    assert total.figures == pytest.approx((8, 60.0, 80.0, 60.0, 90.0))


def test_the_total_of_no_brokers_is_unknown() -> None:
    assert cluster_rows([]) == (ClusterRow("TOTAL", (None, None, None, None, None)),)


def a_load_report() -> dict[str, object]:
    """A broker under SimpleLoadManagerImpl whose ten bundles are expected to need what is expected by default."""
    stats = [{"topics": 1, "msgRateIn": 120.05, "msgRateOut": 240.1} for _ in range(10)]
    return {
        "loadReportType": "LoadReport",
        "systemResourceUsage": {
            "cpu": {"usage": 137.5, "limit": 800},
            "memory": {"usage": 2048, "limit": 4096},
            "directMemory": {"usage": 512, "limit": 8192},
            "bandwidthIn": {"usage": 245760.5, "limit": 1e7},
            "bandwidthOut": {"usage": 491521, "limit": 1e7},
        },
        "bundleStats": {f"t/ns/0x{i:08x}_0x{i + 1:08x}": each for i, each in enumerate(stats)},
        "allocatedCPU": 40,
        "allocatedMemory": 800,
        "allocatedBandwidthIn": 1e6,
        "allocatedBandwidthOut": 3e6,
        "allocatedMsgRateIn": 400,
        "allocatedMsgRateOut": 1200,
    }


def test_a_broker_under_the_simple_load_manager_shows_what_it_uses_and_what_it_is_expected_to_need() -> None:
    rows = {row.label: row for row in broker_rows(a_reading(a_load_report(), averages=None))}
    shown = {label: [None if f is None else round(f, 2) for f in row.figures] for label, row in rows.items()}
    assert shown == {
        "COUNT": [10, 10, 0, 0, 0, 0],
        "RAW SYSTEM": [17.19, 50, 6.25, 2.46, 4.92, 50],
        "ALLOC SYSTEM": [5, 19.53, None, 10, 30, 30],
        "RAW MSG": [1200.5, 2401, 3601.5, 240, 480, 720],
        "ALLOC MSG": [400, 1200, 1600, 976.56, 2929.69, 3906.25],
    }


def test_the_row_of_a_broker_under_the_simple_load_manager_has_its_expected_rates_as_long_term_ones() -> None:
    [row, total] = cluster_rows([a_reading(a_load_report(), averages=None)])
    assert row.figures == pytest.approx((10, 3601.5, 1600, 3906.25, 50))
    assert total.figures == row.figures


def test_a_limit_that_is_not_known_makes_an_expected_share_of_nothing() -> None:
    unknown = a_reading(a_load_report() | {"systemResourceUsage": {}}, averages=None)
    assert figures(unknown, "ALLOC SYSTEM")["MAX %"] == 0
