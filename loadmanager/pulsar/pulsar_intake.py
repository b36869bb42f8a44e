"""From Pulsar's znodes to the view: watches say where something changed, this reads it again and applies it.

Level-triggered, as `leader.mirror.mirror_intake` is for a node, with a watch on each tree of `trees`:

what is heard                           what is read
-------------                           ------------
the last of the watches is in force     everything: the view is fresh once that is applied
a change below a watch                  that znode; of the policies of the cluster all, which are few
the connection broke                    nothing, and the view is not fresh, until all watches are in force again

Everything is read exactly, also the znode of each owner: a thousand of them are one request. Watching costs Pulsar's
ZooKeeper less than asking would (see `benchmarks/bench_beside.py`). Batches are apart, so that brokers that report all
the time cost a few requests a second.

ModularLoadManagerImpl only: ExtensibleLoadManagerImpl publishes no load in ZooKeeper, as is said of each such broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

from loadmanager.core.diagnosis.pulsar_comparison import Sighted
from loadmanager.core.domain.names import BrokerId, BundleName, InvalidNameError
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.parts import in_parts
from loadmanager.core.model.extensible_load import ReportRules
from loadmanager.errors import InvalidRecordError
from loadmanager.leader.mirror.broker_records import BrokerRecords
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.mirror.reread_queue import RereadQueue
from loadmanager.leader.mirror.znode_faults import ZnodeFaults
from loadmanager.pulsar.initial_averages import Seeding
from loadmanager.pulsar.pulsar_namespaces import PulsarNamespaces
from loadmanager.pulsar.pulsar_policies import ClusterPolicies
from loadmanager.pulsar.pulsar_znodes import decode_cut, decode_leader, decode_owner, decode_texts, path_of
from loadmanager.pulsar.read_only_store import ReadOnlyStore
from loadmanager.pulsar.watched_trees import EVERYTHING, WATCHED, Records, Trees
from loadmanager.store import paths, pulsar_paths
from loadmanager.store.metadata_store import SessionState, Znode
from loadmanager.store.pulsar_paths import (
    CLUSTERS,
    DYNAMIC_CONFIGURATION,
    LOCAL_POLICIES,
    OWNERSHIP,
    READ_ONLY,
)
from loadmanager.wire.broker_data import LocalBrokerData
from loadmanager.wire.pulsar_records import NO_LOAD, publishes_no_load

_APART_S = 0.25
_RECORDS_AT_A_TIME, _NAMESPACES_AT_A_TIME, _REPORTS_AT_A_TIME = 1_000, 20, 10
"""What is applied before others get their turn: a few milliseconds' work."""
_NEVER = float("-inf")
_RECORDS = (DYNAMIC_CONFIGURATION, paths.LEADER)
"""What is watched and no tree: it changes as any record does."""
_LOAD_MANAGER = "ModularLoadManagerImpl"

_Apply = Callable[[str, Znode | None], None]


class PulsarIntake:
    """Keeps a `ClusterMirror` equal to a Pulsar's metadata. `on_change` is called after each applied batch.

    The policies are those of `cluster`, or of the only one there is.
    """

    def __init__(
        self,
        store: ReadOnlyStore,
        view: ClusterMirror,
        live: LiveSettings,
        cluster: str | None,
        on_change: Callable[[], None],
        on_moved: Callable[[Sighted], None],
    ) -> None:
        self._store = store
        self._view = view
        self._live = live
        self._on_change = on_change
        self._rereading = RereadQueue(self._read_and_apply, _APART_S)
        self._faults = ZnodeFaults(view.faults)
        self._brokers = BrokerRecords(view, live, BundleName.parse_any, _find_fault)
        self._namespaces = PulsarNamespaces(view, on_moved)
        self._trees = Trees(store, self._known)
        self._policies = ClusterPolicies(store, view, self._faults, cluster)
        self._seeding = Seeding(store, view.model)
        self._apply_by_root: dict[str, _Apply] = {
            OWNERSHIP: self._apply_owner,
            LOCAL_POLICIES: self._apply_cut,
            DYNAMIC_CONFIGURATION: self._apply_configuration,
            paths.LEADER: self._apply_leader,
            READ_ONLY: self._apply_read_only,
        }
        self._armed: set[str] = set()
        self._read_since: set[str] = set()
        self._was_read = False
        self.seeded = self._seeding.is_complete
        """Set once the history that Pulsar's leader has of bundles was taken over."""
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

    @property
    def policies_fault(self) -> str | None:
        """What is wrong with what admins laid down about the cluster, None when all of it was read."""
        faults = self._view.faults
        return next((faults[path] for path in sorted(faults) if path.startswith(CLUSTERS)), None)

    def reports_at_s(self, broker: BrokerId) -> float | None:
        """When a broker made its last report, seconds since 1970 by its clock; None without one that can be read."""
        entry = self._view.brokers.get(broker)
        updated_ms = None if entry is None else entry.record.get("lastUpdate")
        return None if updated_ms is None else updated_ms / 1000

    async def run(self) -> None:
        """Read and apply for as long as the process lives."""
        unsubscribe = [self._store.on_session(self._session_changed)]
        unsubscribe += [self._store.watch(root, self._notified) for root in WATCHED]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._rereading.run())
                group.create_task(self._seed())
        finally:
            for stop in unsubscribe:
                stop()

    def mark_dirty(self, path: str) -> None:
        """Have `path` read again soon; that of a tree stands for all in it, and until then the view is not fresh."""
        if path == EVERYTHING or (path in WATCHED and path not in _RECORDS):
            self._view.is_fresh = False
        self._rereading.mark(path)

    async def settled(self) -> None:
        """Return once everything that was dirty at the call has been read and applied."""
        await self._rereading.settled()

    async def owner_now(self, bundle: BundleName) -> Registration | None:
        """Who owns a bundle as Pulsar says now, which is applied; raises `StoreError` and `InvalidRecordError`."""
        path = pulsar_paths.owner(str(bundle))
        znode = await self._store.get(path)
        self._read_since.add(path)
        broker = None if znode is None else decode_owner(znode.data, path)
        self._namespaces.put_owner(str(bundle), broker)
        self._namespaces.put_together(str(bundle.namespace))
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
        if len(self._armed) == len(WATCHED):
            self.mark_dirty(path)
        elif path in WATCHED:
            self._armed.add(path)
            if len(self._armed) == len(WATCHED):
                self.mark_dirty(EVERYTHING)

    def _session_changed(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self._armed.clear()
            self._view.is_fresh = False

    # What is read

    async def _read_and_apply(self, batch: set[str]) -> None:
        self._read_since.clear()
        if any(path == EVERYTHING or path.startswith(CLUSTERS) for path in batch):
            await self._policies.read()
        read = await self._trees.read(batch)
        await self._apply(read)
        self._find_fresh()
        self._on_change()

    def _known(self, root: str) -> list[str]:
        """What is known of a tree, by what the records are about."""
        known: dict[str, Iterable[str]] = {
            paths.BROKERS: self._view.registrations,
            OWNERSHIP: self._namespaces.owned_bundles(),
            LOCAL_POLICIES: self._namespaces.with_policies,
        }
        faults = [path.removeprefix(f"{root}/") for path in self._view.faults if path.startswith(f"{root}/")]
        return [*known.get(root, ()), *faults]

    def _find_fresh(self) -> None:
        is_watching = len(self._armed) == len(WATCHED)
        if is_watching and not any(map(self._rereading.is_marked, (EVERYTHING, *WATCHED))):
            self._was_read = True
            self._view.is_fresh = self._store.state is SessionState.CONNECTED

    async def _apply(self, read: Records) -> None:
        """First who lives, then who owns what, then what brokers report: a report is to meet the owners of its time.

        Others get their turn meanwhile; each namespace, and each report, is applied as a whole.
        """
        self._register(read[paths.BROKERS])
        for root, apply in self._apply_by_root.items():
            for part in in_parts(read[root].items(), _RECORDS_AT_A_TIME):
                for name, znode in part:
                    self._apply_record(root, name, znode, apply)
                await asyncio.sleep(0)
        for namespaces in in_parts(self._namespaces.take_touched(), _NAMESPACES_AT_A_TIME):
            for namespace in namespaces:
                self._namespaces.put_together(namespace)
            await asyncio.sleep(0)
        self._policies.lay_down(self._namespaces.groups())
        for part in in_parts(read[paths.BROKERS].items(), _REPORTS_AT_A_TIME):
            for name, znode in part:
                await self._brokers.decode_long(paths.broker(name), znode)
                self._apply_record(paths.BROKERS, name, znode, self._brokers.apply)
            await asyncio.sleep(0)

    def _apply_record(self, root: str, name: str, znode: Znode | None, apply: _Apply) -> None:
        path = path_of(root, name)
        if path not in self._read_since:
            with self._faults.of(path):
                apply(name, znode)

    def _register(self, brokers: Mapping[str, Znode | None]) -> None:
        registrations, changed = self._view.registrations, set()
        for broker, znode in ((BrokerId(name), znode) for name, znode in brokers.items()):
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
