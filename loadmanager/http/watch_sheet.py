"""Sheet of a namespace for its watchers: the full state, or the changes since one of the last steps, encoded once.

    record, registered brokers ──look──▶ Sheet ──since(place)──▶ the event for all watchers at that place

Each look that finds a change is a **step**. A watcher stores the number of its last step, its **place**. A watcher that
falls behind gets the newest state of each bundle once, not every intermediate change. The event for a place is encoded
when the first watcher needs it.

An **id** is a hash of the contents, not of a step. So all nodes give the same contents the same id, also after a
restart or a rollback of the metadata store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mmh3
import orjson

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.http.messages import encode_event
from loadmanager.leader.mirror.cluster_mirror import BrokerEntry, NamespaceEntry

STEPS_KEPT = 256
"""Number of steps to keep. A watcher further behind gets the full state."""

_MADE_KEPT = 16
"""Number of encoded events to keep; slow watchers are at few different places."""


@dataclass(frozen=True, slots=True)
class _Row:
    """Row of a bundle or a broker: `source` is the input of `data`, `digest` its part of the id."""

    source: object
    data: bytes
    digest: int
    step: int


class Sheet:
    """Sheet of the namespace `name`; empty before the first look."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = 0
        self._reason = ""
        self._digest = 0
        self._function = ""
        self._head: dict[str, Any] = {}
        self._texts: tuple[str, ...] = ()
        self._bundles: dict[str, _Row] = {}
        self._brokers: dict[BrokerId, _Row] = {}
        self._steps: dict[int, int] = {}
        self._made: dict[int | None, bytes] = {}

    @property
    def id(self) -> str:
        """Id of the current contents."""
        return f"{self.name}@{self._digest:016x}"

    def names(self, broker: BrokerId) -> bool:
        """Return True if the broker may be owner or destination of a bundle here, registered or not."""
        return broker in self._brokers

    def place_of(self, text: str) -> int | None:
        """Return the newest place with this id; None for an unknown id."""
        name, _, digest = text.partition("@")
        try:
            return self._steps.get(int(digest, 16)) if name == self.name else None
        except ValueError:
            return None

    def look(self, record: NamespaceEntry, brokers: Mapping[BrokerId, BrokerEntry]) -> bool:
        """Update from the current record and brokers; return True if there is a new step."""
        before = self._digest
        bundles = record.state.bundles
        if self._reason or bundles.hash_function != self._function:
            self._forget()
            self._function, self._digest = bundles.hash_function, _hash(bundles.hash_function.encode())
        self._texts = bundles.range_texts()
        self._take_bundles(record, brokers)
        self._take_brokers(record, brokers)
        if self._digest == before:
            return False
        self._head = {"namespace": self.name, "version": record.version}
        self._step()
        return True

    def lose(self, reason: str) -> bool:
        """Note why the namespace is gone or unreadable; return True if there is a new step."""
        if reason == self._reason:
            return False
        self._forget()
        self._reason, self._digest = reason, _hash(reason.encode())
        self._step()
        return True

    def since(self, place: int | None) -> bytes:
        """Encode the event from a place (None: nothing known) to the current one, as an HTTP chunk."""
        oldest = next(iter(self._steps.values()))
        start = place if place is not None and place >= oldest else None
        if start not in self._made:
            if len(self._made) >= _MADE_KEPT:
                self._made.clear()
            self._made[start] = self._event(start)
        return self._made[start]

    def _event(self, place: int | None) -> bytes:
        if self._reason:
            fields = {"namespace": self.name, "reason": self._reason}
            return chunk_of(encode_event("gone", orjson.dumps(fields), self.id))
        if place is None:
            head: dict[str, Any] = {**self._head, "hashFunction": self._function}
            bundles: dict[str, _Row] = {text: self._bundles[text] for text in self._texts}
            return self._whole("snapshot", head, bundles, self._brokers)
        return self._whole("change", self._head, _newer(self._bundles, place), _newer(self._brokers, place))

    def _whole(
        self, kind: str, head: dict[str, Any], bundles: Mapping[str, _Row], brokers: Mapping[BrokerId, _Row]
    ) -> bytes:
        data = b'%b,"bundles":{%b},"brokers":{%b}}' % (
            orjson.dumps(head)[:-1],
            b",".join(row.data for row in bundles.values()),
            b",".join(row.data for row in brokers.values() if row.data),
        )
        return chunk_of(encode_event(kind, data, self.id))

    def _step(self) -> None:
        self.place += 1
        self._made.clear()
        self._steps.pop(self._digest, None)
        self._steps[self._digest] = self.place
        if len(self._steps) > STEPS_KEPT:
            del self._steps[next(iter(self._steps))]

    def _forget(self) -> None:
        """Drop all rows and steps: every watcher gets the full state."""
        self._reason, self._digest, self._texts = "", 0, ()
        for known in (self._bundles, self._brokers, self._steps):
            known.clear()

    def _take_bundles(self, record: NamespaceEntry, brokers: Mapping[BrokerId, BrokerEntry]) -> None:
        for text, ownership in zip(self._texts, record.state.ownerships, strict=True):
            owner = _reachable(ownership.owner, brokers)
            destination = _reachable(ownership.destination, brokers)
            source = (ownership.state, ownership.version, owner, destination)
            known = self._bundles.get(text)
            if known is None or known.source != source:
                self._append_row(self._bundles, text, source, _bundle(text, ownership, owner, destination))
        if len(self._bundles) > len(self._texts):
            for text in self._bundles.keys() - set(self._texts):
                self._digest ^= self._bundles.pop(text).digest

    def _take_brokers(self, record: NamespaceEntry, brokers: Mapping[BrokerId, BrokerEntry]) -> None:
        """Update the brokers named in the record; unregistered ones have no address."""
        named = {
            each.broker
            for ownership in record.state.ownerships
            for each in (ownership.owner, ownership.destination)
            if each is not None
        }
        for broker in named:
            entry, known = brokers.get(broker), self._brokers.get(broker)
            if known is None or known.source is not entry:
                self._append_row(self._brokers, broker, entry, b"" if entry is None else _broker(entry))
        for broker in self._brokers.keys() - named:
            self._digest ^= self._brokers.pop(broker).digest

    def _append_row(self, rows: dict[Any, _Row], key: str, source: object, data: bytes) -> None:
        """Store a row behind all others, so that rows are ordered by their last change."""
        known = rows.get(key)
        if known is not None and known.data == data:
            rows[key] = _Row(source, data, known.digest, known.step)
            return
        if known is not None:
            self._digest ^= rows.pop(key).digest
        rows[key] = row = _Row(source, data, _hash(data), self.place + 1)
        self._digest ^= row.digest


def chunk_of(frame: bytes) -> bytes:
    """Encode a frame as an HTTP chunk, the same for all connections."""
    return b"%x\r\n%b\r\n" % (len(frame), frame)


def _reachable(registration: Registration | None, brokers: Mapping[BrokerId, BrokerEntry]) -> BrokerId | None:
    """Return the broker if this registration is current and its record is readable."""
    if registration is None:
        return None
    entry = brokers.get(registration.broker)
    return registration.broker if entry is not None and entry.registration == registration else None


def _bundle(text: str, ownership: Ownership, owner: BrokerId | None, destination: BrokerId | None) -> bytes:
    fields: dict[str, Any] = {"state": ownership.state, "version": ownership.version}
    if owner is not None:
        fields["owner"] = owner
    if destination is not None and ownership.state is OwnershipState.RELEASING:
        fields["destination"] = destination
    return b'"%b":%b' % (text.encode(), orjson.dumps(fields))


def _broker(entry: BrokerEntry) -> bytes:
    listeners = {
        name: orjson.Fragment(answer)
        for name in sorted(entry.record.get("advertisedListeners") or {})
        if (answer := entry.find_answer(name)) is not None
    }
    fields: dict[str, Any] = {
        "incarnation": entry.registration.incarnation,
        "lookup": orjson.Fragment(entry.lookup_body),
    }
    if listeners:
        fields["listeners"] = listeners
    return b"%b:%b" % (orjson.dumps(entry.registration.broker), orjson.dumps(fields))


def _newer(rows: dict[Any, _Row], place: int) -> dict[Any, _Row]:
    """Return the rows changed after the place, newest first."""
    newer = {}
    for key in reversed(rows):
        if rows[key].step <= place:
            break
        newer[key] = rows[key]
    return newer


def _hash(data: bytes) -> int:
    """Hash a row. Empty data has hash 0, so that a row without data does not change the id."""
    return mmh3.hash64(data, signed=False)[0]
