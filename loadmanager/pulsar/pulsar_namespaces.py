"""The namespaces of a Pulsar, put together from znodes of two kinds: how each is cut, and who owns each bundle.

local policies       owners     the namespace in the view
--------------       ------     -------------------------
can be read          any        as it is cut
are not there        some       one bundle, which is what Pulsar takes it for
are not there        none       is not there
cannot be read       any        as it was cut before, and marked; not there if it never could be read

a bundle             Pulsar says                      in the view
--------             -----------                      -----------
Free or Owned        the same owner as the view       stays as it is
Free or Owned        another owner, or none           Owned by that one, or Free, at the next version
Releasing            whatever                         stays as it is: it is on its way by a move of ours
new, by a split      an owner, or none                Owned or Free, at a version beyond those of the namespace

An owner is the life of its broker that is registered now; of one that is not registered, a life that never was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from loadmanager.core.diagnosis.pulsar_comparison import NO_LIFE, Sighted
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry
from loadmanager.pulsar.pulsar_znodes import WHOLE, Cut
from loadmanager.store.metadata_store import Znode


class PulsarNamespaces:
    """What was read is put here; `put_together` has the view follow. `owners` are those of all bundles in the view."""

    def __init__(self, view: ClusterMirror, on_moved: Callable[[Sighted], None]) -> None:
        self._view = view
        self._on_moved = on_moved
        self._cuts: dict[str, tuple[Cut, Znode]] = {}
        self._unreadable: dict[str, str] = {}
        self._said: dict[str, dict[str, BrokerId]] = {}
        self._touched: set[str] = set()
        self.owners: dict[str, Registration | None] = {}

    @property
    def with_policies(self) -> Iterable[str]:
        """The namespaces whose local policies were read, at least once."""
        return self._cuts.keys()

    def owned_bundles(self) -> list[str]:
        """The bundles of which a znode says who owns them."""
        return [f"{namespace}/{text}" for namespace, said in self._said.items() for text in said]

    def groups(self) -> dict[str, str]:
        """The anti-affinity group of each namespace that is in one."""
        return {name: cut.group for name, (cut, _) in self._cuts.items() if cut.group is not None}

    def put_cut(self, namespace: str, cut: Cut, znode: Znode) -> None:
        """Its local policies."""
        self._unreadable.pop(namespace, None)
        self._cuts[namespace] = cut, znode
        self._touched.add(namespace)

    def put_unreadable(self, namespace: str, fault: str) -> None:
        """Its local policies cannot be read."""
        self._unreadable[namespace] = fault
        self._touched.add(namespace)

    def drop_cut(self, namespace: str) -> None:
        """It has no local policies."""
        self._unreadable.pop(namespace, None)
        self._cuts.pop(namespace, None)
        self._touched.add(namespace)

    def put_owner(self, bundle: str, broker: BrokerId | None) -> None:
        """Who owns a bundle, None when nobody does."""
        namespace, _, text = bundle.rpartition("/")
        said = self._said.setdefault(namespace, {})
        if said.get(text) != broker:
            self._touched.add(namespace)
        if broker is None:
            said.pop(text, None)
        else:
            said[text] = broker

    def find_owner(self, bundle: str) -> Registration | None:
        """Who owns a bundle by the last that was put, be it a current bundle or not."""
        namespace, _, text = bundle.rpartition("/")
        return self._life_of(self._said.get(namespace, {}).get(text))

    def lives_changed(self, brokers: set[BrokerId]) -> None:
        """These registered, again or for the first time, or are gone."""
        self._touched |= {name for name, said in self._said.items() if not brokers.isdisjoint(said.values())}

    def take_touched(self) -> list[str]:
        """The namespaces that something was put of since they were last taken."""
        touched, self._touched = self._touched, set()
        return sorted(touched)

    def put_together(self, namespace: str) -> None:
        """Have the view follow what was put of a namespace; then what moved in it is told."""
        now_ms = time.time_ns() // 1_000_000
        former = self._former(namespace)
        entry = self._entry(namespace, former, now_ms)
        texts = () if entry is None else entry.state.bundles.range_texts()
        sighted = self._follow_owners(namespace, texts, former, now_ms)
        known = self._view.namespaces.get(namespace)
        if entry is None:
            self._view.drop_namespace(namespace)
        elif known is None or (known.state, known.unreadable) != (entry.state, entry.unreadable):
            self._view.put_namespace(entry)
        for each in sighted:
            self._on_moved(each)

    def _former(self, namespace: str) -> dict[str, Ownership]:
        known = self._view.namespaces.get(namespace)
        if known is None:
            return {}
        return dict(zip(known.state.bundles.range_texts(), known.state.ownerships, strict=True))

    def _entry(self, namespace: str, former: Mapping[str, Ownership], now_ms: int) -> NamespaceEntry | None:
        said, fault = self._said.get(namespace, {}), self._unreadable.get(namespace)
        cut, znode = self._cuts.get(namespace, (WHOLE if said and fault is None else None, None))
        if cut is None:
            return None
        fresh = Ownership(version=max((each.version for each in former.values()), default=0))
        ownerships = tuple(
            _follow(former.get(text, fresh), self._life_of(said.get(text)), now_ms)
            for text in cut.bundles.range_texts()
        )
        state = NamespaceState(NamespaceName.parse_any(namespace), cut.bundles, ownerships)
        if znode is None:
            return NamespaceEntry(state, version=0, czxid=0, digest=0)
        return NamespaceEntry(state, znode.version, znode.czxid, hash(znode.data), unreadable=fault)

    def _follow_owners(
        self, namespace: str, texts: Sequence[str], former: Mapping[str, Ownership], now_ms: int
    ) -> list[Sighted]:
        """Keep `owners` for the bundles that a namespace has; what moved of those that it had before, too."""
        said = self._said.get(namespace, {})
        sighted = []
        for text in texts:
            name, owner = f"{namespace}/{text}", self._life_of(said.get(text))
            before = self.owners.get(name)
            self.owners[name] = owner
            if text in former and _broker(before) != _broker(owner):
                by_us = former[text].state is OwnershipState.RELEASING
                sighted.append(Sighted(name, before, owner, now_ms, by_us))
        for text in former.keys() - set(texts):
            self.owners.pop(f"{namespace}/{text}", None)
        if not said:
            self._said.pop(namespace, None)
        return sighted

    def _life_of(self, broker: BrokerId | None) -> Registration | None:
        if broker is None:
            return None
        return self._view.registrations.get(broker) or Registration(broker, NO_LIFE)


def _follow(former: Ownership, owner: Registration | None, now_ms: int) -> Ownership:
    state = OwnershipState.FREE if owner is None else OwnershipState.OWNED
    if former.state is OwnershipState.RELEASING or (former.state, former.owner) == (state, owner):
        return former
    return Ownership(state, owner, None, former.version + 1, since_ms=now_ms)


def _broker(owner: Registration | None) -> BrokerId | None:
    return None if owner is None else owner.broker
