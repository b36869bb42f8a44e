"""LocalBrokerData: a broker's load report in `/loadbalance/brokers/<host:port>`, in Pulsar's JSON.

`wire.broker_columns` converts a record to columns. Source: Pulsar's LocalBrokerData and NamespaceBundleStats, as
written by its brokers.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, NotRequired, cast

import orjson
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from loadmanager.core.domain.resources import ALL_DIGITS, MAX_AMOUNT, HealthFigures, rounded
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.validation import MAX_COUNT, Amount, parse_json

Finite = Annotated[float, Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Sessions = Annotated[int, Field(ge=0, le=MAX_COUNT), "consumers or producers"]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_COUNT), "since 1970, or long"]
BundleKey = Annotated[str, "the name of a bundle"]

AGENT_PROTOCOL = "loadmanager-agent"
"""Key of `protocols` under which a broker's agent publishes its URL for unload calls."""


class ResourceUsage(TypedDict):
    """CPU in percent of one core, memory in MiB, bandwidth in kbit/s; a limit of 0 or less means unknown."""

    usage: Finite
    limit: Finite


class NamespaceBundleStats(TypedDict):
    """Load of one bundle: messages and bytes per second, and numbers of topics, producers and consumers."""

    msgRateIn: NotRequired[Amount]
    msgThroughputIn: NotRequired[Amount]
    msgRateOut: NotRequired[Amount]
    msgThroughputOut: NotRequired[Amount]
    consumerCount: NotRequired[Sessions]
    producerCount: NotRequired[Sessions]
    topics: NotRequired[Count]
    cacheSize: NotRequired[Count]


NO_STATS: NamespaceBundleStats = {
    "msgRateIn": 0.0,
    "msgRateOut": 0.0,
    "msgThroughputIn": 0.0,
    "msgThroughputOut": 0.0,
    "topics": 0,
    "consumerCount": 0,
    "producerCount": 0,
    "cacheSize": 0,
}


class AdvertisedListener(TypedDict, total=False):
    brokerServiceUrl: str
    brokerServiceUrlTls: str
    brokerHttpUrl: str
    brokerHttpsUrl: str


class HealthData(TypedDict, total=False):
    """Health figures of a broker, all optional: latency in milliseconds, error ratio, queue length."""

    latencyMs: Amount
    errorShare: Share
    queue: Amount


class LocalBrokerData(TypedDict, total=False):
    """All of Pulsar's fields, and four of our agents'. Each may be absent; unknown ones are ignored."""

    brokerId: str
    webServiceUrl: str
    webServiceUrlTls: str
    pulsarServiceUrl: str
    pulsarServiceUrlTls: str
    persistentTopicsEnabled: bool
    nonPersistentTopicsEnabled: bool
    cpu: ResourceUsage
    memory: ResourceUsage
    directMemory: ResourceUsage
    bandwidthIn: ResourceUsage
    bandwidthOut: ResourceUsage
    msgThroughputIn: Amount
    msgThroughputOut: Amount
    msgRateIn: Amount
    msgRateOut: Amount
    lastUpdate: Milliseconds
    lastStats: dict[BundleKey, NamespaceBundleStats] | None
    numTopics: Count
    numBundles: Count
    numConsumers: Count
    numProducers: Count
    bundles: list[BundleKey] | None
    lastBundleGains: list[BundleKey] | None
    lastBundleLosses: list[BundleKey] | None
    brokerVersionString: str
    protocols: dict[str, str] | None
    advertisedListeners: dict[str, AdvertisedListener] | None
    loadManagerClassName: str
    startTimestamp: Milliseconds
    maxResourceUsage: Finite
    loadReportType: str
    agentLife: str
    brokerLeaseMs: Milliseconds
    health: HealthData
    stuck: str


_ADAPTER = TypeAdapter(LocalBrokerData)
OF_BUNDLES = frozenset({"lastStats", "bundles", "lastBundleGains", "lastBundleLosses"})
"""The fields that grow with a broker's bundles."""
_RESOURCES = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")
_LOAD = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
_UNKNOWN_USAGE = ResourceUsage(usage=0.0, limit=0.0)
_RECORD_DEPTH = 3
"""Maximum depth of a field: the record, its maps, and their entries."""


MAX_BUNDLES_PER_REPORT = 20_000
"""Maximum bundles per report: about as many as fit into a znode. Reading a larger report would block a node."""

_OTHER_OBJECTS = 1_000
"""Limit on the number of entries other than bundles: resources, protocols, listeners."""

_COMMAS_PER_BUNDLE = 16
"""Upper limit of the commas per bundle: its fields, and its name in each of the record's lists."""


class LoadAndUsage(NamedTuple):
    """Totals of a record: messages/s in and out, bytes/s in and out; usage and limit of each of the five resources;
    number of bundles.
    """

    load: tuple[float, ...]
    usage: tuple[tuple[float, float], ...]
    num_bundles: int


def decode_local_broker_data(data: bytes, where: str) -> LocalBrokerData:
    """Decode the record (JSON); raises `InvalidRecordError`, which names `where` and the faulty fields.

    A field that is null counts as absent, as everywhere in Pulsar's JSON.
    """
    return parse_json(_ADAPTER, _without_nulls(data) if b"null" in data else data, where)


def decode_broker_record(data: bytes, where: str, most_bundles: int) -> LocalBrokerData:
    """Decode as `decode_local_broker_data`; refuse a record of more than `most_bundles` bundles.

    A record that must have more by its size is refused without parsing, which would block the interpreter.
    """
    most = most_bundles + _OTHER_OBJECTS
    if data.count(b"{") > most or data.count(b",") > most * _COMMAS_PER_BUNDLE:
        raise InvalidRecordError(f"{where}: more than {most_bundles} bundles")
    record = decode_local_broker_data(data, where)
    if len(record.get("lastStats") or ()) > most_bundles:
        raise InvalidRecordError(f"{where}: more than {most_bundles} bundles")
    return record


def encode_local_broker_data(record: LocalBrokerData, digits: int = ALL_DIGITS) -> bytes:
    """Encode the record as JSON; rates of bundles are rounded to `digits` significant digits."""
    if digits < ALL_DIGITS:
        stats = record.get("lastStats") or {}
        record = {**record, "lastStats": {name: _round_figures(each, digits) for name, each in stats.items()}}
    return _ADAPTER.dump_json(record)


def _round_figures(stats: NamespaceBundleStats, digits: int) -> NamespaceBundleStats:
    figures = {name: rounded(value, digits) if isinstance(value, float) else value for name, value in stats.items()}
    return cast("NamespaceBundleStats", figures)


def load_and_usage_of(record: LocalBrokerData) -> LoadAndUsage:
    """Return the totals of a record. The number of bundles is the number of names, as in Pulsar's decisions."""
    return LoadAndUsage(
        load=tuple(_number(record, name) for name in _LOAD),
        usage=tuple(_usage(record, name) for name in _RESOURCES),
        num_bundles=len(record.get("bundles") or ()) or record.get("numBundles", len(record.get("lastStats") or ())),
    )


def health_of(record: LocalBrokerData) -> HealthFigures | None:
    """Return the broker's health figures; None if it reports none."""
    health = record.get("health")
    return HealthFigures(health.get("latencyMs"), health.get("errorShare"), health.get("queue")) if health else None


def _without_nulls(data: bytes) -> bytes:
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data  # the parser that follows reports the fault
    return orjson.dumps(_drop_nulls(content))


def _drop_nulls(value: object, depth: int = _RECORD_DEPTH) -> object:
    """Return the value without null entries of its objects, down to this depth."""
    if not depth or not isinstance(value, dict):
        return value
    return {key: _drop_nulls(entry, depth - 1) for key, entry in value.items() if entry is not None}


def _usage(record: LocalBrokerData, name: str) -> tuple[float, float]:
    usage: ResourceUsage = record.get(name, _UNKNOWN_USAGE)  # type: ignore[assignment]  # the key is one of _RESOURCES
    return usage["usage"], usage["limit"]


def _number(record: LocalBrokerData, name: str) -> float:
    number: float = record.get(name, 0.0)  # type: ignore[assignment]  # the key is one of _LOAD
    return number
