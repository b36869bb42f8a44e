"""LocalBrokerData: what a broker says of itself in `/loadbalance/brokers/<host:port>`, in Pulsar's JSON.

`wire.broker_columns` makes columns of a record. Source: Pulsar's LocalBrokerData and NamespaceBundleStats as its
brokers write them.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, NotRequired, cast

import orjson
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from loadmanager.core.domain.amounts import ALL_DIGITS, MAX_AMOUNT, rounded
from loadmanager.core.domain.resources import HealthFigures
from loadmanager.wire.validation import MAX_COUNT, parse_json

Finite = Annotated[float, Field(ge=-MAX_AMOUNT, le=MAX_AMOUNT, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Sessions = Annotated[int, Field(ge=0, le=MAX_COUNT), "consumers or producers"]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_COUNT), "since 1970, or long"]
BundleKey = Annotated[str, "the name of a bundle"]

AGENT_PROTOCOL = "loadmanager-agent"
"""The key of `protocols` under which a broker's agent publishes the URL that takes unload calls."""


class ResourceUsage(TypedDict):
    """CPU in percent of one core, memory in MiB, bandwidth in kbit/s; a limit of 0 or less means unknown."""

    usage: Finite
    limit: Finite


class NamespaceBundleStats(TypedDict):
    """One bundle's load: messages and bytes per second, and how much of everything it holds."""

    msgRateIn: NotRequired[Amount]
    msgThroughputIn: NotRequired[Amount]
    msgRateOut: NotRequired[Amount]
    msgThroughputOut: NotRequired[Amount]
    consumerCount: NotRequired[Sessions]
    producerCount: NotRequired[Sessions]
    topics: NotRequired[Count]
    cacheSize: NotRequired[Count]


class AdvertisedListener(TypedDict, total=False):
    brokerServiceUrl: str
    brokerServiceUrlTls: str
    brokerHttpUrl: str
    brokerHttpsUrl: str


class HealthData(TypedDict, total=False):
    """How the broker serves, as far as it says: milliseconds, a share of requests, and a number of them."""

    latencyMs: Amount
    errorShare: Share
    queue: Amount


class LocalBrokerData(TypedDict, total=False):
    """Every field Pulsar writes, and four of our agents; all of them may be absent, and unknown ones are ignored."""

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
OF_BUNDLES: tuple[Literal["lastStats", "bundles", "lastBundleGains", "lastBundleLosses"], ...] = (
    "lastStats",
    "bundles",
    "lastBundleGains",
    "lastBundleLosses",
)
"""The fields that grow with a broker's bundles."""
_RESOURCES = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")
_LOAD = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
_UNKNOWN_USAGE = ResourceUsage(usage=0.0, limit=0.0)
_RECORD_DEPTH = 3
"""The record, its maps, and their entries: no field lies deeper."""


class LoadAndUsage(NamedTuple):
    """The sums in a record: messages/s in and out, bytes/s in and out; of each of the five resources how much is used,
    and the limit; and the number of bundles.
    """

    load: tuple[float, ...]
    usage: tuple[tuple[float, float], ...]
    num_bundles: int


def decode_local_broker_data(data: bytes, where: str) -> LocalBrokerData:
    """The record in `data` (JSON); `InvalidRecordError` names `where` and the faulty fields.

    A field that is null counts as absent, as everywhere in Pulsar's JSON.
    """
    return parse_json(_ADAPTER, _without_nulls(data) if b"null" in data else data, where)


def encode_local_broker_data(record: LocalBrokerData, digits: int = ALL_DIGITS) -> bytes:
    """The record as JSON; the rates of its bundles have so many significant digits."""
    if digits < ALL_DIGITS:
        stats = record.get("lastStats") or {}
        record = {**record, "lastStats": {name: _rounded(each, digits) for name, each in stats.items()}}
    return _ADAPTER.dump_json(record)


def _rounded(stats: NamespaceBundleStats, digits: int) -> NamespaceBundleStats:
    figures = {name: rounded(value, digits) if isinstance(value, float) else value for name, value in stats.items()}
    return cast("NamespaceBundleStats", figures)


def load_and_usage_of(record: LocalBrokerData) -> LoadAndUsage:
    """A broker has as many bundles as its record names, whatever number stands beside the names, as in Pulsar's
    decisions.
    """
    return LoadAndUsage(
        load=tuple(_number(record, name) for name in _LOAD),
        usage=tuple(_usage(record, name) for name in _RESOURCES),
        num_bundles=len(record.get("bundles") or ()) or record.get("numBundles", len(record.get("lastStats") or ())),
    )


def health_of(record: LocalBrokerData) -> HealthFigures | None:
    """How the broker serves; None when it does not say."""
    said = record.get("health")
    return HealthFigures(said.get("latencyMs"), said.get("errorShare"), said.get("queue")) if said else None


def _without_nulls(data: bytes) -> bytes:
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data  # whoever parses it next says what is wrong
    return orjson.dumps(drop_nulls(content))


def drop_nulls(value: object, depth: int = _RECORD_DEPTH) -> object:
    """The value without the entries of its objects that are null, so many levels down."""
    if not depth or not isinstance(value, dict):
        return value
    return {key: drop_nulls(entry, depth - 1) for key, entry in value.items() if entry is not None}


def _usage(record: LocalBrokerData, name: str) -> tuple[float, float]:
    usage: ResourceUsage = record.get(name, _UNKNOWN_USAGE)  # type: ignore[assignment]  # the key is one of _RESOURCES
    return usage["usage"], usage["limit"]


def _number(record: LocalBrokerData, name: str) -> float:
    number: float = record.get(name, 0.0)  # type: ignore[assignment]  # the key is one of _LOAD
    return number
