"""From Pulsar's znodes to the view: watches say where something changed, this reads it again and applies it.

Level-triggered, as `leader.picture.intake` is for a node, with watches on the trees of `_ROOTS`:

what happened                                   what is read
-------------                                   ------------
the last of the watches is in force             everything: the view is fresh once that is applied
a znode of a tree changed                       that znode; of policies of clusters all, which are few
the connection broke                            nothing, and the view is not fresh, until all watches are in force again

Everything is read exactly, also the znode of each owner: a thousand of them are one request. Watching costs Pulsar's
ZooKeeper less than asking would (see `benchmarks/bench_beside.py`). Batches are apart, so that brokers that report all
the time cost a few requests a second.

ModularLoadManagerImpl only: ExtensibleLoadManagerImpl publishes no load in ZooKeeper, as is said of each such broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from loadmanager.beside.namespaces import PulsarNamespaces, Sighted
from loadmanager.beside.policies import ClusterPolicies
from loadmanager.beside.reading import ReadOnlyStore
from loadmanager.beside.seeding import Seeding
from loadmanager.beside.znodes import (
    NamesOfPulsar,
    decode_cut,
    decode_leader,
    decode_owner,
    decode_texts,
    record_at,
)
from loadmanager.core.extensible import ReportRules
from loadmanager.core.names import BrokerId, BundleName, InvalidNameError
from loadmanager.core.ownership import Registration
from loadmanager.decide.collecting import walk
from loadmanager.decide.pulsar import names_in_clusters, names_of_bundles
from loadmanager.errors import InvalidRecordError
from loadmanager.leader.picture.broker_records import BrokerRecords
from loadmanager.leader.picture.faults import Faults
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.rereading import Rereading
from loadmanager.leader.picture.view import ClusterView
from loadmanager.store import paths, pulsars_paths
from loadmanager.store.base import SessionState, Znode
from loadmanager.store.pulsars_paths import CLUSTERS, DYNAMIC_CONFIGURATION, FLAGS, LOCAL_POLICIES, OWNERSHIP, READ_ONLY
from loadmanager.wire.broker_data import LocalBrokerData
from loadmanager.wire.pulsar import NO_LOAD, publishes_no_load

_ROOTS = (paths.BROKERS, OWNERSHIP, LOCAL_POLICIES, CLUSTERS, DYNAMIC_CONFIGURATION, paths.LEADER, FLAGS)
_EVERYTHING = "/"
_APART_S = 0.25
_LOAD_MANAGER = "ModularLoadManagerImpl"
_NEVER = float("-inf")

_Read = Mapping[str, Znode | None]


class PulsarIntake:
    """Keeps a `ClusterView` equal to a Pulsar's metadata. `on_change` is called after each applied batch.

    The policies are those of `cluster`, or of the only one there is.
    """

    def __init__(
        self,
        store: ReadOnlyStore,
        view: ClusterView,
        live: LiveSettings,
        cluster: str | None,
        on_change: Callable[[], None],
        on_moved: Callable[[Sighted], None],
    ) -> None:
        self._store = store
        self._view = view
        self._live = live
        self._on_change = on_change
        self._rereading = Rereading(self._read_and_apply, _APART_S)
        self._faults = Faults(view.faults)
        names = NamesOfPulsar(view.model.known_bundles)
        self._brokers = BrokerRecords(view, live, names, _find_fault)
        self._namespaces = PulsarNamespaces(view, on_moved)
        self._policies = ClusterPolicies(store, view, self._faults, cluster)
        self._seeding = Seeding(store, view.model)
        self._apply_by_root = {
            OWNERSHIP: self._apply_owner,
            LOCAL_POLICIES: self._apply_cut,
            DYNAMIC_CONFIGURATION: self._apply_configuration,
            paths.LEADER: self._apply_leader,
            READ_ONLY: self._apply_read_only,
        }
        self._armed: set[str] = set()
        self._read_since: set[str] = set()
        self._was_read = False
        self.owners: Mapping[str, Registration | None] = self._namespaces.owners
        """By bundle who owns it as Pulsar says, also of one that is on its way in the view by a move of ours."""
        self.pulsars_leader: BrokerId | None = None
        self.dynamic: Mapping[str, str] = {}
        """Pulsar's dynamic configuration, as it is stored."""
        self.is_read_only = False
        """Whether Pulsar refuses changes of policies."""
        self.changed_s = _NEVER
        """When a broker joined or left last, on the monotonic clock; long ago, if none has since the first look."""

    @property
    def is_seeded(self) -> bool:
        """Whether the history that Pulsar's leader has of bundles was taken over."""
        return self._seeding.is_complete

    @property
    def reports_applied(self) -> int:
        """How many reports of brokers were taken in."""
        return self._brokers.applied

    @property
    def records_rejected(self) -> int:
        """How many faults of znodes came up."""
        return self._faults.counted

    @property
    def load_managers(self) -> dict[BrokerId, str]:
        """The class of each broker's load manager, of brokers whose record can be read."""
        return {name: entry.record.get("loadManagerClassName", "") for name, entry in self._view.brokers.items()}

    def reports_at_s(self, broker: BrokerId) -> float | None:
        """When a broker made its last report, seconds since 1970 by its clock; None without one that can be read."""
        entry = self._view.brokers.get(broker)
        updated_ms = None if entry is None else entry.record.get("lastUpdate")
        return None if updated_ms is None else updated_ms / 1000

    async def run(self) -> None:
        """Read and apply for as long as the process lives."""
        unsubscribe = [self._store.on_session(self._session_changed)]
        unsubscribe += [self._store.watch(root, self._notified) for root in _ROOTS]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._rereading.run())
                group.create_task(self._seed())
        finally:
            for stop in unsubscribe:
                stop()

    def mark_dirty(self, path: str) -> None:
        """Have `path` read again soon; that of a tree stands for all in it."""
        if path == _EVERYTHING or path in _ROOTS:
            self._view.is_fresh = False
        self._rereading.mark(path)

    async def settled(self) -> None:
        """Return once everything that was dirty at the call has been read and applied."""
        await self._rereading.settled()

    async def owner_now(self, bundle: BundleName) -> Registration | None:
        """Who owns a bundle as Pulsar says now, which is applied; raises `StoreError` and `InvalidRecordError`."""
        path = pulsars_paths.owner(str(bundle))
        znode = await self._store.get(path)
        self._read_since.add(path)
        broker = None if znode is None else decode_owner(znode.data, path)
        self._namespaces.put_owner(str(bundle), broker)
        self._namespaces.put_together()
        self._on_change()
        return self._namespaces.find_owner(str(bundle))

    async def _seed(self) -> None:
        await self.settled()
        await self._seeding.run(sorted(self.owners))

    # What watches say

    def _notified(self, path: str) -> None:
        """Take a watch's word; the name of a root says also that its watch has just been armed.

        What changed before all watches are in force is read with everything else.
        """
        if len(self._armed) == len(_ROOTS):
            self.mark_dirty(path)
        elif path in _ROOTS:
            self._armed.add(path)
            if len(self._armed) == len(_ROOTS):
                self.mark_dirty(_EVERYTHING)

    def _session_changed(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self._armed.clear()
            self._view.is_fresh = False

    # What is read

    async def _read_and_apply(self, batch: set[str]) -> None:
        self._read_since.clear()
        if any(path == _EVERYTHING or path.startswith(CLUSTERS) for path in batch):
            await self._policies.read()
        ordered = sorted(await self._find_records(batch))
        read = dict(zip(ordered, await self._store.get_many(ordered), strict=True))
        read |= await self._read_below_places(read)
        await self._brokers.decode_long(read)
        self._apply(read)
        self._find_fresh()
        self._on_change()

    async def _find_records(self, batch: set[str]) -> set[str]:
        """The znodes to be read: of a whole tree those that are there, and those that were."""
        roots = _ROOTS if _EVERYTHING in batch else [root for root in _ROOTS if root in batch]
        found = {*batch, *roots}
        for root in roots:
            found |= {path for path in self._view.faults if path.startswith(f"{root}/")}
        if FLAGS in roots:
            found.add(READ_ONLY)
        if paths.BROKERS in roots:
            found |= {*map(paths.broker, await self._store.children(paths.BROKERS))}
            found |= {*map(paths.broker, self._view.registrations)}
        if OWNERSHIP in roots:
            found |= {*map(pulsars_paths.owner, await names_of_bundles(self._store, OWNERSHIP))}
            found |= {*map(pulsars_paths.owner, self._namespaces.owned_bundles())}
        if LOCAL_POLICIES in roots:
            found |= {*map(pulsars_paths.local_policies, await walk(self._store, LOCAL_POLICIES, 2))}
            found |= {*map(pulsars_paths.local_policies, self._namespaces.with_policies)}
        return {path for path in found if record_at(path) is not None}

    async def _read_below_places(self, read: _Read) -> _Read:
        """What lies below empty znodes of local policies: namespaces of Pulsar's first form, by their clusters."""
        prefix = f"{LOCAL_POLICIES}/"
        empty = [path for path, znode in read.items() if znode is not None and not znode.data]
        places = [path.removeprefix(prefix) for path in empty if path.startswith(prefix)]
        names = await names_in_clusters(self._store, LOCAL_POLICIES, places)
        below = [path for path in map(pulsars_paths.local_policies, names) if path not in read and record_at(path)]
        return dict(zip(below, await self._store.get_many(below), strict=True))

    def _find_fresh(self) -> None:
        is_watching = len(self._armed) == len(_ROOTS)
        if is_watching and not any(map(self._rereading.is_marked, (_EVERYTHING, *_ROOTS))):
            self._was_read = True
            self._view.is_fresh = self._store.state is SessionState.CONNECTED

    # What is applied

    def _apply(self, read: _Read) -> None:
        """First who lives, then who owns what, then what brokers report: a report is to meet the owners of its time."""
        self._register({path: znode for path, znode in read.items() if path.startswith(f"{paths.BROKERS}/")})
        for path, znode in read.items():
            root, name = record_at(path) or ("", "")
            if root != paths.BROKERS and path not in self._read_since:
                with self._faults.of(path):
                    self._apply_by_root[root](name, znode)
        self._namespaces.put_together()
        self._policies.lay_down(self._namespaces.groups())
        for path, znode in read.items():
            root, name = record_at(path) or ("", "")
            if root == paths.BROKERS:
                with self._faults.of(path):
                    self._brokers.apply(name, znode)

    def _register(self, read: _Read) -> None:
        registrations, changed = self._view.registrations, set()
        for path, znode in read.items():
            broker = BrokerId(path.removeprefix(f"{paths.BROKERS}/"))
            before = registrations.get(broker)
            if znode is None:
                self._view.drop_broker(broker)
            else:
                with contextlib.suppress(InvalidNameError):  # which is listed where its record is taken in
                    self._brokers.register(broker, znode)
            if registrations.get(broker) != before:
                changed.add(broker)
        if changed:
            self._namespaces.lives_changed(changed)
            if self._was_read:
                self.changed_s = time.monotonic()

    def _apply_cut(self, namespace: str, znode: Znode | None) -> None:
        """The local policies of a namespace. An empty znode is a place of others, unless it had some before."""
        if znode is None or not (znode.data or namespace in self._namespaces.with_policies):
            self._namespaces.drop_cut(namespace)
            return
        try:
            cut = decode_cut(znode.data, znode.path)
        except InvalidRecordError as error:
            self._namespaces.put_unreadable(namespace, str(error))
            raise
        self._namespaces.put_cut(namespace, cut, znode)

    def _apply_owner(self, bundle: str, znode: Znode | None) -> None:
        self._namespaces.put_owner(bundle, None if znode is None else decode_owner(znode.data, znode.path))

    def _apply_configuration(self, _: str, znode: Znode | None) -> None:
        """What operators changed while brokers run; what cannot be used is left out, and said."""
        self.dynamic = {} if znode is None else decode_texts(znode.data, znode.path)
        faults = self._live.apply(self.dynamic)
        self._view.model.set_rules(ReportRules.of(self._live.planner))
        if faults:
            raise InvalidRecordError(f"{DYNAMIC_CONFIGURATION}: {'; '.join(faults)}")

    def _apply_leader(self, _: str, znode: Znode | None) -> None:
        self.pulsars_leader = None if znode is None else decode_leader(znode.data, znode.path)

    def _apply_read_only(self, _: str, znode: Znode | None) -> None:
        self.is_read_only = znode is not None


def _find_fault(record: LocalBrokerData) -> str | None:
    return f"{NO_LOAD}: {_LOAD_MANAGER} is needed" if publishes_no_load(record) else None
