"""LoadReport: the record of a broker under Pulsar's SimpleLoadManagerImpl, in the same znode as the others.

Source: Pulsar's LoadReport as its brokers write it. Its totals are what its bundles add up to. Those at the top level
are not looked at: `msgThroughputIn` and `msgThroughputOut` there are message rates, by a getter's mistake.

Differs from Pulsar: a report without `systemResourceUsage` is of a broker whose usage is not known, where Pulsar stops
looking at any report; the znode's name is the broker's, not `name`; and `startTimestamp` is not looked at: it is the
time of the report, not that of the broker's start.
"""

from __future__ import annotations

from typing import Any, cast

import orjson
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from loadmanager.errors import InvalidRecordError
from loadmanager.wire.broker_data import (
    Amount,
    Count,
    LocalBrokerData,
    NamespaceBundleStats,
    ResourceUsage,
    decode_local_broker_data,
    drop_nulls,
)
from loadmanager.wire.validation import MAX_COUNT, parse_json

LOAD_REPORT = "LoadReport"
"""The value of `loadReportType` in such a record."""

MAX_BUNDLES_PER_REPORT = 20_000
"""An agent's report of about so many bundles fits into a znode. Reading a larger one would block a node."""

_OTHER_OBJECTS = 1_000
"""Limit on a record's entries besides its bundles: resources, protocols, listeners."""

_COMMAS_PER_BUNDLE = 16
"""Fields of a bundle, and its name in each of the record's lists: more than there are."""

_MARKS = (b'"underLoaded"', b'"LoadReport"')


class SystemResourceUsage(TypedDict, total=False):
    cpu: ResourceUsage
    memory: ResourceUsage
    directMemory: ResourceUsage
    bandwidthIn: ResourceUsage
    bandwidthOut: ResourceUsage


class LoadReport(TypedDict, total=False):
    """Fields that are used: CPU in percent of one core, memory in MB, message rates per second, bandwidths of
    `systemResourceUsage` in kbit/s and allocated ones in bytes/s.
    """

    name: str
    brokerVersionString: str
    webServiceUrl: str
    webServiceUrlTls: str
    pulsarServiceUrl: str
    pulsarServiceUrlTls: str
    persistentTopicsEnabled: bool
    nonPersistentTopicsEnabled: bool
    timestamp: Count
    protocols: dict[str, str]
    loadManagerClassName: str
    systemResourceUsage: SystemResourceUsage
    bundleStats: dict[str, NamespaceBundleStats]
    bundleGains: list[str]
    bundleLosses: list[str]
    allocatedCPU: Amount
    allocatedMemory: Amount
    allocatedBandwidthIn: Amount
    allocatedBandwidthOut: Amount
    allocatedMsgRateIn: Amount
    allocatedMsgRateOut: Amount


_ADAPTER = TypeAdapter(LoadReport)
_SAME = (
    "brokerVersionString",
    "webServiceUrl",
    "webServiceUrlTls",
    "pulsarServiceUrl",
    "pulsarServiceUrlTls",
    "persistentTopicsEnabled",
    "nonPersistentTopicsEnabled",
    "protocols",
    "loadManagerClassName",
)
_RENAMED = {
    "name": "brokerId",
    "timestamp": "lastUpdate",
    "bundleStats": "lastStats",
    "bundleGains": "lastBundleGains",
    "bundleLosses": "lastBundleLosses",
} | {name: name for name in _SAME}
_TOTALS = {
    "msgRateIn": "msgRateIn",
    "msgRateOut": "msgRateOut",
    "msgThroughputIn": "msgThroughputIn",
    "msgThroughputOut": "msgThroughputOut",
    "numTopics": "topics",
    "numConsumers": "consumerCount",
    "numProducers": "producerCount",
}
"""The totals of a LocalBrokerData, and the field of a bundle that each adds up."""
_COUNTS = ("numTopics", "numConsumers", "numProducers")


def decode_broker_record(data: bytes, where: str, most_bundles: int | None = None) -> LocalBrokerData:
    """Decode a broker's record of either form as LocalBrokerData; raises `InvalidRecordError` as for that one.

    A record that cannot but name more than `most_bundles` is refused unread: parsing it would hold the interpreter.
    """
    if most_bundles is not None:
        most = most_bundles + _OTHER_OBJECTS
        if data.count(b"{") > most or data.count(b",") > most * _COMMAS_PER_BUNDLE:
            raise _too_many(most_bundles, where)
    report = find_load_report(data, where)
    record = decode_local_broker_data(data, where) if report is None else local_broker_data_of(report)
    if most_bundles is not None and len(record.get("lastStats") or ()) > most_bundles:
        raise _too_many(most_bundles, where)
    return record


def _too_many(most_bundles: int, where: str) -> InvalidRecordError:
    return InvalidRecordError(f"{where}: more than {most_bundles} bundles")


def find_load_report(data: bytes, where: str) -> LoadReport | None:
    """Return the LoadReport in `data`, None for any other record: it names its type, or has the key `underLoaded`.

    Raises `InvalidRecordError`.
    """
    if not any(mark in data for mark in _MARKS):
        return None
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None  # whoever reads it as another record says what is wrong
    if not isinstance(content, dict):
        return None
    if content.get("loadReportType") != LOAD_REPORT and "underLoaded" not in content:
        return None
    return parse_json(_ADAPTER, orjson.dumps(drop_nulls(content)), where)


def local_broker_data_of(report: LoadReport) -> LocalBrokerData:
    """Convert a LoadReport into the form that all other brokers use."""
    stats = report.get("bundleStats", {})
    fields: dict[str, Any] = {_RENAMED[name]: value for name, value in report.items() if name in _RENAMED}
    for total, name in _TOTALS.items():
        fields[total] = sum(cast("dict[str, float]", each).get(name, 0) for each in stats.values())
    for total in _COUNTS:
        fields[total] = min(fields[total], MAX_COUNT)
    fields |= report.get("systemResourceUsage", {})
    fields |= {"numBundles": len(stats), "bundles": list(stats), "loadReportType": LOAD_REPORT}
    return cast("LocalBrokerData", fields)
