"""The records the load manager itself keeps in the metadata store, as an operator reads them with `get`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import Field, TypeAdapter

from loadmanager.core.bundles import NamespaceBundles
from loadmanager.core.hashing import HashFunction
from loadmanager.core.load import BundleAverages, TimeMean
from loadmanager.core.names import BrokerId, BundleRange, InvalidNameError, NamespaceName, parse_broker_id
from loadmanager.core.ownership import FREE, NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.validation import MAX_AMOUNT, MAX_COUNT, MAX_TOPICS, WireModel, parse_json, parse_model

_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,8}")
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]


class BundlesData(WireModel):
    """The boundaries of a namespace's bundles: Pulsar's own format, `0x%08x` ascending."""

    boundaries: list[str]
    num_bundles: int

    @classmethod
    def of(cls, bundles: NamespaceBundles) -> BundlesData:
        return cls(boundaries=[f"0x{b:08x}" for b in bundles.boundaries], num_bundles=len(bundles))


class OwnershipRecord(WireModel):
    """One bundle's entry in the record of its namespace."""

    state: OwnershipState
    owner: str | None = None
    incarnation: int | None = None
    destination: str | None = None
    destination_incarnation: int | None = None
    version: Natural
    epoch: Natural
    since: Natural
    reason: str = ""

    def value(self) -> Ownership:
        owner = _registration(self.owner, self.incarnation)
        if (owner is None) != (self.state is OwnershipState.FREE):
            raise InvalidNameError(f"state {self.state} with owner {self.owner!r}: only a free bundle has no owner")
        destination = _registration(self.destination, self.destination_incarnation)
        return Ownership(self.state, owner, destination, self.version, self.epoch, self.since, self.reason)


class NamespaceRecord(WireModel):
    """`/loadbalance/namespaces/<tenant>/<namespace>`: everything a lookup needs, and the unit of compare-and-set.

    `ownership` maps ranges to entries; a range without one never had an owner.
    """

    bundles: BundlesData
    hash_function: HashFunction = HashFunction.MURMUR3_32
    ownership: dict[str, OwnershipRecord] = Field(default_factory=dict)


class DeletedRecord(WireModel):
    """`/loadbalance/deleted`: the highest version that a bundle of any deleted namespace had."""

    highest_version: Natural


def encode_namespace(state: NamespaceState) -> bytes:
    """A `NamespaceRecord`, without making one: each transition of a bundle writes the whole record."""
    entries = zip(state.bundles.range_texts(), state.ownerships, strict=True)
    record = {
        "bundles": BundlesData.of(state.bundles).model_dump(by_alias=True),
        "hashFunction": state.bundles.hash_function,
        "ownership": {text: _entry(ownership) for text, ownership in entries if ownership.version},
    }
    return orjson.dumps(record)


def _entry(ownership: Ownership) -> dict[str, Any]:
    """An `OwnershipRecord` as it is written, without null fields."""
    entry: dict[str, Any] = {"state": ownership.state}
    if ownership.owner is not None:
        entry |= {"owner": ownership.owner.broker, "incarnation": ownership.owner.incarnation}
    if ownership.destination is not None:
        destination = ownership.destination
        entry |= {"destination": destination.broker, "destinationIncarnation": destination.incarnation}
    entry |= {"version": ownership.version, "epoch": ownership.epoch, "since": ownership.since_ms}
    entry["reason"] = ownership.reason
    return entry


def decode_namespace(name: NamespaceName, data: bytes, where: str) -> NamespaceState:
    """The state in a namespace's record; `InvalidRecordError` when it is not one, or does not cover the hash space."""
    record = parse_model(NamespaceRecord, data, where)
    try:
        bundles = NamespaceBundles(parse_boundaries(record.bundles.boundaries), record.hash_function)
        entries = [FREE] * len(bundles)
        for text, entry in record.ownership.items():
            entries[_position(bundles, text)] = entry.value()
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: {error}") from None
    return NamespaceState(name, bundles, tuple(entries))


def parse_boundaries(texts: list[str]) -> tuple[int, ...]:
    """Boundaries as numbers; `InvalidNameError` names the first that is not `0x` and hexadecimal digits."""
    for text in texts:
        if not _HEXADECIMAL.fullmatch(text):
            raise InvalidNameError(f"boundaries: {text[:40]!r}: expected 0x and up to 8 hexadecimal digits")
    return tuple(int(text, 16) for text in texts)


def _position(bundles: NamespaceBundles, text: str) -> int:
    index = bundles.find_index(BundleRange.parse(text))
    if index is None:
        raise InvalidNameError(f"ownership of {text}: no such bundle among the boundaries")
    return index


class LeaderRecord(WireModel):
    """`/loadbalance/leader`: who leads, in which epoch, and where it answers. Pulsar's fields, and the epoch."""

    broker_id: str
    service_url: str
    epoch: Natural


class NodeRecord(WireModel):
    """`/loadbalance/nodes/<node-id>`: one load-manager node."""

    node_id: str
    service_url: str
    version: str
    start_timestamp: Natural


_CONFIGURATION = TypeAdapter(dict[str, str])


def decode_configuration(data: bytes, where: str) -> dict[str, str]:
    """`/loadbalance/configuration`: values by key, as text."""
    return parse_json(_CONFIGURATION, data, where)


def encode_configuration(overrides: Mapping[str, str]) -> bytes:
    return _CONFIGURATION.dump_json(dict(sorted(overrides.items())))


class TimeAverageMessageData(WireModel):
    """A running mean over at most `max_samples` samples; rates in messages/s, throughput in bytes/s."""

    max_samples: int
    num_samples: Natural
    msg_throughput_in: Amount
    msg_throughput_out: Amount
    msg_rate_in: Amount
    msg_rate_out: Amount

    @classmethod
    def of(cls, mean: npt.NDArray[np.float64], samples: int, max_samples: int) -> TimeAverageMessageData:
        return cls(max_samples=max_samples, num_samples=samples, **_figures(mean))

    def mean(self) -> npt.NDArray[np.float64]:
        return _load_of(self)


class TimeMeanData(WireModel):
    """What one bundle carries by time, and `sigma`, how far off that it usually is; Pulsar knows nothing of it."""

    msg_throughput_in: Amount
    msg_throughput_out: Amount
    msg_rate_in: Amount
    msg_rate_out: Amount
    sigma: Amount

    @classmethod
    def of(cls, mean: TimeMean) -> TimeMeanData:
        return cls(**_figures(mean.load), sigma=mean.sigma)

    def mean(self) -> TimeMean:
        return TimeMean(_load_of(self), self.sigma)


class BundleData(WireModel):
    """One bundle's short and long running means, and its number of topics at the last report.

    Older records, and Pulsar's, have no `time_mean`.
    """

    short_term_data: TimeAverageMessageData
    long_term_data: TimeAverageMessageData
    topics: Natural = 0
    time_mean: TimeMeanData | None = None


_BUNDLE_DATA = TypeAdapter(dict[str, BundleData])
SHORT_TERM_SAMPLES = 10
LONG_TERM_SAMPLES = 1000


def encode_bundle_data(averages: Mapping[str, BundleAverages]) -> bytes:
    """`/loadbalance/bundle-data/<tenant>/<namespace>`: ranges to Pulsar's BundleData, and our mean over time."""
    records = {
        name.rpartition("/")[2]: BundleData(
            short_term_data=TimeAverageMessageData.of(value.short, value.short_samples, SHORT_TERM_SAMPLES),
            long_term_data=TimeAverageMessageData.of(value.long, value.long_samples, LONG_TERM_SAMPLES),
            topics=value.topics,
            time_mean=TimeMeanData.of(value.time_mean) if value.time_mean else None,
        )
        for name, value in averages.items()
    }
    return _BUNDLE_DATA.dump_json(records, by_alias=True, exclude_none=True)


def decode_bundle_data(namespace: str, data: bytes, where: str) -> dict[str, BundleAverages]:
    """Averages by full bundle name."""
    records = parse_json(_BUNDLE_DATA, data, where)
    return {f"{namespace}/{text}": averages_of(record) for text, record in records.items()}


def averages_of(record: BundleData) -> BundleAverages:
    """The averages of one bundle, with no more samples and topics than there can be."""
    return BundleAverages(
        short=record.short_term_data.mean(),
        long=record.long_term_data.mean(),
        short_samples=min(record.short_term_data.num_samples, SHORT_TERM_SAMPLES),
        long_samples=min(record.long_term_data.num_samples, LONG_TERM_SAMPLES),
        topics=min(record.topics, MAX_TOPICS),
        time_mean=record.time_mean.mean() if record.time_mean else None,
    )


class TimeAverageBrokerData(WireModel):
    """`/loadbalance/broker-time-average/<host:port>`: sums of the averages over the broker's bundles, Pulsar's JSON."""

    short_term_msg_throughput_in: Amount = 0.0
    short_term_msg_throughput_out: Amount = 0.0
    short_term_msg_rate_in: Amount = 0.0
    short_term_msg_rate_out: Amount = 0.0
    long_term_msg_throughput_in: Amount = 0.0
    long_term_msg_throughput_out: Amount = 0.0
    long_term_msg_rate_in: Amount = 0.0
    long_term_msg_rate_out: Amount = 0.0

    @classmethod
    def of(cls, sums: npt.NDArray[np.float64]) -> TimeAverageBrokerData:
        """`sums` has shape (2, 4): short and long term, by metric."""
        short, long = sums.tolist()
        return cls(
            short_term_msg_rate_in=short[0],
            short_term_msg_rate_out=short[1],
            short_term_msg_throughput_in=short[2],
            short_term_msg_throughput_out=short[3],
            long_term_msg_rate_in=long[0],
            long_term_msg_rate_out=long[1],
            long_term_msg_throughput_in=long[2],
            long_term_msg_throughput_out=long[3],
        )


def _figures(load: npt.NDArray[np.float64]) -> dict[str, Any]:
    """A load (4,) by the names of the fields."""
    rate_in, rate_out, throughput_in, throughput_out = load.tolist()
    return {
        "msg_throughput_in": throughput_in,
        "msg_throughput_out": throughput_out,
        "msg_rate_in": rate_in,
        "msg_rate_out": rate_out,
    }


def _load_of(record: TimeAverageMessageData | TimeMeanData) -> npt.NDArray[np.float64]:
    values = (record.msg_rate_in, record.msg_rate_out, record.msg_throughput_in, record.msg_throughput_out)
    return np.array(values, dtype=np.float64)


def _registration(broker: str | None, incarnation: int | None) -> Registration | None:
    if broker is None:
        return None
    return Registration(BrokerId(parse_broker_id(broker)), incarnation or 0)
