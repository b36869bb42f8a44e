"""Records of the load manager in the metadata store, readable with `get`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, NotRequired

import orjson
from pydantic import Field, JsonValue, TypeAdapter
from typing_extensions import TypedDict

from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles
from loadmanager.core.domain.names import InvalidNameError, NamespaceName, parse_broker_id
from loadmanager.core.domain.ownership import FREE, NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.validation import MAX_COUNT, WireModel, parse_json, parse_model

_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,8}")
_BOUNDARIES_KEPT = 1_024
_DIVISIONS_KEPT = 64
_REGISTRATIONS_KEPT = 16_384
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class BundlesData(WireModel):
    """Boundaries of a namespace's bundles in Pulsar's format: `0x%08x`, ascending."""

    boundaries: list[str]
    num_bundles: int

    @classmethod
    def of(cls, bundles: NamespaceBundles) -> BundlesData:
        return cls(boundaries=[f"0x{b:08x}" for b in bundles.boundaries], num_bundles=len(bundles))


class OwnershipRecord(TypedDict):
    """One bundle's entry in its namespace's record. Not a pydantic model, since a record has thousands."""

    state: OwnershipState
    owner: NotRequired[str | None]
    incarnation: NotRequired[int | None]
    destination: NotRequired[str | None]
    destinationIncarnation: NotRequired[int | None]
    version: Natural
    epoch: Natural
    since: Natural
    reason: NotRequired[str]


class NamespaceRecord(WireModel):
    """`/loadbalance/namespaces/<tenant>/<namespace>`: all data for a lookup, and the unit of compare-and-set.

    `ownership` maps ranges to entries; a range without one never had an owner.
    """

    bundles: BundlesData
    hash_function: HashFunction = HashFunction.MURMUR3_32
    ownership: dict[str, OwnershipRecord] = Field(default_factory=dict)


class DeletedRecord(WireModel):
    """`/loadbalance/deleted`: the highest version that a bundle of any deleted namespace had."""

    highest_version: Natural


def encode_namespace(state: NamespaceState) -> bytes:
    """Encode a `NamespaceRecord` without building the model, for speed: each transition writes the whole record."""
    entries = zip(state.bundles.range_texts(), state.ownerships, strict=True)
    record = {
        "bundles": _boundaries_as_json(state.bundles),
        "hashFunction": state.bundles.hash_function,
        "ownership": {text: _entry(ownership) for text, ownership in entries if ownership.version},
    }
    return orjson.dumps(record)


@lru_cache(_BOUNDARIES_KEPT)
def _boundaries_as_json(bundles: NamespaceBundles) -> orjson.Fragment:
    """Encode boundaries. Cached: most namespaces have equal boundaries, and records are written often."""
    return orjson.Fragment(orjson.dumps(BundlesData.of(bundles).model_dump(by_alias=True)))


def _entry(ownership: Ownership) -> dict[str, Any]:
    """Encode an `OwnershipRecord` without null fields."""
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
    """Decode a namespace's record; raises `InvalidRecordError` if it is invalid, or does not cover the hash space."""
    record = parse_model(NamespaceRecord, data, where)
    try:
        bundles = _bundles_of(tuple(record.bundles.boundaries), record.hash_function)
        entries, texts = record.ownership, bundles.range_texts()
        ownerships = tuple([_ownership_of(entries[text]) if text in entries else FREE for text in texts])
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: {error}") from None
    if unknown := entries.keys() - set(texts):
        raise InvalidRecordError(f"{where}: ownership of {min(unknown)[:40]!r}: no such bundle among the boundaries")
    return NamespaceState(name, bundles, ownerships)


@lru_cache(_DIVISIONS_KEPT)
def _bundles_of(boundaries: tuple[str, ...], hash_function: HashFunction) -> NamespaceBundles:
    """Return a shared object per division: most namespaces are divided alike."""
    return NamespaceBundles(parse_boundaries(boundaries), hash_function)


def _ownership_of(entry: OwnershipRecord) -> Ownership:
    state, owner = entry["state"], _registration_of(entry.get("owner"), entry.get("incarnation"))
    if (owner is None) != (state is OwnershipState.FREE):
        raise InvalidNameError(f"state {state} with owner {entry.get('owner')!r}: only a free bundle has no owner")
    destination = _registration_of(entry.get("destination"), entry.get("destinationIncarnation"))
    reason = entry.get("reason", "")
    return Ownership(state, owner, destination, entry["version"], entry["epoch"], entry["since"], reason)


@lru_cache(_REGISTRATIONS_KEPT)
def _registration_of(broker: str | None, incarnation: int | None) -> Registration | None:
    """Return a shared object per registration: a node has an owner for each bundle in memory."""
    return None if broker is None else Registration(parse_broker_id(broker), incarnation or 0)


def parse_boundaries(texts: Sequence[str]) -> tuple[int, ...]:
    """Parse boundaries; raises `InvalidNameError` for the first that is not `0x` and hexadecimal digits."""
    for text in texts:
        if not _HEXADECIMAL.fullmatch(text):
            raise InvalidNameError(f"boundaries: {text[:40]!r}: expected 0x and up to 8 hexadecimal digits")
    return tuple(int(text, 16) for text in texts)


class LeaderRecord(WireModel):
    """`/loadbalance/leader`: Pulsar's fields, with the leader and its URL, plus the epoch. `life` identifies its
    process, so that nodes on its machine notice its exit.
    """

    broker_id: str
    service_url: str
    epoch: Natural
    life: str = ""


class SuspicionRecord(WireModel):
    """`/loadbalance/suspicion`: the node that gets no answer from the leader of this epoch."""

    node_id: str
    epoch: Natural


class NodeRecord(WireModel):
    """`/loadbalance/nodes/<node-id>`: one load-manager node."""

    node_id: str
    service_url: str
    version: str
    start_timestamp: Natural


_CONFIGURATION = TypeAdapter(dict[str, JsonValue])


def decode_configuration(data: bytes, where: str) -> dict[str, str]:
    """Decode `/loadbalance/configuration`: values by key, as text. Other types are converted, so that one wrong value
    does not invalidate the rest.
    """
    return {key: _as_text(value) for key, value in parse_json(_CONFIGURATION, data, where).items()}


def encode_configuration(overrides: Mapping[str, str]) -> bytes:
    return orjson.dumps(dict(sorted(overrides.items())))


def _as_text(value: JsonValue) -> str:
    match value:
        case str():
            return value
        case list():
            return ",".join(map(_as_text, value))
        case _:
            return orjson.dumps(value).decode()
