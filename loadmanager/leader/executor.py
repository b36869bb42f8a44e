"""Carries out unloads: commit the release, have the owner let go, commit the outcome.

    release committed ──▶ owner asked ──▶ 204, or the owner's registration has ended ──▶ destination committed
                             │  no answer, 5xx: asked again with growing pauses
                             └─ deadline, or cancelled ──▶ abandoned: the owner keeps the bundle, at a higher version

The record is the truth at every step, so that whoever leads next finishes what it finds in state Releasing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import structlog

from loadmanager.calling import HttpClient, PeerUnavailableError
from loadmanager.core.names import BundleName
from loadmanager.core.ownership import (
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    abandon,
    complete,
    release,
    retarget,
)
from loadmanager.core.plan import Reason, Unload, Verdict
from loadmanager.errors import (
    BundleNotFoundError,
    InvalidRecordError,
    LoadManagerError,
    NamespaceNotFoundError,
    NotLeaderError,
    NoUnloadError,
    UnloadCancelledError,
    UnloadFailedError,
)
from loadmanager.leader.election import Election
from loadmanager.leader.journal import Journal
from loadmanager.leader.ledger import Ledger
from loadmanager.leader.slots import Slots
from loadmanager.leader.view import ClusterView
from loadmanager.wire.http import (
    BUNDLE_VERSION_HEADER,
    EPOCH_HEADER,
    HASH_FUNCTION_HEADER,
    INCARNATION_HEADER,
    OWNER_HEADER,
)

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_LONGEST_REFUSAL_BYTES = 64 * 1024
_LOOK_AHEAD = 256
"""Steps of a plan that wait for their turn at a time: more than run at once, so that a busy broker stops no other."""


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """Limits on unloads: the deadline of one, the time-out of one call, how many at a time, and how many per broker."""

    deadline_s: float
    attempt_timeout_s: float
    concurrency: int
    concurrency_per_broker: int


class StaleStepError(IllegalTransitionError):
    """The bundle is no longer as whoever planned the step took it to be."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a step was planned on: who owns the bundle, and at which version unless that does not matter."""

    owner: Registration
    version: int | None = None

    def check(self, current: Ownership) -> None:
        """Raise `StaleStepError` unless it still is so."""
        if current.state is not OwnershipState.OWNED or current.owner != self.owner:
            raise StaleStepError(f"it is {current}, and not owned by {self.owner}")
        if self.version not in (None, current.version):
            raise StaleStepError(f"it is at version {current.version}, and not at {self.version}")


@dataclass(frozen=True, slots=True, eq=False)
class _Following:
    """A release that is seen through, and the wish to cancel it."""

    task: asyncio.Task[Ownership]
    cancelled: asyncio.Event


@dataclass(slots=True, eq=False)
class Batch:
    """Steps of one plan, which may be called off: those that have not begun are then left out."""

    is_called_off: bool = False


class Followed(Protocol):
    """Who is told of each unload: of the bundle and its ownership while it was released. `ended` comes last, and always
    unless the process ends; the others say what became of it, if anything did.
    """

    def began(self, name: BundleName, released: Ownership) -> None: ...

    def kept(self, name: BundleName, released: Ownership, reason: Reason, error: str) -> None: ...

    def moved(self, name: BundleName, released: Ownership, done: Ownership) -> None: ...

    def ended(self, name: BundleName, released: Ownership) -> None: ...


class Executor:
    """Runs unloads of the current leader. `settings` are asked anew for each unload and each call.

    `followed_by` is told when an unload has begun, and how it ended.
    """

    def __init__(
        self,
        view: ClusterView,
        ledger: Ledger,
        election: Election,
        journal: Journal,
        settings: Callable[[], ExecutorSettings],
        followed_by: Followed,
    ) -> None:
        self._view = view
        self._ledger = ledger
        self._election = election
        self._journal = journal
        self._settings = settings
        self._followed_by = followed_by
        self._slots = Slots(lambda: (settings().concurrency, settings().concurrency_per_broker))
        self._http: HttpClient | None = None
        self._finishing: dict[tuple[str, int], _Following] = {}
        """The releases that are followed: a bundle may be released anew while somebody waits for a former release."""
        self.unloads_completed = 0
        self.unloads_failed = 0
        self.unloads_cancelled = 0
        self.stale_steps = 0

    async def start(self) -> None:
        self._http = HttpClient()

    async def close(self) -> None:
        await self.abort()
        if self._http is not None:
            await self._http.close()

    async def abort(self) -> None:
        """Stop following the unloads under way: their records say what the next leader has to finish."""
        tasks = [following.task for following in self._finishing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def execute_all(self, steps: Iterable[tuple[Unload, Sequence[Verdict]]], batch: Batch | None = None) -> None:
        """Carry out the steps of a plan in their order, as far as the limits allow, until the batch is called off."""
        remaining, batch = iter(steps), batch or Batch()

        async def work() -> None:
            for step, because in remaining:
                if batch.is_called_off:
                    return
                await self.execute(step, because, batch)
                await asyncio.sleep(0)  # refusing a step waits for nothing

        await asyncio.gather(*(work() for _ in range(_LOOK_AHEAD)))

    def call_off(self, batch: Batch) -> None:
        """Begin no further step of the batch; what has begun is seen through."""
        batch.is_called_off = True
        self._slots.cancel_batch(batch)

    async def execute(self, step: Unload, because: Sequence[Verdict] = (), batch: Batch | None = None) -> None:
        """Carry out one step of a plan; a step that no longer fits what is true is refused and counted."""
        name, expected = BundleName.parse(step.bundle), Expected(step.source)
        try:
            entry, index = self._view.bundle(name)
            expected.check(entry.state.ownerships[index])
            await self.unload(name, step.destination, step.reason, because, expected.check, batch)
        except StaleStepError as error:
            self.stale_steps += 1
            log.info("stale_step_refused", bundle=step.bundle, error=str(error))
        except UnloadCancelledError as error:
            log.info("unload_not_done", bundle=step.bundle, error=str(error))
        except UnloadFailedError as error:
            log.warning("unload_failed", bundle=step.bundle, error=str(error))
        except (LoadManagerError, IllegalTransitionError) as error:
            log.info("unload_not_done", bundle=step.bundle, error=str(error))

    async def unload(
        self,
        name: BundleName,
        destination: Registration | None,
        reason: Reason,
        because: Sequence[Verdict] = (),
        check: Callable[[Ownership], None] | None = None,
        batch: Batch | None = None,
    ) -> Ownership:
        """Take an owned bundle from its owner when its turn has come; the ownership afterwards.

        `check` is given the bundle's ownership as its release is about to be written, and may raise `StaleStepError`.
        Besides this raises `UnloadFailedError` when the owner did not let go in time and keeps it, or
        `UnloadCancelledError`; `IllegalTransitionError` when the bundle is not owned or the destination has left;
        `BundleNotFoundError`, `NotLeaderError`, or a `StoreError`.
        """

        def begin(current: Ownership, stamp: Stamp) -> Ownership:
            if destination is not None and not self._view.is_registered(destination):
                raise IllegalTransitionError(f"{destination} left while {name} waited to be moved to it")
            if destination is not None and destination == current.owner:
                raise IllegalTransitionError(f"{name} belongs to {destination} already")
            if check is not None:
                check(current)
            return release(current, destination, stamp)

        entry, index = self._view.bundle(name)
        owner = entry.state.ownerships[index].owner
        brokers = owner.broker if owner else None, destination.broker if destination else None
        async with self._slots.turn(str(name), *brokers, batch=batch):
            released = await self._ledger.apply(str(name.namespace), name.range, begin, reason.value)
            self._followed_by.began(name, released)
            self._journal.moved(
                "unload",
                str(name),
                reason,
                epoch=released.epoch,
                source=released.owner,
                destination=destination,
                because=because,
            )
            return await self._outcome(self._follow(name, released).task)

    def withdraw(self, bundle: str) -> bool:
        """Cancel the unload of a bundle if it still waits for its turn, and say whether it did."""
        return self._slots.cancel(bundle)

    async def cancel(self, name: BundleName) -> None:
        """Give up the unload of a bundle: its owner keeps it, at a higher version if the unload had begun.

        Raises `NoUnloadError` when there is none, or when the owner has let go already; `BundleNotFoundError`,
        `NotLeaderError`, or a `StoreError`.
        """
        entry, index = self._view.bundle(name)
        current = entry.state.ownerships[index]
        if current.state is not OwnershipState.RELEASING:
            if not self.withdraw(str(name)):
                raise NoUnloadError(f"no unload of {name} is under way: it is {current.state}")
            return
        following = self._follow(name, current)
        following.cancelled.set()
        try:
            done = await self._outcome(following.task)
        except UnloadFailedError:
            return
        raise NoUnloadError(f"too late: {name} is released already, and now {done}")

    async def _outcome(self, task: asyncio.Task[Ownership]) -> Ownership:
        """The result of a task that others may await too; if it ends with the term, this caller is not cancelled."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise NotLeaderError("the term ended before the unload did; the next leader finishes it") from None
            raise

    def resume(self, name: BundleName) -> None:
        """Finish the release of a bundle as the record is now; nothing if there is none, or if it is followed."""
        with contextlib.suppress(BundleNotFoundError, NamespaceNotFoundError, InvalidRecordError):
            entry, index = self._view.bundle(name)
            current = entry.state.ownerships[index]
            if current.state is OwnershipState.RELEASING and (str(name), current.version) not in self._finishing:
                self._follow(name, current).task.add_done_callback(self._resumed_ended)

    async def outcome_of(self, name: BundleName, released: Ownership) -> Ownership:
        """The end of a release under way; raises as `unload` does."""
        return await self._outcome(self._follow(name, released).task)

    def _follow(self, name: BundleName, released: Ownership) -> _Following:
        key = str(name), released.version
        following = self._finishing.get(key)
        if following is None or following.task.done():
            cancelled = asyncio.Event()
            task = asyncio.create_task(self._see_through(name, released, cancelled), name=f"unload {name}")
            following = self._finishing[key] = _Following(task, cancelled)
            task.add_done_callback(lambda ended: self._ended(key, ended))
            task.add_done_callback(lambda _: self._followed_by.ended(name, released))
        return following

    def _ended(self, key: tuple[str, int], task: asyncio.Task[Ownership]) -> None:
        following = self._finishing.get(key)
        if following is not None and following.task is task:
            del self._finishing[key]
        if not task.cancelled():
            task.exception()  # whoever waited may be gone: that is no reason for a warning

    def _resumed_ended(self, task: asyncio.Task[Ownership]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("resumed_unload_ended", task=task.get_name(), error=str(error))

    async def _see_through(self, name: BundleName, released: Ownership, cancelled: asyncio.Event) -> Ownership:
        deadline_s = time.monotonic() + self._settings().deadline_s
        pause_s = _FIRST_PAUSE_S
        while self._view.is_registered(released.owner):
            refusal = await self._ask_unless(cancelled, name, released, deadline_s - time.monotonic())
            if refusal is None or not self._view.is_registered(released.owner):
                break
            if cancelled.is_set():
                return await self._cancelled(name, released)
            if time.monotonic() + pause_s > deadline_s:
                return await self._give_up(name, released, refusal)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await cancelled.wait()
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        return await self._complete(name, released)

    async def _ask_unless(
        self, cancelled: asyncio.Event, name: BundleName, released: Ownership, patience_s: float
    ) -> str | None:
        """`_ask`, but not once it is cancelled; an answer that is there already counts."""
        if cancelled.is_set():
            return "cancelled"
        asking = asyncio.ensure_future(self._ask(name, released, patience_s))
        waiting = asyncio.ensure_future(cancelled.wait())
        try:
            await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else "cancelled"
        finally:
            asking.cancel()
            waiting.cancel()

    async def _ask(self, name: BundleName, released: Ownership, patience_s: float) -> str | None:
        """One unload call: None when the owner has let go, else what went wrong."""
        owner = released.owner
        entry = self._view.brokers.get(owner.broker) if owner else None
        if owner is None or entry is None or entry.command_url is None:
            return "the broker's record names no URL to call"
        if self._http is None:
            raise NotLeaderError("the executor is not running")
        url = f"{entry.command_url}/admin/v2/namespaces/{name.namespace}/{name.range}/unload"
        headers = {
            EPOCH_HEADER: str(self._election.get_term().epoch),
            BUNDLE_VERSION_HEADER: str(released.version),
            OWNER_HEADER: owner.broker,
            INCARNATION_HEADER: str(owner.incarnation),
            HASH_FUNCTION_HEADER: self._view.get_namespace(str(name.namespace)).state.bundles.hash_function.value,
        }
        # Never 0 or less, which would mean "without limit" to aiohttp.
        timeout_s = min(self._settings().attempt_timeout_s, max(patience_s, _FIRST_PAUSE_S))
        try:
            answer = await self._http.call("PUT", url, timeout_s, most_bytes=_LONGEST_REFUSAL_BYTES, headers=headers)
        except (PeerUnavailableError, InvalidRecordError) as error:
            return str(error)
        return None if answer.status == HTTPStatus.NO_CONTENT else answer.shown()

    async def _complete(self, name: BundleName, released: Ownership) -> Ownership:
        destination = released.destination if self._view.is_registered(released.destination) else None

        def end(current: Ownership, stamp: Stamp) -> Ownership:
            _must_be(current, released)
            return complete(retarget(current, destination), stamp)

        done = await self._ledger.apply(str(name.namespace), name.range, end, released.reason)
        source = released.owner.broker if released.owner else None
        self._view.model.mark_unloaded(str(name), time.time(), source)
        self.unloads_completed += 1
        self._followed_by.moved(name, released, done)
        self._journal.moved(
            "unloaded",
            str(name),
            Reason.UNLOAD_COMPLETED,
            epoch=done.epoch,
            source=released.owner,
            destination=done.owner,
        )
        log.info("unloaded", bundle=str(name), source=str(released.owner), destination=str(done.owner))
        return done

    async def _give_up(self, name: BundleName, released: Ownership, refusal: str) -> Ownership:
        kept = await self._abandon(name, released, Reason.UNLOAD_FAILED, refusal)
        self.unloads_failed += 1
        raise UnloadFailedError(f"{name} stays with {kept.owner.broker if kept.owner else None}: {refusal}")

    async def _cancelled(self, name: BundleName, released: Ownership) -> Ownership:
        kept = await self._abandon(name, released, Reason.UNLOAD_CANCELLED, "cancelled by an operator")
        self.unloads_cancelled += 1
        log.info("unload_cancelled", bundle=str(name), owner=str(kept.owner), version=kept.version)
        raise UnloadCancelledError(f"{name} stays with {kept.owner.broker if kept.owner else None}: it was cancelled")

    async def _abandon(self, name: BundleName, released: Ownership, reason: Reason, error: str) -> Ownership:
        """Commit that the owner keeps the bundle, at a higher version than it was asked to release."""

        def keep(current: Ownership, stamp: Stamp) -> Ownership:
            _must_be(current, released)
            return abandon(current, stamp)

        kept = await self._ledger.apply(str(name.namespace), name.range, keep, reason.value)
        self._followed_by.kept(name, released, reason, error)
        why = Verdict(str(name), reason, acted=True, why={"error": error})
        self._journal.moved(reason.value, str(name), reason, epoch=kept.epoch, source=kept.owner, because=[why])
        return kept


def _must_be(current: Ownership, expected: Ownership) -> None:
    if current.version != expected.version:
        raise IllegalTransitionError(f"the release at version {expected.version} is over: the bundle is {current}")
