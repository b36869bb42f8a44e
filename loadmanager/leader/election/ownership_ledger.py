"""Only writer of bundle ownership: batches transitions into fenced transactions, then updates the mirror.

Transitions that arrive during a transaction share the next one, so a burst of lookups, or the loss of a broker with a
thousand bundles, costs a few writes. Every transaction checks the leader's fencing epoch first: a deposed leader's
write fails as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from loadmanager.core.domain.bundles import BoundariesError
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    succession_violations,
    transition_violations,
)
from loadmanager.core.protocol.state_machine import OwnerChange
from loadmanager.errors import (
    BundleNotFoundError,
    ConflictError,
    InvalidRecordError,
    InvariantViolatedError,
    NamespaceBeingDeletedError,
    NamespaceExistsError,
    NotLeaderError,
    OutcomeUnknownError,
    StaleEpochError,
    StoreError,
    TransactionFailedError,
)
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry
from loadmanager.leader.mirror.mirror_intake import MirrorIntake
from loadmanager.store import paths
from loadmanager.store.metadata_store import MAX_ZNODE_BYTES, Check, Create, Delete, MetadataStore, Op, Put
from loadmanager.store.znode_codec import decode, pack
from loadmanager.util import clock
from loadmanager.wire.store_records import DeletedRecord, encode_namespace
from loadmanager.wire.validation import parse_model

log = structlog.get_logger(__name__)

MAX_TRANSACTION_BYTES = MAX_ZNODE_BYTES // 2
MAX_TRANSACTION_RECORDS = 100
_ATTEMPTS = 5

Reshape = Callable[[NamespaceState, Stamp], NamespaceState]
"""Function that splits or merges bundles of a namespace. It raises what `NamespaceState.split` and `merge` raise, and
`BundleNotFoundError`."""


Outcomes = dict[BundleRange, Ownership | Exception]
"""Outcome of each of several transitions: the stored ownership, or the error."""


_Step = tuple[BundleRange, Ownership, Ownership]

_STEPS_KEPT = 200
"""Number of recent transitions kept for the log entry of an invariant violation."""


class _Draft:
    """Next record of a namespace, while transitions are applied to it.

    Raises `InvariantViolatedError` when the result violates an invariant. `steps` are the transitions, each with the
    ownership before and after.
    """

    def __init__(
        self, state: NamespaceState, is_registered: Callable[[Registration | None], bool], *, is_closed: bool
    ) -> None:
        self.steps: list[_Step] = []
        self._state = state
        self._is_registered = is_registered
        self._is_closed = is_closed
        self._ownerships: dict[int, Ownership] = {}

    @property
    def state(self) -> NamespaceState:
        if self._ownerships:
            self._state, self._ownerships = self._state.with_ownerships(self._ownerships), {}
        return self._state

    def step(self, bundle_range: BundleRange, transition: OwnerChange, stamp: Stamp) -> Ownership:
        index = self._state.bundles.find_index(bundle_range)
        if index is None:
            raise BundleNotFoundError(f"{bundle_range} is not a current bundle of {self._state.name}")
        current = self._ownerships.get(index, self._state.ownerships[index])
        following = transition(current, stamp)
        if (
            self._is_closed
            and current.state is not OwnershipState.RELEASING
            and following.owner not in (None, current.owner)
        ):
            raise IllegalTransitionError(f"{bundle_range} is given to nobody: {self._state.name} is being deleted")
        _must_hold(transition_violations(current, following, self._is_registered), bundle_range, current, following)
        self._ownerships[index] = following
        self.steps.append((bundle_range, current, following))
        return following

    def step_all(self, transitions: Mapping[BundleRange, OwnerChange], stamp: Stamp) -> Outcomes:
        """Apply all transitions that can be applied; raises the error of the last one if none can."""
        made: Outcomes = {}
        for bundle_range, transition in transitions.items():
            try:
                made[bundle_range] = self.step(bundle_range, transition, stamp)
            except (IllegalTransitionError, BundleNotFoundError) as error:
                made[bundle_range] = refusal = error
        if not any(isinstance(outcome, Ownership) for outcome in made.values()):
            raise refusal
        return made

    def reshape(self, change: Reshape, stamp: Stamp) -> NamespaceState:
        before = self.state
        if self._is_closed:
            raise IllegalTransitionError(f"{before.name} is being deleted")
        self._state = change(before, stamp)
        _must_hold(succession_violations(before, self._state), self._state.name, before.bundles, self._state.bundles)
        return self._state


def _must_hold(violations: list[str], *story: object) -> None:
    """Raise `InvariantViolatedError` with the story if there are violations."""
    if violations:
        raise InvariantViolatedError(f"{'; '.join(violations)}: {', '.join(map(str, story))}")


def _must_all_be_free(state: NamespaceState) -> None:
    for index, ownership in enumerate(state.ownerships):
        if ownership.state is not OwnershipState.FREE:
            raise IllegalTransitionError(f"{state.bundle_name(index)} is {ownership}")


_Made = Ownership | Outcomes | NamespaceState


@dataclass(slots=True)
class _Change:
    """A queued change: `make` applies it to a draft and returns the caller's result, valid once it is stored."""

    reason: str
    make: Callable[[_Draft, Stamp], _Made]
    done: asyncio.Future[Any]
    attempts: int = 0


@dataclass(slots=True)
class _Write:
    """Next record of one namespace, and the changes that it contains with the result of each."""

    entry: NamespaceEntry
    state: NamespaceState
    data: bytes
    changes: list[tuple[_Change, _Made]] = field(default_factory=list)


class OwnershipLedger:
    """Commits ownership transitions of the leader. Every failure reaches the caller through the awaited change."""

    def __init__(self, store: MetadataStore, mirror: ClusterMirror, intake: MirrorIntake, election: Election) -> None:
        self._store = store
        self._mirror = mirror
        self._intake = intake
        self._election = election
        self._pending: dict[str, list[_Change]] = defaultdict(list)
        self._closed: set[str] = set()
        self._one_at_a_time = asyncio.Lock()
        self._wake = asyncio.Event()
        self._recent: deque[tuple[str, _Step]] = deque(maxlen=_STEPS_KEPT)
        self.invariants_violated = 0
        self.writes_fenced = 0

    async def apply(self, namespace: str, bundle_range: BundleRange, transition: OwnerChange, reason: str) -> Ownership:
        """Commit one transition of one bundle; return the stored ownership.

        Raises `NotLeaderError` (also `StaleEpochError`), `IllegalTransitionError` when the bundle is in another state
        than the transition needs, `BundleNotFoundError`, `InvalidRecordError`, or a `StoreError`.
        """
        made: Ownership = await self._queue(
            namespace, reason, lambda draft, stamp: draft.step(bundle_range, transition, stamp)
        )
        return made

    async def apply_all(self, namespace: str, transitions: Mapping[BundleRange, OwnerChange], reason: str) -> Outcomes:
        """Commit one transition for each of many bundles of a namespace in one write: far cheaper than one by one.

        A transition that cannot be made does not stop the others. Raises as `apply`; a transition's own error only if
        none can be made.
        """
        made: Outcomes = await self._queue(namespace, reason, lambda draft, stamp: draft.step_all(transitions, stamp))
        return made

    async def reshape(self, namespace: str, change: Reshape, reason: str) -> NamespaceState:
        """Commit other bundles of a namespace in one write; return the stored namespace.

        Raises what `change` raises, and otherwise as `apply`.
        """
        made: NamespaceState = await self._queue(namespace, reason, lambda draft, stamp: draft.reshape(change, stamp))
        return made

    async def _queue(self, namespace: str, reason: str, make: Callable[[_Draft, Stamp], _Made]) -> Any:  # noqa: ANN401 - what `make` gives
        self._election.get_term()
        change = _Change(reason, make, asyncio.get_running_loop().create_future())
        self._pending[namespace].append(change)
        self._wake.set()
        return await change.done

    async def settled(self) -> None:
        """Wait until the records of a write of unknown outcome are read again, or until a timeout.

        The timeout is safe: a write based on an outdated record fails its version check.
        """
        with contextlib.suppress(OutcomeUnknownError):
            await self._intake.settled_soon()

    async def create_namespace(self, state: NamespaceState) -> None:
        """Write the first record of a namespace, and wait until the mirror has it.

        Its versions start above those of all deleted namespaces, because agents may remember versions of a deleted
        namespace of the same name. Raises `NamespaceExistsError`, `NotLeaderError` or a `StoreError`.
        """
        self.must_be_open(str(state.name))
        path = paths.namespace(str(state.name))
        async with self._one_at_a_time:
            await self._store.ensure_path(path.rpartition("/")[0])
            highest, as_read = await self._highest_deleted()
            first = state.from_version(highest)
            ops: list[Op] = [] if as_read is None else [Check(paths.DELETED, as_read)]
            try:
                await self._commit_alone([*ops, Create(path, pack(encode_namespace(first)))])
            except TransactionFailedError as error:
                if error.cause == "node_exists":
                    raise NamespaceExistsError(f"namespace {state.name} exists already") from None
                raise
        self._intake.mark_dirty(path)
        await self._intake.settled_soon()

    @contextlib.contextmanager
    def closed(self, namespace: str) -> Iterator[None]:
        """Refuse new owners for the namespace meanwhile. Raises `ConflictError` if it is closed already."""
        if namespace in self._closed:
            raise ConflictError(f"namespace {namespace} is being deleted already")
        self._closed.add(namespace)
        try:
            yield
        finally:
            self._closed.discard(namespace)

    def must_be_open(self, namespace: str) -> None:
        """Raise `NotLeaderError` without a term, `NamespaceBeingDeletedError` while the namespace is closed."""
        self._election.get_term()
        if namespace in self._closed:
            raise NamespaceBeingDeletedError(f"namespace {namespace} is being deleted")

    async def delete_namespace(self, namespace: str, along: Sequence[Op]) -> None:
        """Delete the record of a closed namespace together with the operations `along`; wait until the mirror knows.

        Raises `IllegalTransitionError` unless all its bundles are free, `TransactionFailedError` when the record has
        changed (it is read again before the error), `NotLeaderError` or another `StoreError`.
        """
        assert namespace in self._closed, "an open namespace could get an owner meanwhile"
        async with self._one_at_a_time:
            highest, as_read = await self._highest_deleted()
            entry = self._mirror.get_namespace(namespace)
            _must_all_be_free(entry.state)
            data = DeletedRecord(highest_version=max(highest, entry.state.highest_version)).to_json()
            note: Op = Create(paths.DELETED, data) if as_read is None else Put(paths.DELETED, data, as_read)
            ops = [Delete(paths.namespace(namespace), entry.version), note, *along]
            try:
                await self._commit_alone(ops)
            finally:
                for op in ops:
                    self._intake.mark_dirty(op.path)
                await self._intake.settled_soon()
            for path in (paths.namespace(namespace), paths.bundle_data(namespace)):
                with contextlib.suppress(StoreError, NotLeaderError):  # the tenant has other namespaces
                    await self._commit_alone([Delete(path.rpartition("/")[0])])

    async def _highest_deleted(self) -> tuple[int, int | None]:
        """Return the highest version of all deleted namespaces, and the version of the znode that stores it."""
        await self._store.sync()
        znode = await self._store.get(paths.DELETED)
        if znode is None:
            return 0, None
        return parse_model(
            DeletedRecord, decode(znode.data, paths.DELETED), paths.DELETED
        ).highest_version, znode.version

    async def _commit_alone(self, ops: Sequence[Op]) -> None:
        term = self._election.get_term()
        try:
            await self._store.commit([Check(paths.EPOCH, term.epoch), *ops], session_id=term.session_id)
        except TransactionFailedError as error:
            if error.index == 0:
                raise self._step_down() from None
            raise

    async def run(self) -> None:
        """Write pending changes for as long as the node lives."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                await self._write_batch()

    def fail_pending(self, error: Exception) -> None:
        """Fail every pending change with `error`: the term is over."""
        pending, self._pending = self._pending, defaultdict(list)
        for changes in pending.values():
            for change in changes:
                _fail(change, error)

    async def _write_batch(self) -> None:
        term = self._election.term
        if term is None:
            self.fail_pending(StaleEpochError("this node no longer leads"))
            return
        writes = self._take_batch(term.epoch)
        if self._election.term != term:  # an invariant violation ended it
            _fail_all(writes, StaleEpochError("this node no longer leads"))
            return
        if not writes:
            return
        ops: list[Op] = [Check(paths.EPOCH, term.epoch)]
        ops += [Put(paths.namespace(str(w.state.name)), w.data, w.entry.version) for w in writes]
        try:
            versions = await self._store.commit(ops, session_id=term.session_id)
        except TransactionFailedError as error:
            await self._on_refused(writes, error)
        except OutcomeUnknownError as error:
            await self._on_unknown_outcome(writes, error)
        except StoreError as error:
            _fail_all(writes, error)
        else:
            self._on_committed(writes, versions[1:])

    def _take_batch(self, epoch: int) -> list[_Write]:
        writes: list[_Write] = []
        size = 0
        for namespace in list(self._pending)[:MAX_TRANSACTION_RECORDS]:
            write = self._prepare(namespace, self._pending[namespace], epoch)
            if write is not None:
                size += len(write.data)
                if writes and size > MAX_TRANSACTION_BYTES:
                    break
                writes.append(write)
            del self._pending[namespace]
        return writes

    def _prepare(self, namespace: str, changes: list[_Change], epoch: int) -> _Write | None:
        """Apply the changes to a draft; None when nothing is left to write. Illegal changes fail here."""
        entry = self._mirror.namespaces.get(namespace)
        if entry is None or entry.unreadable is not None:
            fault = entry.unreadable if entry else f"namespace {namespace} is gone"
            for change in changes:
                _fail(change, InvalidRecordError(fault or ""))
            return None
        now_ms = clock.now_ms()
        draft = _Draft(entry.state, self._mirror.is_registered, is_closed=namespace in self._closed)
        applied: list[tuple[_Change, _Made]] = []
        for change in changes:
            if change.done.done():  # it failed before, or nobody waits any more
                continue
            try:
                applied.append((change, change.make(draft, Stamp(epoch, now_ms, change.reason))))
            except (IllegalTransitionError, BundleNotFoundError, BoundariesError) as error:
                _fail(change, error)
            except InvariantViolatedError as error:
                self._on_violation(namespace, error)
                _fail(change, error)
        if not applied:
            return None
        state = draft.state
        self._recent += ((namespace, step) for step in draft.steps)
        return _Write(entry, state, pack(encode_namespace(state)), applied)

    def _on_violation(self, namespace: str, error: InvariantViolatedError) -> None:
        """Log the invariant violation with its transitions, and step down: this leader's state is wrong."""
        self.invariants_violated += 1
        story = [
            f"{own}: {before} -> {after} ({after.reason})"
            for name, (own, before, after) in self._recent
            if name == namespace
        ]
        log.critical("invariant_violated", namespace=namespace, error=str(error), story=story)
        self._election.violated()

    def _on_committed(self, writes: list[_Write], versions: list[int]) -> None:
        for write, version in zip(writes, versions, strict=True):
            self._mirror.commit_namespace(NamespaceEntry(write.state, version, write.entry.czxid, hash(write.data)))
            for change, made in write.changes:
                if self._has_orphan(made):
                    self._mirror.unsettled += 1  # the reconciler may have looked before this write
                if not change.done.done():
                    change.done.set_result(made)

    def _has_orphan(self, made: _Made) -> bool:
        """True if an owner has left since the change was requested."""
        outcomes = made.values() if isinstance(made, dict) else [made]
        owned = [each for each in outcomes if isinstance(each, Ownership) and each.state is OwnershipState.OWNED]
        return not all(self._mirror.is_registered(each.owner) for each in owned)

    async def _on_refused(self, writes: list[_Write], error: TransactionFailedError) -> None:
        if error.index == 0:
            _fail_all(writes, self._step_down())
            return
        log.info("namespace_record_changed_externally", path=error.path, cause=error.cause)
        await self._read_again_and_retry(writes, error)

    async def _on_unknown_outcome(self, writes: list[_Write], error: OutcomeUnknownError) -> None:
        """Fail the changes, and read their records again: the write may have been committed."""
        log.warning("outcome_of_write_unknown", error=str(error))
        for write in writes:
            self._intake.mark_dirty(paths.namespace(str(write.state.name)))
        _fail_all(writes, error)
        await self.settled()

    async def _read_again_and_retry(self, writes: list[_Write], error: TransactionFailedError) -> None:
        for write in writes:
            self._intake.mark_dirty(paths.namespace(str(write.state.name)))
        try:
            await self._intake.settled_soon()
        except OutcomeUnknownError:
            _fail_all(writes, error)
            return
        for write in writes:
            for change, _ in write.changes:
                change.attempts += 1
                if change.attempts >= _ATTEMPTS:
                    _fail(change, error)
                else:
                    self._pending[str(write.state.name)].append(change)

    def _step_down(self) -> StaleEpochError:
        self.writes_fenced += 1
        self._election.deposed()
        return StaleEpochError("another leader has taken over; this write had no effect")


def _fail(change: _Change, error: Exception) -> None:
    if not change.done.done():
        change.done.set_exception(error)


def _fail_all(writes: list[_Write], error: Exception) -> None:
    for write in writes:
        for change, _ in write.changes:
            _fail(change, error)
