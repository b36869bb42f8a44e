"""Memory handed from one leader to the next: averages of bundles and brokers, and the state of strategies.

Written at intervals, and only what has changed: an idle cluster writes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import orjson
import structlog

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.model.load import BundleAverages
from loadmanager.core.planning.decision_kinds import as_json
from loadmanager.core.planning.planner import State
from loadmanager.errors import (
    AccessDeniedError,
    InvalidRecordError,
    NotLeaderError,
    StoreError,
    TransactionFailedError,
    ZnodeTooLargeError,
)
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.election.ownership_ledger import MAX_TRANSACTION_BYTES, MAX_TRANSACTION_RECORDS
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import MINUTE_S, PlannerService
from loadmanager.store import paths
from loadmanager.store.metadata_store import MAX_ZNODE_BYTES, Check, Create, Delete, MetadataStore, Op, Put
from loadmanager.store.znode_codec import decode, pack, pack_rounded
from loadmanager.wire.average_records import encode_broker_averages, encode_bundle_data
from loadmanager.wire.strategy_state import StrategyStateRecord, parse_strategy_state

log = structlog.get_logger(__name__)

_SOON_S = 0.5
_AGAIN_S = 1.0


class Persistence:
    """Writes the leader's memory to the store; `existing` are the paths known to exist there."""

    def __init__(
        self,
        store: MetadataStore,
        mirror: ClusterMirror,
        election: Election,
        planner: PlannerService,
        reject: Callable[[str, Exception], None],
        live: LiveSettings,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._election = election
        self._planner = planner
        self._reject = reject
        self._live = live
        self._writing = asyncio.Lock()
        self._reshaped: set[str] = set()
        self._reshaped_wake = asyncio.Event()
        self._own: State = {}
        self._is_taken_over = False
        self.existing: set[str] = set()
        self._written: dict[str, bytes] = {}
        self._flushed_revision = 0
        self.records_written = 0

    async def run(self) -> None:
        """Flush every interval for as long as the term lasts."""
        while True:
            await self._live.pause(
                lambda settings: settings.planner_settings().resource_quota_update_interval_minutes * MINUTE_S
            )
            await self._try(self.flush)

    async def run_memory(self) -> None:
        """Write the state of strategies soon after `memory_changed`, for as long as the term lasts."""
        changed = self._planner.churn.memory_changed
        while True:
            await changed.wait()
            changed.clear()
            await self._try(self.flush_memory)

    async def run_reshaped(self) -> None:
        """Write the averages of namespaces soon after splits and merges, for as long as the term lasts."""
        while True:
            await self._reshaped_wake.wait()
            await asyncio.sleep(_SOON_S)
            self._reshaped_wake.clear()
            await self._try(self.flush_reshaped)

    def reshaped(self, namespace: str) -> None:
        """Queue a namespace whose bundles have changed: its averages are written soon."""
        self._reshaped.add(namespace)
        self._reshaped_wake.set()

    async def _try(self, write: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._writing:
                await write()
        except StoreError as error:
            log.warning("history_not_written", error=str(error))
        except NotLeaderError:
            raise
        except Exception:  # losing averages must not end the term
            log.exception("history_not_written")

    def resting(self) -> asyncio.Lock:
        """Return the lock that suspends all writes while it is held."""
        return self._writing

    def forget_averages(self, namespace: str) -> None:
        """Forget the averages of a namespace that was deleted."""
        path = paths.bundle_data(namespace)
        self.existing.discard(path)
        self._written.pop(path, None)
        self._reshaped.discard(namespace)

    async def take_over(self) -> None:
        """Restore the last leader's memory: the state of strategies, and the list of records to replace.

        If the store does not answer, assignments continue without it; see `taken_over`.
        """
        self._written.clear()
        self._flushed_revision = 0
        self._own = self._planner.forget()
        self._is_taken_over = await self._try_to_take_over()

    async def taken_over(self) -> None:
        """Wait until the last leader's memory is read. Until then do not shed, and do not overwrite it."""
        while not self._is_taken_over:
            await asyncio.sleep(_AGAIN_S)
            self._is_taken_over = await self._try_to_take_over()
            if self._is_taken_over:
                log.info("memory_read")

    async def _try_to_take_over(self) -> bool:
        try:
            self.existing = await self._list()
            znode = await self._store.get(paths.STRATEGY_STATE)
        except StoreError as error:
            log.warning("memory_not_read", error=str(error), until_then="nothing is shed, split or written over it")
            return False
        if znode is not None:
            self.existing.add(paths.STRATEGY_STATE)
        record = None if znode is None else self._find_record(znode.data)
        await self._restore(record or StrategyStateRecord(states=self._own))
        return True

    def _find_record(self, data: bytes) -> StrategyStateRecord | None:
        """Return the last leader's record, without its damaged parts; None when no part can be read."""
        where = paths.STRATEGY_STATE
        try:
            record, fault = parse_strategy_state(decode(data, where), where)
        except InvalidRecordError as error:
            self._reject(where, error)
            return None
        if fault is not None:
            self._reject(where, fault)
        return record

    async def _restore(self, record: StrategyStateRecord) -> None:
        await self._planner.restore(record.states)
        now_s = time.time()
        bundles = {bundle: min(at_s, now_s) for bundle, at_s in record.recently_unloaded.items()}
        sources = {BrokerId(broker): min(at_s, now_s) for broker, at_s in record.last_unloaded.items()}
        self._mirror.model.restore_unloaded(bundles, sources)

    async def _list(self) -> set[str]:
        found = {paths.broker_time_average(broker) for broker in await self._store.children(paths.BROKER_TIME_AVERAGE)}
        for tenant in await self._store.children(paths.BUNDLE_DATA):
            names = await self._store.children(paths.bundle_data(tenant))
            found |= {paths.bundle_data(f"{tenant}/{name}") for name in names}
        return found

    async def flush(self) -> None:
        """Write everything that has changed since the last flush; raises the `StoreError` of a write that failed."""
        model = self._mirror.model
        revision = model.revision
        records: dict[str, bytes] = {}
        for namespace in sorted(model.namespaces_changed_since(self._flushed_revision)):
            if namespace in self._mirror.namespaces:
                averages = model.bundle_averages(namespace)
                records[paths.bundle_data(namespace)] = await asyncio.to_thread(pack_averages, averages)
        for broker_id, sums in model.broker_time_averages().items():
            records[paths.broker_time_average(broker_id)] = encode_broker_averages(sums)
        records[paths.STRATEGY_STATE] = await asyncio.to_thread(pack_within_limit, self._strategy_state())
        await self._write(records, self._stale_averages())
        self._flushed_revision = revision

    async def flush_reshaped(self) -> None:
        """Write only the averages of reshaped namespaces; raises the `StoreError` of a write that failed."""
        namespaces, self._reshaped = self._reshaped, set()
        try:
            await self._write_history(namespaces)
        except StoreError:
            for namespace in namespaces:
                self.reshaped(namespace)
            raise

    async def _write_history(self, namespaces: set[str]) -> None:
        averages = {name: self._mirror.model.bundle_averages(name) for name in sorted(namespaces)}
        records = {
            paths.bundle_data(name): await asyncio.to_thread(pack_averages, found) for name, found in averages.items()
        }
        await self._write(records)

    async def flush_memory(self) -> None:
        """Write only the state of strategies and churn limits; raises the `StoreError` of a write that failed."""
        data = await asyncio.to_thread(pack_within_limit, self._strategy_state())
        await self._write({paths.STRATEGY_STATE: data})

    def _strategy_state(self) -> StrategyStateRecord:
        model = self._mirror.model
        return StrategyStateRecord(
            states=self._planner.memory,
            recently_unloaded=dict(model.unloads.of_bundles),
            last_unloaded={str(broker): at_s for broker, at_s in model.unloads.from_brokers.items()},
        )

    def _stale_averages(self) -> list[str]:
        prefix = f"{paths.BROKER_TIME_AVERAGE}/"
        registered = self._mirror.registrations
        return sorted(
            p for p in self.existing if p.startswith(prefix) and BrokerId(p.removeprefix(prefix)) not in registered
        )

    async def _write(self, records: dict[str, bytes], stale: Sequence[str] = ()) -> None:
        """Write all changed records that the store accepts, then raise the error of the first that it did not."""
        errors: list[StoreError] = []
        ops: list[Op] = [Delete(path) for path in stale]
        for path, data in records.items():
            if self._written.get(path) == data:
                continue
            try:
                ops.append(await self._op(path, data))
            except (ZnodeTooLargeError, AccessDeniedError) as error:
                errors.append(error)
        while ops:
            batch, size = [ops.pop()], 0
            while ops and len(batch) < MAX_TRANSACTION_RECORDS and size + _size(ops[-1]) <= MAX_TRANSACTION_BYTES:
                size += _size(ops[-1])
                batch.append(ops.pop())
            errors += await self._commit_acceptable(batch)
        if errors:
            raise errors[0]

    async def _op(self, path: str, data: bytes) -> Op:
        if len(data) > MAX_ZNODE_BYTES:
            error = ZnodeTooLargeError(f"{path}: {len(data)} bytes, at most {MAX_ZNODE_BYTES} fit into a znode")
            self._reject(path, error)
            raise error
        if path in self.existing:
            return Put(path, data)
        await self._store.ensure_path(path.rpartition("/")[0])
        return Create(path, data)

    async def _commit_acceptable(self, ops: list[Op]) -> list[StoreError]:
        """Commit the operations except those that the store refuses; return the errors of these."""
        errors: list[StoreError] = []
        while ops:
            try:
                await self._commit(ops)
                break
            except TransactionFailedError as error:
                if error.index == 0:
                    raise
                errors.append(error)
                del ops[error.index - 1]
        return errors

    async def _commit(self, ops: list[Op]) -> None:
        term = self._election.get_term()
        try:
            await self._store.commit([Check(paths.EPOCH, term.epoch), *ops], session_id=term.session_id)
        except TransactionFailedError as error:
            if error.index == 0:
                self._election.deposed()
            else:
                self._learn(error)
            raise
        for op in ops:
            self._remember(op)
        self.records_written += len(ops)

    def _learn(self, error: TransactionFailedError) -> None:
        """Correct `existing` after a failed write, for the next flush."""
        if error.cause == "node_exists":
            self.existing.add(error.path)
        elif error.cause == "no_node":
            self.existing.discard(error.path)

    def _remember(self, op: Op) -> None:
        match op:
            case Delete(path):
                self.existing.discard(path)
                self._written.pop(path, None)
            case Put(path, data) | Create(path, data):
                self.existing.add(path)
                self._written[path] = data
                self._mirror.faults.pop(path, None)
            case _:
                pass


def pack_averages(averages: Mapping[str, BundleAverages]) -> bytes:
    """Encode the averages of a namespace as a znode."""
    return pack_rounded(lambda digits: encode_bundle_data(averages, digits))


def pack_within_limit(record: StrategyStateRecord) -> bytes:
    """Encode the record as a znode, without its largest parts if it would not fit.

    Strategies start without these parts; the rest of the record must still be written.
    """
    states = dict(sorted(as_json(record.states).items(), key=lambda state: len(orjson.dumps(state[1]))))
    left_out: list[str] = []
    data = pack(record.to_json())
    while len(data) > MAX_ZNODE_BYTES and (states or record.recently_unloaded):
        if states:
            left_out.append(states.popitem()[0])
            record = record.model_copy(update={"states": states})
        else:
            left_out.append("recentlyUnloaded")
            record = record.model_copy(update={"recently_unloaded": {}})
        data = pack(record.to_json())
    if left_out:
        log.warning("strategy_states_not_kept", left_out=left_out, limit=MAX_ZNODE_BYTES)
    return data


def _size(op: Op) -> int:
    return len(op.data) if isinstance(op, Put | Create) else 0
