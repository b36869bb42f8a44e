"""Events that nodes push, their validation, and the owners in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from loadmanager.core.domain.bundles import HashFunction
from loadmanager.core.domain.names import BundleRange, InvalidNameError, NamespaceName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.body_sizes import LARGEST_ANSWER_BYTES


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event; `id` is empty if the stream cannot be resumed after it."""

    name: str
    id: str
    data: bytes


class EventReader:
    """Parser of server-sent events from chunks of bytes."""

    def __init__(self, most_bytes: int = LARGEST_ANSWER_BYTES) -> None:
        self._most_bytes = most_bytes
        self._line = bytearray()
        self._fields: dict[bytes, bytes] = {}

    def feed(self, chunk: bytes) -> Iterator[StreamEvent]:
        """Yield the events completed by this chunk; `InvalidRecordError` if a line exceeds `most_bytes`."""
        self._line += chunk
        if b"\n" in chunk:
            *lines, rest = bytes(self._line).split(b"\n")
            self._line = bytearray(rest)
            yield from self._events(lines)
        if len(self._line) > self._most_bytes:
            raise InvalidRecordError(f"an event of more than {self._most_bytes} bytes")

    def _events(self, lines: list[bytes]) -> Iterator[StreamEvent]:
        for line in lines:
            name, _, value = line.partition(b":")
            if name:  # a comment has none
                self._fields[name] = value.removeprefix(b" ")
            elif not line and self._fields:
                fields, self._fields = self._fields, {}
                yield StreamEvent(
                    _decode_field(fields, b"event"), _decode_field(fields, b"id"), fields.get(b"data", b"")
                )


@dataclass(frozen=True, slots=True)
class PushedBundle:
    """A bundle in its record's state. The version grows with each transition.

    An owned bundle without `owner` has an owner that is no longer registered.
    """

    range: BundleRange
    version: int = -1
    state: str = ""
    owner: str | None = None
    destination: str | None = None

    @property
    def is_owned(self) -> bool:
        return self.state == OwnershipState.OWNED

    @property
    def is_moving(self) -> bool:
        """Tell if the next owner will be pushed soon."""
        return self.state == OwnershipState.RELEASING


@dataclass(frozen=True, slots=True)
class NamespaceUpdate:
    """Pushed bundles and brokers of a namespace. With a hash function it is a full snapshot, else a change.

    A broker is None if it lacks the requested listener.
    """

    namespace: str
    bundles: tuple[PushedBundle, ...]
    brokers: Mapping[str, Owner | None]
    hash_function: HashFunction | None = None


def parse_object(data: bytes, where: str) -> Mapping[str, Any]:
    """Parse a JSON object; `InvalidRecordError`, which names the source `where`, for anything else."""
    try:
        return object_of(json.loads(data), where)
    except (ValueError, RecursionError):
        raise InvalidRecordError(f"{where}: expected JSON") from None


def parse_snapshot(data: bytes, listener: str | None = None) -> NamespaceUpdate:
    """Parse a whole namespace, with the addresses of that listener; `InvalidRecordError` names the invalid field."""
    fields = parse_object(data, "snapshot")
    name = text_of(fields, "hashFunction", "snapshot") or ""
    try:
        function = HashFunction(name)
    except ValueError:
        expected = " or ".join(HashFunction)
        raise InvalidRecordError(f"snapshot: hashFunction {name!r}: expected {expected}") from None
    return _news(fields, "snapshot", listener, function)


def parse_change(data: bytes, listener: str | None = None) -> NamespaceUpdate:
    """Parse a change of a namespace; otherwise as `parse_snapshot`."""
    return _news(parse_object(data, "change"), "change", listener, None)


def parse_gone(data: bytes) -> str:
    """Return the namespace that no longer exists or cannot be read; raises `InvalidRecordError`."""
    return _namespace(parse_object(data, "gone"), "gone")


def _news(
    fields: Mapping[str, Any], where: str, listener: str | None, function: HashFunction | None
) -> NamespaceUpdate:
    bundles = object_of(fields.get("bundles", {}), f"{where}: bundles")
    brokers = object_of(fields.get("brokers", {}), f"{where}: brokers")
    return NamespaceUpdate(
        _namespace(fields, where),
        tuple(_bundle(text, each, f"{where}: bundles: {text[:40]}") for text, each in bundles.items()),
        {name: _owner(each, f"{where}: brokers: {name[:40]}", listener) for name, each in brokers.items()},
        function,
    )


def _namespace(fields: Mapping[str, Any], where: str) -> str:
    try:
        return str(NamespaceName.parse(text_of(fields, "namespace", where) or ""))
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: {error}") from None


def _bundle(text: str, value: object, where: str) -> PushedBundle:
    try:
        bundle_range = BundleRange.parse(text)
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: {error}") from None
    fields = object_of(value, where)
    version = fields.get("version")
    if type(version) is not int:
        raise InvalidRecordError(f"{where}: version: expected a whole number")
    state, owner, destination = (text_of(fields, key, where) for key in ("state", "owner", "destination"))
    return PushedBundle(bundle_range, version, state or "", owner, destination)


def _owner(value: object, where: str, listener: str | None) -> Owner | None:
    fields = object_of(value, where)
    if listener is None:
        return Owner.of_json(fields.get("lookup"), where)
    named = object_of(fields.get("listeners", {}), where).get(listener)
    return None if named is None else Owner.of_json(named, where)


def _decode_field(fields: Mapping[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode(errors="replace")


_ADDRESSES = {
    "broker_url": "brokerUrl",
    "broker_url_tls": "brokerUrlTls",
    "http_url": "httpUrl",
    "http_url_tls": "httpUrlTls",
}


@dataclass(frozen=True, slots=True)
class Owner:
    """A broker and its addresses; None for a protocol that it does not offer."""

    broker_id: str
    broker_url: str | None = None
    broker_url_tls: str | None = None
    http_url: str | None = None
    http_url_tls: str | None = None

    @classmethod
    def of_json(cls, fields: object, where: str) -> Self:
        """Parse Pulsar's LookupData; raises `InvalidRecordError`, which names the source `where`."""
        broker_id = text_of(fields, "brokerId", where)
        if broker_id is None:
            raise InvalidRecordError(f"{where}: brokerId: missing")
        return cls(broker_id, **{name: text_of(fields, key, where) for name, key in _ADDRESSES.items()})


def text_of(fields: object, key: str, where: str) -> str | None:
    """Return a text field of a JSON object, None if it is absent; raises `InvalidRecordError` for other types."""
    value = object_of(fields, where).get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidRecordError(f"{where}: {key}: expected a text")
    return value


def object_of(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRecordError(f"{where}: expected a JSON object")
    return value
