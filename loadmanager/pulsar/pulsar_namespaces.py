"""Namespaces of a Pulsar in the mirror, built from their bundles and owners.

bundle in the mirror    owner in Pulsar         afterwards
--------------------    ---------------         ----------
Free or Owned           the same                unchanged
Free or Owned           another one, or none    Owned by that one, or Free, at the next version
Releasing               any                     unchanged: this process is moving it
new after a split       any, or none            Owned or Free, at a version above those of the namespace

An owner is a registration of its broker, with incarnation `NO_LIFE` if the broker is not registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from loadmanager.core.diagnosis.pulsar_comparison import NO_LIFE, Sighted
from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry
from loadmanager.util import clock


class PulsarNamespaces:
    """Collects answers; `update_mirror` applies them. `owners` are the owners of all bundles in the mirror."""

    def __init__(self, mirror: ClusterMirror, on_moved: Callable[[Sighted], None]) -> None:
        self._mirror = mirror
        self._on_moved = on_moved
        self._bundles: dict[str, NamespaceBundles] = {}
        self._groups: dict[str, str] = {}
        self._named_owners: dict[str, dict[str, BrokerId]] = {}
        self._touched: set[str] = set()
        self.owners: dict[str, Registration | None] = {}

    @property
    def with_bundles(self) -> Iterable[str]:
        """Namespaces whose bundles are known."""
        return self._bundles.keys()

    def find_unknown(self) -> list[str]:
        """Return the namespaces with an owned bundle that is not among the known bundles."""
        known = {name: set(bundles.range_texts()) for name, bundles in self._bundles.items() if name in self._touched}
        return [name for name in self._touched if not self._named_owners.get(name, {}).keys() <= known.get(name, set())]

    def groups(self) -> dict[str, str]:
        """Return the anti-affinity group of each namespace that has one."""
        return dict(self._groups)

    def put_bundles(self, namespace: str, bundles: NamespaceBundles, group: str | None) -> None:
        """Set the bundles of a namespace and its anti-affinity group."""
        if bundles != self._bundles.get(namespace):
            self._bundles[namespace] = bundles
            self._touched.add(namespace)
        self._groups.pop(namespace, None)
        if group is not None:
            self._groups[namespace] = group

    def drop_bundles(self, namespace: str) -> None:
        """Remove a deleted namespace and the owners of its bundles."""
        for kept in (self._bundles, self._groups, self._named_owners):
            kept.pop(namespace, None)
        self._touched.add(namespace)

    def put_owner(self, bundle: str, broker: BrokerId | None) -> None:
        """Set the owner of a bundle; None if nobody owns it."""
        namespace, _, text = bundle.rpartition("/")
        named = self._named_owners.setdefault(namespace, {})
        if named.get(text) != broker:
            self._touched.add(namespace)
        if broker is None:
            named.pop(text, None)
        else:
            named[text] = broker

    def find_owner(self, bundle: str) -> Registration | None:
        """Return the last owner that was set, also for a bundle that no longer exists."""
        namespace, _, text = bundle.rpartition("/")
        return self._registration_of(self._named_owners.get(namespace, {}).get(text))

    def registrations_changed(self, brokers: set[BrokerId]) -> None:
        """Update the bundles of brokers that registered, registered again, or left."""
        self._touched |= {name for name, named in self._named_owners.items() if not brokers.isdisjoint(named.values())}

    def take_touched(self) -> list[str]:
        """Return the namespaces that changed since the last call."""
        touched, self._touched = self._touched, set()
        return sorted(touched)

    def update_mirror(self, namespace: str) -> None:
        """Apply the answers about a namespace to the mirror, and report each bundle that moved."""
        now_ms = clock.now_ms()
        former = self._former(namespace)
        entry = self._entry(namespace, former, now_ms)
        texts = () if entry is None else entry.state.bundles.range_texts()
        sighted = self._follow_owners(namespace, texts, former, now_ms)
        known = self._mirror.namespaces.get(namespace)
        if entry is None:
            self._mirror.drop_namespace(namespace)
        elif known is None or known.state != entry.state:
            self._mirror.put_namespace(entry)
        for each in sighted:
            self._on_moved(each)

    def _former(self, namespace: str) -> dict[str, Ownership]:
        known = self._mirror.namespaces.get(namespace)
        if known is None:
            return {}
        return dict(zip(known.state.bundles.range_texts(), known.state.ownerships, strict=True))

    def _entry(self, namespace: str, former: Mapping[str, Ownership], now_ms: int) -> NamespaceEntry | None:
        bundles, named = self._bundles.get(namespace), self._named_owners.get(namespace, {})
        if bundles is None:
            return None
        fresh = Ownership(version=max((each.version for each in former.values()), default=0))
        ownerships = tuple(
            _follow(former.get(text, fresh), self._registration_of(named.get(text)), now_ms)
            for text in bundles.range_texts()
        )
        state = NamespaceState(NamespaceName.parse_any(namespace), bundles, ownerships)
        return NamespaceEntry(state, version=0, czxid=0, digest=0)

    def _follow_owners(
        self, namespace: str, texts: Sequence[str], former: Mapping[str, Ownership], now_ms: int
    ) -> list[Sighted]:
        """Update `owners` for the bundles of a namespace, and return the moved ones."""
        named = self._named_owners.get(namespace, {})
        sighted = []
        for text in texts:
            name, owner = f"{namespace}/{text}", self._registration_of(named.get(text))
            before = self.owners.get(name)
            self.owners[name] = owner
            if text in former and _broker(before) != _broker(owner):
                by_us = former[text].state is OwnershipState.RELEASING
                sighted.append(Sighted(name, before, owner, now_ms, by_us))
        for text in former.keys() - set(texts):
            self.owners.pop(f"{namespace}/{text}", None)
        if not named:
            self._named_owners.pop(namespace, None)
        return sighted

    def _registration_of(self, broker: BrokerId | None) -> Registration | None:
        if broker is None:
            return None
        return self._mirror.registrations.get(broker) or Registration(broker, NO_LIFE)


def _follow(former: Ownership, owner: Registration | None, now_ms: int) -> Ownership:
    state = OwnershipState.FREE if owner is None else OwnershipState.OWNED
    if former.state is OwnershipState.RELEASING or (former.state, former.owner) == (state, owner):
        return former
    return Ownership(state, owner, None, former.version + 1, since_ms=now_ms)


def _broker(owner: Registration | None) -> BrokerId | None:
    return None if owner is None else owner.broker
