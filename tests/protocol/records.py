"""Invariants of the metadata store, checked in each transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from protocol.brokers import Served
from protocol.parties import VirtualLoop
from support.invariants import ownership_violations

from loadmanager.core.domain.bundles import topic_hash
from loadmanager.core.domain.names import BundleName, NamespaceName, TopicName
from loadmanager.core.domain.ownership import FREE, NamespaceState, Ownership, OwnershipState, succession_violations
from loadmanager.store import paths
from loadmanager.store.metadata_store import Op, Put, Znode
from loadmanager.store.znode_codec import decode
from loadmanager.wire.store_records import decode_namespace

_PREFIX = f"{paths.NAMESPACES}/"


@dataclass(slots=True)
class Records:
    """Follows the tree; `violations` lists transactions that break an invariant."""

    loop: VirtualLoop
    served: Served
    tell: Callable[[str], None]
    unloads_at_a_time: int
    violations: list[str] = field(default_factory=list)
    namespaces: dict[str, NamespaceState] = field(default_factory=dict)
    registered: dict[str, int] = field(default_factory=dict)
    """Incarnations of registered brokers."""
    has_leader: bool = False
    on_change: Callable[[], None] = lambda: None
    transitions: int = 0
    deleted: dict[str, NamespaceState] = field(default_factory=dict)
    """Last state of each deleted namespace."""
    released_at_s: dict[tuple[str, int], float] = field(default_factory=dict)
    """Start of each current release, by bundle name and version."""
    _leading_session: int = 0
    _epoch: int = -1

    def committed(self, session: int, ops: Sequence[Op], changes: dict[str, Znode | None]) -> None:
        if any(isinstance(op, Put) and op.path == paths.EPOCH for op in ops):
            self._leading_session = session
            self._epoch = changes[paths.EPOCH].version  # type: ignore[union-attr]  # it was written
        for path, znode in changes.items():
            if path.startswith(f"{paths.BROKERS}/"):
                self._broker_changed(path.rpartition("/")[2], znode)
            if _is_namespace(path):
                self._namespace_written(path, znode, session)
            if path == paths.LEADER:
                self.has_leader = znode is not None
        self.on_change()

    def set_back(self, znodes: dict[str, Znode]) -> None:
        """Undo later writes: versions, epochs and incarnations continue from here."""
        self.tell("ZooKeeper is back, with older data")
        leader = znodes.get(paths.LEADER)
        self.has_leader = leader is not None
        self._leading_session = 0 if leader is None else leader.ephemeral_owner
        self._epoch = znodes[paths.EPOCH].version if paths.EPOCH in znodes else -1
        self.registered = {
            path.rpartition("/")[2]: znode.czxid
            for path, znode in znodes.items()
            if path.startswith(f"{paths.BROKERS}/")
        }
        self.namespaces = {
            path.removeprefix(_PREFIX): _decoded(path, znode) for path, znode in znodes.items() if _is_namespace(path)
        }
        self.deleted = {}
        self.released_at_s = {}
        for state in self.namespaces.values():
            self._note_released(state)

    def bundles(self) -> Iterator[tuple[BundleName, Ownership]]:
        """Yield all bundles with their ownership."""
        for state in self.namespaces.values():
            for bundle_range, ownership in zip(state.bundles.ranges(), state.ownerships, strict=True):
                yield BundleName(state.name, bundle_range), ownership

    def is_owner(self, topic: str, host: str, incarnation: int | None) -> bool:
        """Return true if the record of the topic's bundle names this incarnation of the broker."""
        name = TopicName.parse(topic)
        state = self.namespaces.get(str(name.namespace))
        if state is None:
            return False
        owner = state.ownerships[state.bundles.index_of_topic(topic)].owner
        return owner is not None and owner.broker.startswith(f"{host}:") and owner.incarnation == incarnation

    def _broker_changed(self, broker: str, znode: Znode | None) -> None:
        if znode is None:
            self.registered.pop(broker, None)
            self.tell(f"registration of {broker} ended")
        elif self.registered.get(broker) != znode.czxid:
            self.registered[broker] = znode.czxid
            self.tell(f"{broker} registered, incarnation {znode.czxid}")

    def _namespace_written(self, path: str, znode: Znode | None, session: int) -> None:
        name = path.removeprefix(_PREFIX)
        if session != self._leading_session:
            self.violations.append(f"{name} was written by a leader that had been replaced")
        if znode is None:
            self._deleted(name)
            return
        after = _decoded(path, znode)
        before = self.namespaces.get(name)
        if name in self.deleted:
            self.violations += [f"{name}: {text}" for text in _anew_violations(self.deleted.pop(name), after)]
        self.namespaces[name] = after
        self.violations += [
            f"{name}: {text}" for text in ownership_violations(after.bundles.ranges(), after.ownerships)
        ]
        if before is not None:
            self.violations += [f"{name}: {text}" for text in succession_violations(before, after)]
            self._compare(before, after)
            self._count_unloads(before, after)
        self._note_released(after)

    def _deleted(self, name: str) -> None:
        """Check that no bundle of a deleted namespace is owned or served."""
        before = self.deleted[name] = self.namespaces.pop(name)
        self.tell(f"{name} is deleted")
        self._note_released(replace(before, ownerships=(FREE,) * len(before.ownerships)))
        for bundle, ownership in zip(before.bundle_names(), before.ownerships, strict=True):
            if ownership.state is not OwnershipState.FREE:
                self.violations.append(f"{bundle} was {ownership} when its namespace was deleted")
        for topic in [each for each in self.served.open if str(TopicName.parse(each).namespace) == name]:
            if serving := self.served.serving(topic):
                self.violations.append(f"{name} was deleted while {serving} served {topic}")

    def _note_released(self, state: NamespaceState) -> None:
        before = self.released_at_s
        self.released_at_s = {
            (name, ownership.version): before.get((name, ownership.version), self.loop.now_s)
            for name, ownership in zip(state.bundle_names(), state.ownerships, strict=True)
            if ownership.state is OwnershipState.RELEASING
        }

    def _compare(self, before: NamespaceState, after: NamespaceState) -> None:
        was = dict(zip(before.bundle_names(), before.ownerships, strict=True))
        for name, now in zip(after.bundle_names(), after.ownerships, strict=True):
            old = was.get(name)
            if old is None or old == now:
                continue
            self.transitions += 1
            self.tell(f"{name}: {now} ({now.reason})")
            if old.owner is not None and now.owner != old.owner:
                self._check_closed(name, old)

    def _count_unloads(self, before: NamespaceState, after: NamespaceState) -> None:
        """Check the limit on concurrent unloads; those begun by former leaders do not count."""
        released = [each for each in after.ownerships if each.state is OwnershipState.RELEASING]
        begun = [each for each in released if each.epoch == self._epoch]
        if len(begun) > self.unloads_at_a_time and set(begun) - set(before.ownerships):
            self.violations.append(f"{len(begun)} unloads at a time: {[str(each) for each in begun]}")

    def _check_closed(self, name: str, taken: Ownership) -> None:
        """Check that the former owner serves nothing of the bundle."""
        bundle = BundleName.parse(name)
        function = self.namespaces[str(bundle.namespace)].bundles.hash_function
        assert taken.owner is not None
        for topic in list(self.served.open):
            if topic_hash(topic, function) not in bundle.range:
                continue
            for instance in self.served.serving(topic):
                party, lease = self.served.hosts[instance]
                is_theirs = taken.owner.broker.startswith(f"{party.host}:")
                if is_theirs and lease.incarnation == taken.owner.incarnation:
                    self.violations.append(f"{name} was taken from {taken.owner}, which still serves {topic}")


def _anew_violations(deleted: NamespaceState, created: NamespaceState) -> list[str]:
    """Violations of a namespace that replaces a deleted one: versions must not repeat."""
    return [
        f"{bundle} is created at version {ownership.version}, and the deleted namespace had {deleted.highest_version}"
        for bundle, ownership in zip(created.bundle_names(), created.ownerships, strict=True)
        if ownership.version < deleted.highest_version
    ]


def _is_namespace(path: str) -> bool:
    return path.startswith(_PREFIX) and path.count("/") == _PREFIX.count("/") + 1


def _decoded(path: str, znode: Znode) -> NamespaceState:
    return decode_namespace(NamespaceName.parse(path.removeprefix(_PREFIX)), decode(znode.data, path), path)
