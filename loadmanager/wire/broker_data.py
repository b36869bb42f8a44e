"""LocalBrokerData: what a broker says of itself in `/loadbalance/brokers/<host:port>`, in Pulsar's JSON.

Decoding is the hottest path of the intake, so it goes from bytes to columns through one typed dictionary, without an
object per bundle. Source: Pulsar's LocalBrokerData and NamespaceBundleStats as its brokers write them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from operator import itemgetter
from typing import Annotated, Any, NotRequired

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from loadmanager.core.load import BrokerReport, HealthFigures
from loadmanager.core.names import BundleName, InvalidNameError
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.validation import MAX_AMOUNT, MAX_COUNT, MAX_TOPICS, parse_json

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
    """Every field Pulsar writes, and three of our agents; all of them may be absent, and unknown ones are ignored."""

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


_ADAPTER = TypeAdapter(LocalBrokerData)
_RESOURCES = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")
_LOAD = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
_UNKNOWN_USAGE = ResourceUsage(usage=0.0, limit=0.0)
_NO_STATS: NamespaceBundleStats = {
    "msgRateIn": 0.0,
    "msgRateOut": 0.0,
    "msgThroughputIn": 0.0,
    "msgThroughputOut": 0.0,
    "topics": 0,
    "consumerCount": 0,
    "producerCount": 0,
    "cacheSize": 0,
}
_COLUMNS = itemgetter(*_LOAD, "topics", "consumerCount", "producerCount", "cacheSize")
_LOAD_COLUMNS = len(_LOAD)
_RECORD_DEPTH = 3
"""The record, its maps, and their entries: no field lies deeper."""
_ALL_COLUMNS = _LOAD_COLUMNS + 4


def decode_local_broker_data(data: bytes, where: str) -> LocalBrokerData:
    """The record in `data` (JSON); `InvalidRecordError` names `where` and the faulty fields.

    A field that is null counts as absent, as everywhere in Pulsar's JSON.
    """
    return parse_json(_ADAPTER, _without_nulls(data) if b"null" in data else data, where)


def encode_local_broker_data(record: LocalBrokerData) -> bytes:
    return _ADAPTER.dump_json(record)


def report_of(
    record: LocalBrokerData,
    where: str,
    known_bundles: Container[str] = (),
    read_at_ms: int = 0,
    parse: Callable[[str], BundleName] = BundleName.parse,
) -> BrokerReport:
    """The load in a record as columns, in the order of its `lastStats`; names in `known_bundles` are not checked,
    others by `parse`.

    A record without `lastUpdate` is from the moment it was read, as in Pulsar.

    A broker has as many bundles as its record names, whatever number stands beside the names, as in Pulsar's decisions.
    """
    stats = record.get("lastStats") or {}
    check_bundle_names(stats, known_bundles, where, parse)
    matrix = _matrix(stats.values())
    return BrokerReport(
        usage=np.array([_usage(record, name) for name in _RESOURCES], dtype=np.float64),
        load=np.array([_number(record, name) for name in _LOAD], dtype=np.float64),
        num_topics=record.get("numTopics", 0),
        num_bundles=len(record.get("bundles") or ()) or record.get("numBundles", len(stats)),
        num_consumers=record.get("numConsumers", 0),
        num_producers=record.get("numProducers", 0),
        bundle_names=tuple(stats),
        bundle_load=np.ascontiguousarray(matrix[:, :_LOAD_COLUMNS]),
        bundle_topics=np.minimum(matrix[:, _LOAD_COLUMNS], MAX_TOPICS).astype(np.int64),
        bundle_sessions=matrix[:, _LOAD_COLUMNS + 1 : -1].sum(axis=1).astype(np.int64),
        bundle_cache_bytes=matrix[:, -1].astype(np.int64),
        last_update_ms=record.get("lastUpdate", read_at_ms),
        start_timestamp_ms=record.get("startTimestamp", 0),
        version=record.get("brokerVersionString", ""),
        load_manager_class=record.get("loadManagerClassName", ""),
        persistent_enabled=record.get("persistentTopicsEnabled", True),
        non_persistent_enabled=record.get("nonPersistentTopicsEnabled", True),
        health=health_of(record),
    )


def health_of(record: LocalBrokerData) -> HealthFigures | None:
    """How the broker serves; None when it does not say."""
    said = record.get("health")
    return HealthFigures(said.get("latencyMs"), said.get("errorShare"), said.get("queue")) if said else None


def check_bundle_names(
    names: Iterable[str], known: Container[str], where: str, parse: Callable[[str], BundleName]
) -> None:
    """Raise `InvalidRecordError` for the first name that is not a bundle's.

    Names in `known` parsed before: a report repeats the same names for hours, and parsing them would cost more than
    all the rest of it.
    """
    for name in names:
        if name not in known:
            try:
                parse(name)
            except InvalidNameError as error:
                raise InvalidRecordError(f"{where}: lastStats: {error}") from None


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


def _matrix(stats: Iterable[NamespaceBundleStats]) -> npt.NDArray[np.float64]:
    rows: list[Any] = []
    for entry in stats:
        try:
            rows.append(_COLUMNS(entry))
        except KeyError:
            rows.append(_COLUMNS(_NO_STATS | entry))
    return np.array(rows, dtype=np.float64).reshape(len(rows), _ALL_COLUMNS)


def _usage(record: LocalBrokerData, name: str) -> tuple[float, float]:
    usage: ResourceUsage = record.get(name, _UNKNOWN_USAGE)  # type: ignore[assignment]  # the key is one of _RESOURCES
    return usage["usage"], usage["limit"]


def _number(record: LocalBrokerData, name: str) -> float:
    number: float = record.get(name, 0.0)  # type: ignore[assignment]  # the key is one of _LOAD
    return number
