"""Events that nodes push, their validation, the owners in them, and the bundles of a namespace that they add up to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles
from loadmanager.core.domain.names import HASH_SPACE_END, BundleRange, InvalidNameError, NamespaceName
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


def parse_update(event: StreamEvent, listener: str | None = None) -> NamespaceUpdate:
    """Parse a snapshot or a change of a namespace, with the addresses of that listener; `InvalidRecordError` names the
    invalid field.
    """
    where = event.name
    fields = parse_object(event.data, where)
    bundles = object_of(fields.get("bundles", {}), f"{where}: bundles")
    brokers = object_of(fields.get("brokers", {}), f"{where}: brokers")
    return NamespaceUpdate(
        _namespace(fields, where),
        tuple(_bundle(text, each, f"{where}: bundles: {text[:40]}") for text, each in bundles.items()),
        {name: _owner(each, f"{where}: brokers: {name[:40]}", listener) for name, each in brokers.items()},
        _hash_function(fields) if where == "snapshot" else None,
    )


def parse_gone(data: bytes) -> str:
    """Return the namespace that no longer exists or cannot be read; raises `InvalidRecordError`."""
    return _namespace(parse_object(data, "gone"), "gone")


def _hash_function(fields: Mapping[str, Any]) -> HashFunction:
    name = text_of(fields, "hashFunction", "snapshot") or ""
    try:
        return HashFunction(name)
    except ValueError:
        expected = " or ".join(HashFunction)
        raise InvalidRecordError(f"snapshot: hashFunction {name!r}: expected {expected}") from None


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


_ENDED = PushedBundle(BundleRange(0, HASH_SPACE_END))


@dataclass(slots=True, eq=False)
class Place:
    """Owner of the topics of one bundle. All of them share one object, so a move is one assignment.

    In a namespace that is not followed each topic has a place of its own. Nothing is pushed to it, so every lookup asks
    a node.
    """

    pushed: PushedBundle | None = None
    owner: Owner | None = None
    """Owner that a lookup returns without a request."""
    known: Owner | None = None
    """Last known owner, returned when no node can be reached."""
    known_until_s: float = math.inf
    was_named: bool = True
    """True if the owner was named since its last refusal. So refusals of several topics of one place count once."""
    refusals: int = 0
    """Consecutive refusals by the last known owner; at most one for each time it was named."""

    @property
    def is_moving(self) -> bool:
        return self.pushed is not None and self.pushed.is_moving

    def settle(self, owner: Owner | None) -> None:
        """Set the pushed owner, or the announced next one; None: no owner."""
        self.owner = owner
        self.known = self.known if self.is_moving else owner or self.known
        self.was_named, self.refusals = True, 0

    def end(self) -> None:
        """Mark the place as outdated: the bundle no longer exists or is unknown, so its topics need a new place."""
        self.pushed, self.owner, self.known = _ENDED, None, None


@dataclass(frozen=True, slots=True, eq=False)
class PushedBundles:
    """Bundles of a namespace between two splits or merges. A change of owner updates its place."""

    shape: NamespaceBundles
    places: tuple[Place, ...]
    brokers: dict[str, Owner | None]
    """Every current owner or destination by broker id, and some former ones."""

    @classmethod
    def of(cls, function: HashFunction, places: Iterable[Place], brokers: dict[str, Owner | None]) -> PushedBundles:
        """Build it; raises `InvalidNameError` unless the places cover each hash exactly once."""
        ascending = tuple(sorted(places, key=lambda place: _get_pushed(place).range))
        boundaries = [0]
        for each in map(_get_pushed, ascending):
            if each.range.lower != boundaries[-1]:
                raise InvalidNameError(f"bundle {each.range}: the one before ends at 0x{boundaries[-1]:08x}")
            boundaries.append(each.range.upper)
        return cls(NamespaceBundles(tuple(boundaries), function), ascending, brokers)

    @classmethod
    def of_snapshot(cls, update: NamespaceUpdate, function: HashFunction) -> PushedBundles:
        """Build it from a snapshot. Raises as `of` does."""
        brokers = dict(update.brokers)
        return cls.of(function, _places(update.bundles, brokers), brokers)

    def take(self, update: NamespaceUpdate) -> PushedBundles:
        """Apply a change: return this object, or a new one if bundles were split or merged. Raises as `of` does."""
        self._take_brokers(update.brokers)
        places = [self._place_of(each) for each in update.bundles]
        if any(place is None for place in places):
            return self._apply_reshaping(update.bundles)
        for place, pushed in zip(places, update.bundles, strict=True):
            assert place is not None, "looked at above"
            place.pushed = pushed
            place.settle(_owner_of(pushed, self.brokers))
        return self

    def is_older_than(self, other: PushedBundles) -> bool:
        """Tell if any bundle has a higher version in `other`. Versions of a hash only grow."""
        return any(
            _get_pushed(other.place_of_hash(_get_pushed(place).range.lower)).version > _get_pushed(place).version
            for place in self.places
        )

    def place_of_hash(self, value: int) -> Place:
        return self.places[self.shape.index_of_hash(value)]

    def _place_of(self, pushed: PushedBundle) -> Place | None:
        """Return the place of this bundle; None if its range is new here, or its known version is higher."""
        index = self.shape.find_index(pushed.range)
        if index is None or _get_pushed(self.places[index]).version > pushed.version:
            return None
        return self.places[index]

    def _take_brokers(self, brokers: Mapping[str, Owner | None]) -> None:
        altered = {name for name, owner in brokers.items() if self.brokers.get(name, owner) != owner}
        self.brokers.update(brokers)
        for place in self.places if altered else ():
            if not altered.isdisjoint((_get_pushed(place).owner, _get_pushed(place).destination)):
                place.settle(_owner_of(_get_pushed(place), self.brokers))
        if len(self.brokers) > 2 * len(self.places) + len(brokers):
            named = {
                name for place in self.places for name in (_get_pushed(place).owner, _get_pushed(place).destination)
            }
            for name in self.brokers.keys() - named - brokers.keys():
                del self.brokers[name]

    def _apply_reshaping(self, bundles: Iterable[PushedBundle]) -> PushedBundles:
        replaced: set[int] = set()
        for each in bundles:
            first, last = (self.shape.index_of_hash(value) for value in (each.range.lower, each.range.upper - 1))
            replaced.update(range(first, last + 1))
        kept = [place for index, place in enumerate(self.places) if index not in replaced]
        return PushedBundles.of(self.shape.hash_function, [*kept, *_places(bundles, self.brokers)], self.brokers)


def _places(bundles: Iterable[PushedBundle], brokers: Mapping[str, Owner | None]) -> list[Place]:
    owners = ((pushed, _owner_of(pushed, brokers)) for pushed in bundles)
    return [Place(pushed, owner, owner) for pushed, owner in owners]


def _owner_of(pushed: PushedBundle, brokers: Mapping[str, Owner | None]) -> Owner | None:
    """Return the owner, or the announced next one: that broker makes clients wait until it owns the bundle."""
    name = pushed.owner if pushed.is_owned else pushed.destination if pushed.is_moving else None
    return None if name is None else brokers.get(name)


def _get_pushed(place: Place) -> PushedBundle:
    assert place.pushed is not None, "the place of a bundle has what was pushed of it"
    return place.pushed
