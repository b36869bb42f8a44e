"""The records the load manager itself keeps in the metadata store, as an operator reads them with `get`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import orjson
from pydantic import Field, TypeAdapter

from loadmanager.core.bundles import NamespaceBundles
from loadmanager.core.hashing import HashFunction
from loadmanager.core.names import BrokerId, BundleRange, InvalidNameError, NamespaceName, parse_broker_id
from loadmanager.core.ownership import FREE, NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.validation import MAX_AMOUNT, MAX_COUNT, WireModel, parse_json, parse_model

_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,8}")
_BOUNDARIES_KEPT = 1_024
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
        "bundles": _boundaries_as_json(state.bundles),
        "hashFunction": state.bundles.hash_function,
        "ownership": {text: _entry(ownership) for text, ownership in entries if ownership.version},
    }
    return orjson.dumps(record)


@lru_cache(_BOUNDARIES_KEPT)
def _boundaries_as_json(bundles: NamespaceBundles) -> orjson.Fragment:
    """Most namespaces are cut alike, and their records are written over and over."""
    return orjson.Fragment(orjson.dumps(BundlesData.of(bundles).model_dump(by_alias=True)))


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


class DoubtRecord(WireModel):
    """`/loadbalance/doubt`: the node that does not hear the leader of that epoch."""

    node_id: str
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


def _registration(broker: str | None, incarnation: int | None) -> Registration | None:
    if broker is None:
        return None
    return Registration(BrokerId(parse_broker_id(broker)), incarnation or 0)
