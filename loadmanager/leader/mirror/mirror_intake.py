"""Intake from the store into the mirror: a watch marks a path, and the intake reads it again and applies it.

Level-triggered: notifications only mark paths as dirty, so a burst of them costs one read. A load report is applied
once per write of its znode. After every reconnection everything is read again, because notifications may have been
missed; until then the mirror is not fresh.

A read always wins, even over newer state: the store may have been rolled back. Within a session, ZooKeeper's reads
never go back in time, so only a read that began before a commit of this node can be outdated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog

from loadmanager.core.domain.names import BrokerId, InvalidNameError, NamespaceName
from loadmanager.core.protocol.leadership import LeaderZnode
from loadmanager.errors import InvalidRecordError, OutcomeUnknownError, StoreError
from loadmanager.leader.mirror.broker_records import BrokerRecords
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.mirror.reread_queue import RereadQueue
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore, SessionState, Znode
from loadmanager.store.znode_codec import decode
from loadmanager.wire.average_records import decode_bundle_data
from loadmanager.wire.control_records import decode_controls
from loadmanager.wire.learned_records import decode_learned, learned_of
from loadmanager.wire.policy_records import decode_domains, decode_groups, decode_isolation, policies_of
from loadmanager.wire.store_records import LeaderRecord, NodeRecord, decode_configuration, decode_namespace
from loadmanager.wire.validation import parse_model

log = structlog.get_logger(__name__)


class ZnodeFaults:
    """Maintains `listed`, the faults at the last read; `counted` is the number of faults so far."""

    def __init__(self, listed: dict[str, str]) -> None:
        self._listed = listed
        self.counted = 0

    @contextmanager
    def of(self, path: str) -> Iterator[None]:
        """Apply what was read at a path: a record error is listed, success clears it."""
        try:
            yield
        except (InvalidRecordError, InvalidNameError) as error:
            self.reject(path, error)
        else:
            self._listed.pop(path, None)

    def reject(self, path: str, error: Exception) -> None:
        """List a fault of a znode until it is repaired; each one is counted and logged once."""
        if self._listed.get(path) != str(error):
            self.counted += 1
            log.warning("record_rejected", path=path, error=str(error))
        self._listed[path] = str(error)


_SETTLES_WITHIN_S = 10.0
_RETRY_S = 0.2
_AT_A_TIME = 32
"""Number of znodes that are read at a time, before they are applied."""
_ELECTION_PATHS = (paths.EPOCH, paths.LEADER, paths.SUSPICION)
_POLICIES: dict[str, tuple[str, Callable[[bytes, str], object]]] = {
    paths.ISOLATION: ("isolation", decode_isolation),
    paths.FAILURE_DOMAINS: ("failure_domains", decode_domains),
    paths.ANTI_AFFINITY: ("anti_affinity", decode_groups),
}
"""Attribute of `OperatorConfig` and decoder of each policy znode."""


class MirrorIntake:
    """Keeps a `ClusterMirror` equal to the store. `on_change` is called after each applied batch."""

    def __init__(
        self, store: MetadataStore, mirror: ClusterMirror, live: LiveSettings, on_change: Callable[[], None]
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._live = live
        self._on_change = on_change
        self._rereading = RereadQueue(self._read_and_apply)
        self._brokers = BrokerRecords(mirror, live)
        self._faults = ZnodeFaults(mirror.faults)
        self._is_watching = False
        self._commits_when_asked = 0
        self._apply_by_kind = {
            "brokers": self._brokers.apply,
            "namespaces": self._apply_namespace,
            "nodes": self._apply_node,
            "policies": self._apply_operator_config,
            "configuration": self._apply_configuration,
            "learned": self._apply_learned,
        }

    @property
    def records_rejected(self) -> int:
        return self._faults.counted

    @property
    def reports_applied(self) -> int:
        """Number of load reports applied."""
        return self._brokers.applied

    async def run(self) -> None:
        """Read and apply for as long as the node lives."""
        unsubscribe = [
            self._store.watch(paths.ROOT, self._on_watch_event),
            self._store.on_session(self._session_changed),
        ]
        try:
            await self._rereading.run()
        finally:
            for stop in unsubscribe:
                stop()

    def mark_dirty(self, path: str) -> None:
        """Have `path` read again soon; the root stands for everything."""
        if path == paths.ROOT:
            self._mirror.is_fresh = False
        self._rereading.mark(path)

    async def settled(self) -> None:
        """Return once everything that was dirty at the call has been read and applied."""
        await self._rereading.settled()

    async def settled_soon(self) -> None:
        """Wait as `settled`, for a caller that waits for an answer; raises `OutcomeUnknownError` after a timeout."""
        try:
            async with asyncio.timeout(_SETTLES_WITHIN_S):
                await self.settled()
        except TimeoutError:
            raise OutcomeUnknownError(
                f"the write was not confirmed within {_SETTLES_WITHIN_S:g} s: check whether it took effect"
            ) from None

    def _on_watch_event(self, path: str) -> None:
        """Mark the path of a watch event; the root means that the watch has just been set."""
        if path == paths.ROOT:
            self._is_watching = True
        self.mark_dirty(path)

    async def settle_registrations(self) -> None:
        """Wait until every broker registered at the call is known, and every earlier change is applied.

        A former leader may have assigned bundles to a broker that this node does not know yet. If the node took it for
        gone, the broker would lose bundles that it serves. The store sends the notification of a change before a read
        returns the change, so after the read every change is marked. If a watch was not set, everything is read again.
        """
        while True:
            if await self._is_settled():
                return
            await asyncio.sleep(_RETRY_S)

    async def _is_settled(self) -> bool:
        try:
            registered = set(await self._store.children(paths.BROKERS))
        except StoreError as error:
            log.debug("registrations_wait_for_store", error=str(error))
            return False
        await asyncio.sleep(0)  # now its notifications are marked
        for name in registered.symmetric_difference(self._mirror.registrations):
            self.mark_dirty(paths.broker(BrokerId(name)))
        await self.settled()
        return self._mirror.is_fresh

    def _session_changed(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            self._is_watching = False
            self._mirror.is_fresh = False
        if state is SessionState.LOST:
            self._mirror.is_of_former_session = True

    async def _read_and_apply(self, batch: set[str]) -> None:
        for path in batch:
            if not _is_record(path):  # averages are read at startup only: the next write repairs them
                self._mirror.faults.pop(path, None)
        everything = paths.ROOT in batch
        wanted = set(await self._all_paths()) if everything else {p for p in batch if _is_record(p)}
        if everything:
            self._drop_missing(wanted)
        if not wanted.isdisjoint(_ELECTION_PATHS):
            await self._read_election()
        # Reports come last: they need the settings, the bundles and the owners of now.
        ordered = sorted(wanted.difference(_ELECTION_PATHS), reverse=True)
        for first in range(0, len(ordered), _AT_A_TIME):
            await self._read_part(ordered[first : first + _AT_A_TIME])
        await self._take_divided(batch)
        if everything and self._is_watching and not self._rereading.is_marked(paths.ROOT):
            self._mirror.is_fresh = self._store.state is SessionState.CONNECTED
            self._mirror.is_of_former_session &= not self._mirror.is_fresh
            self._mirror.unsettled += 1  # writes in flight when the connection broke may be unfinished
        self._on_change()

    async def _read_election(self) -> None:
        self._apply_election(*await self._store.get_many(_ELECTION_PATHS))

    async def _read_part(self, part: Sequence[str]) -> None:
        """Read and apply one part of a batch.

        Reading in parts saves memory, since a report needs far more than what is kept of it. After each part, a changed
        leader is read without waiting for the rest.
        """
        self._commits_when_asked = self._mirror.commits
        for path, znode in zip(part, await self._store.get_many(part), strict=True):
            await self._brokers.decode_long(path, znode)
            self._apply(path, znode)
        if any(map(self._rereading.is_marked, _ELECTION_PATHS)):
            await self._read_election()
            self._on_change()

    async def _take_divided(self, batch: set[str]) -> None:
        """Read the averages that the leader has written after a split: they are more exact than this node's."""
        prefix, model = f"{paths.BUNDLE_DATA}/", self._mirror.model
        awaited = [p for p in batch if p.startswith(prefix) and model.awaits_division(p.removeprefix(prefix))]
        for path, znode in zip(awaited, await self._store.get_many(awaited), strict=True):
            if znode is not None:
                self._seed_averages(path, znode)

    async def _all_paths(self) -> list[str]:
        brokers = await self._store.children(paths.BROKERS)
        nodes = await self._store.children(paths.NODES)
        return [
            *_ELECTION_PATHS,
            *paths.OPERATOR_CONFIG,
            *(paths.broker(name) for name in brokers),
            *(paths.node(name) for name in nodes),
            *[path async for path in _grandchildren(self._store, paths.NAMESPACES)],
        ]

    def _drop_missing(self, there: set[str]) -> None:
        for broker_id in [b for b in self._mirror.registrations if paths.broker(b) not in there]:
            self._mirror.drop_broker(broker_id)
        for name in [n for n in self._mirror.namespaces if paths.namespace(n) not in there]:
            self._mirror.drop_namespace(name)
        for node_id in [n for n in self._mirror.nodes if paths.node(n) not in there]:
            self._apply_node(node_id, None)
        for path in [p for p in self._mirror.faults if _is_record(p) and p not in there]:
            del self._mirror.faults[path]

    def _apply(self, path: str, znode: Znode | None) -> None:
        kind, _, name = path.removeprefix(f"{paths.ROOT}/").partition("/")
        apply = self._apply_by_kind.get(kind)
        if apply is None:
            return
        with self._faults.of(path):
            apply(name, znode)

    def reject(self, path: str, error: Exception) -> None:
        """List the fault of a znode until it is repaired; it is counted and logged once."""
        self._faults.reject(path, error)

    def _apply_election(self, epoch: Znode | None, leader: Znode | None, suspicion: Znode | None) -> None:
        self._mirror.epoch = epoch.version if epoch else 0
        self._mirror.suspicion_czxid = suspicion.czxid if suspicion else None
        self._mirror.leader = None
        if leader is None:
            self._mirror.faults.pop(paths.LEADER, None)
            return
        record = LeaderRecord(broker_id="", service_url="", epoch=0)
        with self._faults.of(paths.LEADER):
            record = parse_model(LeaderRecord, decode(leader.data, paths.LEADER), paths.LEADER)
        self._mirror.leader = LeaderZnode(
            record.broker_id, record.service_url, record.epoch, leader.ephemeral_owner, leader.czxid, record.life
        )

    def _apply_namespace(self, name: str, znode: Znode | None) -> None:
        if znode is None:
            self._mirror.drop_namespace(name)
            return
        known = self._mirror.namespaces.get(name)
        if known is not None and known.commit > self._commits_when_asked:
            return  # the watch event of that commit causes another read
        if known is not None and known.is_record(znode):
            if known.unreadable is not None:
                raise InvalidRecordError(known.unreadable)
            return
        digest = hash(znode.data)
        where = paths.namespace(name)
        try:
            data = decode(znode.data, where)
            state = decode_namespace(NamespaceName.parse(name), data, where)
        except InvalidRecordError as error:
            if known is not None:
                entry = NamespaceEntry(known.state, znode.version, znode.czxid, digest, unreadable=str(error))
                self._mirror.namespaces[name] = entry
            raise
        self._mirror.put_namespace(NamespaceEntry(state, znode.version, znode.czxid, digest))
        self._mirror.unsettled += 1

    def _apply_node(self, name: str, znode: Znode | None) -> None:
        if znode is None:
            self._mirror.nodes.pop(name, None)
            self._mirror.node_sessions.pop(name, None)
            return
        self._mirror.node_sessions[name] = znode.ephemeral_owner
        where = paths.node(name)
        self._mirror.nodes[name] = parse_model(NodeRecord, decode(znode.data, where), where)

    def _apply_operator_config(self, name: str, znode: Znode | None) -> None:
        """Apply policies or controls; if they cannot be read, the last good ones stay active."""
        where = f"{paths.POLICIES}/{name}"
        data = b"{}" if znode is None else decode(znode.data, where)
        operator_config, model = self._mirror.operator_config, self._mirror.model
        if where == paths.CONTROLS:
            controls = decode_controls(data, where)
            if controls != operator_config.controls:
                operator_config.controls = controls
                model.set_controls(controls)
                self._mirror.unsettled += 1
            return
        attribute, read = _POLICIES[where]
        policies = read(data, where)
        if policies != getattr(operator_config, attribute):
            setattr(operator_config, attribute, policies)
            model.set_policies(
                policies_of(operator_config.isolation, operator_config.failure_domains, operator_config.anti_affinity)
            )

    def _apply_learned(self, _: str, znode: Znode | None) -> None:
        """Apply the learned loads of bundles without history; if unreadable, the last good ones stay active."""
        data = b"{}" if znode is None else decode(znode.data, paths.LEARNED)
        learned = decode_learned(data, paths.LEARNED)
        if learned != self._mirror.operator_config.learned:
            self._mirror.operator_config.learned = learned
            self._mirror.model.set_learned(learned_of(learned))

    def _apply_configuration(self, _: str, znode: Znode | None) -> None:
        """Apply dynamic configuration; invalid overrides are skipped and listed as a fault."""
        where = paths.CONFIGURATION
        overrides = {} if znode is None else decode_configuration(decode(znode.data, where), where)
        faults = self._live.apply(overrides)
        self._mirror.model.set_settings(self._live.planner)
        if faults:
            raise InvalidRecordError(f"{where}: {'; '.join(faults)}")

    @property
    def overrides(self) -> Mapping[str, str]:
        """Active overrides of settings on this node, by key."""
        return self._live.overrides

    async def load_history(self) -> None:
        """Seed the model with the averages that a former leader wrote."""
        ordered = sorted([path async for path in _grandchildren(self._store, paths.BUNDLE_DATA)])
        for first in range(0, len(ordered), _AT_A_TIME):
            part = ordered[first : first + _AT_A_TIME]
            for path, znode in zip(part, await self._store.get_many(part), strict=True):
                if znode is not None:
                    self._seed_averages(path, znode)

    def _seed_averages(self, path: str, znode: Znode) -> None:
        namespace = path.removeprefix(f"{paths.BUNDLE_DATA}/")
        try:
            averages = decode_bundle_data(namespace, decode(znode.data, path), path)
        except InvalidRecordError as error:
            self.reject(path, error)
            return
        for name, value in averages.items():
            self._mirror.model.seed_bundle(name, value)


def _is_record(path: str) -> bool:
    parts = path.removeprefix(f"{paths.ROOT}/").split("/")
    depth = {
        "brokers": 2,
        "nodes": 2,
        "namespaces": 3,
        "epoch": 1,
        "leader": 1,
        "suspicion": 1,
        "policies": 2,
        "configuration": 1,
        "learned": 1,
    }.get(parts[0])
    return len(parts) == depth and (parts[0] != "policies" or path in paths.OPERATOR_CONFIG)


async def _grandchildren(store: MetadataStore, root: str) -> AsyncIterator[str]:
    for tenant in await store.children(root):
        for name in await store.children(f"{root}/{tenant}"):
            yield f"{root}/{tenant}/{name}"
