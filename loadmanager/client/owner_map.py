"""Owner map: the bundles of followed namespaces, as nodes push them, with an LRU cache of topics.

A passive machine, like `loadmanager.core.protocol.move_machine`: no event loop, clock, randomness or I/O. It keeps the
pushed state of each followed namespace:

    event      if                                                         then
    -----      --                                                         ----
    snapshot   no bundle is known at a higher version                     use it
               else the node lags, or its store was rolled back           hold it back, with later changes, until it
                                                                          has caught up, or for `BEHIND_S`
    change                                                                each bundle replaces all overlapping ones
    gone       the namespace does not exist or cannot be read             forget the namespace
    answered   the bundle has not changed since the node was asked        use the owner in the answer
               it has changed: the pushed state is newer                  ignore the answer
    refused    by the broker to which its topics were sent last           ask a node
    TIME       nothing was received for `kept_s`                          forget the namespace

For a bundle that is being released, lookups return the destination at once. If the destination has prepared, it makes
clients wait until it may serve. Otherwise it refuses, and the lookup waits for the end of the move.

A stale answer is harmless, since the broker refuses the topic. So an owner is valid until it is refused or replaced.

One thread applies events; any thread may read. Readers always see a complete state, because it is replaced by one
assignment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from loadmanager.client.push_events import (
    NamespaceUpdate,
    Owner,
    Place,
    PushedBundle,
    PushedBundles,
    StreamEvent,
    parse_gone,
    parse_update,
)
from loadmanager.core.domain.names import DOMAINS, InvalidNameError, TopicName, check_local_name
from loadmanager.errors import InvalidRecordError

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """LRU cache in two generations: keeps the last `most / 2` values put, and never more than `most` values.

    Any thread may read `recent` directly as a fast path, and call `find` and `put` for keys that are missing there.
    """

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self.recent: dict[str, Value] = {}
        self._older: dict[str, Value] = {}

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def find(self, key: str) -> Value | None:
        value = self.recent.get(key)
        return value if value is not None else self._older.get(key)

    def put(self, key: str, value: Value) -> None:
        recent = self.recent
        if len(recent) >= self._half:
            self._older, self.recent = recent, {}
            recent = self.recent
        recent[key] = value


BEHIND_S = 10.0
"""Limit for a lagging node to catch up. Older data after this time means that the store was rolled back."""
KEPT_S = 3_600.0
TOPICS_KEPT = 100_000


@dataclass(slots=True)
class _Namespace:
    """State of a namespace in use, and the state that the node has pushed. They differ while that node lags."""

    heard_s: float
    known: PushedBundles | None = None
    pushed: PushedBundles | None = None
    mark: str = ""
    """Id of the last event, at which any node can resume; empty: from the beginning."""
    behind_since_s: float = math.inf


class OwnerMap:
    """Owners by topic. `listener` is the advertised listener of the brokers' addresses. `topics_kept` limits the cache
    of topics, which saves hashing their names: about 40 bytes each plus the name.
    """

    def __init__(self, listener: str | None = None, *, topics_kept: int = TOPICS_KEPT, kept_s: float = KEPT_S) -> None:
        self._listener = listener
        self._kept_s = kept_s
        self._namespaces: dict[str, _Namespace] = {}
        self._shown: dict[str, PushedBundles] = {}
        """Bundles by topic prefix: `persistent://tenant/namespace`."""
        self._topics: LruCache[Place] = LruCache(topics_kept)

    def resolve(self, topic: str) -> Owner | None:
        """Return the known owner of the topic; None: ask a node. Raises `InvalidNameError`."""
        try:
            owner = self._topics.recent[topic].owner
        except KeyError:
            owner = None
        return owner if owner is not None else self.place_of(topic).owner

    def place_of(self, topic: str) -> Place:
        """Return the place of the topic; raises `InvalidNameError`."""
        end = topic.find("/", topic.find("/", topic.find("://") + 3) + 1)
        bundles = self._shown.get(topic[:end]) if end > 0 else None
        if bundles is None:
            place = self._place_alone(topic)
        else:
            check_local_name(topic[end + 1 :])
            place = bundles.places[bundles.shape.index_of_topic(topic)]
        self._topics.put(topic, place)
        return place

    def _place_alone(self, topic: str) -> Place:
        TopicName.parse(topic)
        place = self._topics.find(topic)
        return Place() if place is None or place.pushed is not None else place

    def find_last_known(self, place: Place, now_s: float) -> Owner | None:
        """Return the last known owner, until it expires."""
        place.was_named = True
        return place.known if now_s < place.known_until_s else None

    def answered(self, place: Place, asked: PushedBundle | None, owner: Owner, now_s: float) -> None:
        """Store a node's answer. `asked` is the pushed bundle when the node was asked."""
        if place.pushed is not asked:
            return
        if place.known is None or place.known.broker_id != owner.broker_id:
            place.refusals = 0
        place.known, place.was_named = owner, True
        if place.pushed is None:
            place.known_until_s = now_s + self._kept_s
        else:
            place.owner = owner

    def refused(self, topic: str, broker_id: str) -> None:
        """Note that the broker does not serve the topic. Raises `InvalidNameError`."""
        place = self.place_of(topic)
        named = place.owner or place.known
        if named is not None and named.broker_id == broker_id:
            place.refusals += place.was_named
            place.owner, place.was_named = None, False

    def follow(self, namespace: str, now_s: float) -> None:
        """Accept pushed events of the namespace from now on."""
        self._namespaces.setdefault(namespace, _Namespace(now_s))

    def forget(self, namespace: str) -> None:
        """Stop accepting pushes of the namespace and drop its owners; its topics must be looked up."""
        each = self._namespaces.pop(namespace, None)
        if each is not None:
            self._lose(namespace, each)

    def is_settled(self, namespace: str) -> bool:
        """Tell if the namespace's owners, or its absence, were pushed."""
        each = self._namespaces.get(namespace)
        return each is not None and (each.known is not None or bool(each.mark))

    def marks(self, namespaces: Iterable[str]) -> list[str]:
        """Return the positions (event ids) to resume from; omit namespaces that must start over."""
        return [each.mark for each in self._those(namespaces) if each.mark]

    def drop_marks(self, namespaces: Iterable[str]) -> None:
        """Drop the positions to resume from. Known owners stay known."""
        for each in self._those(namespaces):
            each.mark = ""

    def heard(self, namespaces: Iterable[str], now_s: float) -> None:
        """Note that the followed node is alive."""
        for each in self._those(namespaces):
            each.heard_s = now_s

    def _those(self, namespaces: Iterable[str]) -> Iterator[_Namespace]:
        return (self._namespaces[name] for name in namespaces if name in self._namespaces)

    def take(self, event: StreamEvent, now_s: float) -> None:
        """Apply an event; unknown names are ignored. Raises `InvalidRecordError`."""
        match event.name:
            case "snapshot" | "change":
                self._take_update(parse_update(event, self._listener), event.id, now_s)
            case "gone":
                self._forget_namespace(parse_gone(event.data), event.id)

    def expire(self, now_s: float) -> None:
        """Drop namespaces without recent news, and use held-back states that are due."""
        for name, each in self._namespaces.items():
            if now_s >= each.heard_s + self._kept_s:
                self._lose(name, each)
            self._catch_up(name, each, now_s)

    def _take_update(self, update: NamespaceUpdate, mark: str, now_s: float) -> None:
        namespace = self._namespaces.get(update.namespace)
        if namespace is None:
            return
        try:
            namespace.pushed = _after(namespace.pushed, update)
        except InvalidNameError as error:
            raise InvalidRecordError(f"namespace {update.namespace}: {error}") from None
        namespace.mark, namespace.heard_s = mark, now_s
        self._catch_up(update.namespace, namespace, now_s)

    def _forget_namespace(self, name: str, mark: str) -> None:
        namespace = self._namespaces.get(name)
        if namespace is not None:
            self._lose(name, namespace)
            namespace.mark = mark

    def _catch_up(self, name: str, namespace: _Namespace, now_s: float) -> None:
        known, pushed = namespace.known, namespace.pushed
        if pushed is known or pushed is None:
            return
        if known is None or not pushed.is_older_than(known) or now_s >= namespace.behind_since_s + BEHIND_S:
            namespace.known, namespace.behind_since_s = pushed, math.inf
            self._show(name, known, pushed)
        else:
            namespace.behind_since_s = min(namespace.behind_since_s, now_s)

    def _lose(self, name: str, namespace: _Namespace) -> None:
        self._show(name, namespace.known, None)
        namespace.known = namespace.pushed = None
        namespace.mark, namespace.behind_since_s = "", math.inf

    def _show(self, name: str, before: PushedBundles | None, now: PushedBundles | None) -> None:
        for domain in DOMAINS:
            prefix = f"{domain}://{name}"
            if now is None:
                self._shown.pop(prefix, None)
            else:
                self._shown[prefix] = now
        places = () if before is None else before.places
        for place in set(places) - set(() if now is None else now.places):
            place.end()


def _after(pushed: PushedBundles | None, update: NamespaceUpdate) -> PushedBundles:
    """Apply an update to the pushed state; raises `InvalidNameError` if it is inconsistent."""
    if update.hash_function is not None:
        return PushedBundles.of_snapshot(update, update.hash_function)
    if pushed is None:
        raise InvalidNameError("a change before any snapshot")
    return pushed.take(update)
