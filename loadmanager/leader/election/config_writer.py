"""Writer of operator config: policies, controls and dynamic configuration, each kind in one znode.

Only the leader writes, and every write checks its epoch and the version that it read. Each node learns of the change
through its intake, this one before the caller gets an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import structlog

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.errors import ConcurrentModificationError, InvalidRecordError, StaleEpochError, TransactionFailedError
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.mirror.mirror_intake import MirrorIntake
from loadmanager.store import paths
from loadmanager.store.metadata_store import Check, Create, Delete, MetadataStore, Op, Put
from loadmanager.store.znode_codec import decode, pack
from loadmanager.wire.control_records import decode_controls, encode_controls
from loadmanager.wire.learned_records import LearnedData, decode_learned, encode_learned
from loadmanager.wire.policy_records import (
    FailureDomain,
    IsolationData,
    decode_domains,
    decode_groups,
    decode_isolation,
    encode_domains,
    encode_groups,
    encode_isolation,
)
from loadmanager.wire.store_records import decode_configuration, encode_configuration

log = structlog.get_logger(__name__)

_ATTEMPTS = 5
_CHANGED_EXTERNALLY = frozenset({"bad_version", "node_exists", "no_node"})

_Value = TypeVar("_Value")


class ConfigWriter:
    """Compare-and-set updates of operator config. Each `update_...` changes one znode and returns its new value, which
    this node's mirror has by then.

    `change` maps the stored value to the new one; it is called again after a concurrent change, and its errors are
    passed on. Further errors: `NotLeaderError`, `InvalidRecordError` if the stored value cannot be read,
    `ConcurrentModificationError` after too many attempts, or a `StoreError`.
    """

    def __init__(self, store: MetadataStore, intake: MirrorIntake, election: Election) -> None:
        self._store = store
        self._intake = intake
        self._election = election

    async def update_controls(self, change: Callable[[Controls], Controls]) -> Controls:
        return await self._update(
            paths.CONTROLS, decode_controls, encode_controls, lambda controls: change(_without_ended_holds(controls))
        )

    async def update_isolation(
        self, change: Callable[[Mapping[str, IsolationData]], Mapping[str, IsolationData]]
    ) -> Mapping[str, IsolationData]:
        """Update the isolation policies by name."""
        return await self._update(paths.ISOLATION, decode_isolation, encode_isolation, change)

    async def update_failure_domains(
        self, change: Callable[[Mapping[str, FailureDomain]], Mapping[str, FailureDomain]]
    ) -> Mapping[str, FailureDomain]:
        return await self._update(paths.FAILURE_DOMAINS, decode_domains, encode_domains, change)

    async def update_anti_affinity(self, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Mapping[str, str]:
        """Update the anti-affinity groups of namespaces."""
        return await self._update(paths.ANTI_AFFINITY, decode_groups, encode_groups, change)

    async def update_configuration(self, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Mapping[str, str]:
        """Update the overrides of settings by key, including those that cannot be used.

        A damaged record is replaced, starting from the overrides in force on this node.
        """
        return await self._update(
            paths.CONFIGURATION, decode_configuration, encode_configuration, change, lambda: self._intake.overrides
        )

    async def update_learned(self, learned: LearnedData | None) -> LearnedData | None:
        """Replace the learned loads of the pipeline; None deletes them."""
        return await self._update(paths.LEARNED, decode_learned, encode_learned, lambda _: learned)

    async def forgetting(self, namespace: str) -> list[Op]:
        """Return operations that delete everything kept of a namespace besides its record, to be committed with
        that.
        """
        averages = paths.bundle_data(namespace)
        ops: list[Op] = [] if await self._store.get(averages) is None else [Delete(averages)]
        controls = await self._store.get(paths.CONTROLS)
        if controls is not None:
            stored = decode_controls(decode(controls.data, paths.CONTROLS), paths.CONTROLS)
            changed = stored.without_namespace(namespace)
            if changed != stored:
                ops.append(Put(paths.CONTROLS, pack(encode_controls(changed)), controls.version))
        znode = await self._store.get(paths.ANTI_AFFINITY)
        if znode is not None:
            groups = decode_groups(decode(znode.data, paths.ANTI_AFFINITY), paths.ANTI_AFFINITY)
            others = {name: group for name, group in groups.items() if name != namespace}
            if others != groups:
                ops.append(Put(paths.ANTI_AFFINITY, pack(encode_groups(others)), znode.version))
        return ops

    async def _update(
        self,
        path: str,
        read: Callable[[bytes, str], _Value],
        write: Callable[[_Value], bytes],
        change: Callable[[_Value], _Value],
        in_force: Callable[[], _Value] | None = None,
    ) -> _Value:
        for _ in range(_ATTEMPTS):
            term = self._election.get_term()
            znode = await self._store.get(path)
            is_damaged = False
            try:
                stored = read(b"{}" if znode is None else decode(znode.data, path), path)
            except InvalidRecordError:
                if in_force is None:
                    raise
                stored, is_damaged = in_force(), True
            changed = change(stored)
            if changed == stored and not is_damaged:
                return await self._wait_until_mirrored(path, stored)
            data = pack(write(changed))
            op: Op = Create(path, data) if znode is None else Put(path, data, znode.version)
            try:
                await self._store.commit([Check(paths.EPOCH, term.epoch), op], session_id=term.session_id)
            except TransactionFailedError as error:
                if error.index == 0:
                    self._election.deposed()
                    raise StaleEpochError("another leader has taken over; this write had no effect") from None
                if error.cause not in _CHANGED_EXTERNALLY:
                    raise
                continue
            log.info("damaged_record_replaced" if is_damaged else "operator_config_written", path=path)
            return await self._wait_until_mirrored(path, changed)
        raise ConcurrentModificationError(f"Concurrent modification of {path}: nothing was written")

    async def _wait_until_mirrored(self, path: str, value: _Value) -> _Value:
        self._intake.mark_dirty(path)
        await self._intake.settled_soon()
        return value


def _without_ended_holds(controls: Controls) -> Controls:
    now_s = time.time()
    held: dict[BrokerId, float] = {b: until_s for b, until_s in controls.held_off.items() if until_s > now_s}
    return controls if len(held) == len(controls.held_off) else replace(controls, held_off=held)
