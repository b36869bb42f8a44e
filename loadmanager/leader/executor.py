"""Carries out unloads: commit the release, have the owner let go, commit the outcome.

    release committed ──▶ owner asked ──▶ 204, or the owner's registration has ended ──▶ destination committed
                             │  no answer, 5xx: asked again with growing pauses
                             └─ deadline ──▶ abandoned: the owner keeps the bundle, at a higher version

The record is the truth at every step, so that whoever leads next finishes what it finds in state Releasing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
import structlog

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
from loadmanager.errors import LoadManagerError, NotLeaderError, UnloadFailedError
from loadmanager.leader.election import Election
from loadmanager.leader.journal import Journal
from loadmanager.leader.ledger import Ledger
from loadmanager.leader.view import ClusterView
from loadmanager.wire.http import BUNDLE_VERSION_HEADER, EPOCH_HEADER, INCARNATION_HEADER, OWNER_HEADER

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_SHOWN_BYTES = 200


@dataclass(frozen=True, slots=True)
class ExecutorSettings:
    """Limits on unloads: the deadline of one, the time-out of one call, and how many at a time."""

    deadline_s: float
    attempt_timeout_s: float
    concurrency: int


class Executor:
    """Runs unloads of the current leader. `failures` counts unloads that were abandoned, `refusals` stale steps."""

    def __init__(
        self, view: ClusterView, ledger: Ledger, election: Election, journal: Journal, settings: ExecutorSettings
    ) -> None:
        self._view = view
        self._ledger = ledger
        self._election = election
        self._journal = journal
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._http: aiohttp.ClientSession | None = None
        self._finishing: dict[str, asyncio.Task[Ownership]] = {}
        self.unloads_completed = 0
        self.unloads_failed = 0
        self.stale_steps = 0

    async def start(self) -> None:
        self._http = aiohttp.ClientSession()

    async def close(self) -> None:
        await self.abort()
        if self._http is not None:
            await self._http.close()

    async def abort(self) -> None:
        """Stop following the unloads under way: their records say what the next leader has to finish."""
        tasks = list(self._finishing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def execute_all(self, steps: Iterable[tuple[Unload, Sequence[Verdict]]]) -> None:
        """Carry out the steps of a plan in their order, so many at a time as the limit allows."""
        remaining = iter(steps)

        async def work() -> None:
            for step, because in remaining:
                await self.execute(step, because)
                await asyncio.sleep(0)  # refusing a step waits for nothing

        await asyncio.gather(*(work() for _ in range(self._settings.concurrency)))

    async def execute(self, step: Unload, because: Sequence[Verdict] = ()) -> None:
        """Carry out one step of a plan; a step that no longer fits what is true is refused and counted."""
        name = BundleName.parse(step.bundle)
        try:
            entry, index = self._view.bundle(name)
            current = entry.state.ownerships[index]
            if current.state is not OwnershipState.OWNED or current.owner != step.source:
                self.stale_steps += 1
                log.info("stale_step_refused", bundle=step.bundle, expected=step.source.broker, state=current.state)
                return
            await self.unload(name, step.destination, step.reason, because)
        except UnloadFailedError as error:
            log.warning("unload_failed", bundle=step.bundle, error=str(error))
        except (LoadManagerError, IllegalTransitionError) as error:
            log.info("unload_not_done", bundle=step.bundle, error=str(error))

    async def unload(
        self, name: BundleName, destination: Registration | None, reason: Reason, because: Sequence[Verdict] = ()
    ) -> Ownership:
        """Take an owned bundle from its owner; the ownership afterwards.

        Raises `UnloadFailedError` when the owner did not let go in time and keeps it, `IllegalTransitionError` when
        the bundle is not owned, `NotLeaderError`, or a `StoreError`.
        """
        async with self._slots:

            def begin(current: Ownership, stamp: Stamp) -> Ownership:
                return release(current, destination, stamp)

            released = await self._ledger.apply(str(name.namespace), name.range, begin, reason.value)
            self._journal.moved(
                "unload",
                str(name),
                reason,
                epoch=released.epoch,
                source=released.owner,
                destination=destination,
                because=because,
            )
            return await self._outcome(self._finish(name, released))

    async def _outcome(self, task: asyncio.Task[Ownership]) -> Ownership:
        """The result of a task that others may await too; if it ends with the term, this caller is not cancelled."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise NotLeaderError("the term ended before the unload did; the next leader finishes it") from None
            raise

    def resume(self, name: BundleName, released: Ownership) -> None:
        """Finish a release found in the records, unless it is being followed already."""
        self._finish(name, released).add_done_callback(self._resumed_ended)

    async def outcome_of(self, name: BundleName, released: Ownership) -> Ownership:
        """The end of a release under way; raises as `unload` does."""
        return await self._outcome(self._finish(name, released))

    def is_following(self, name: BundleName) -> bool:
        return str(name) in self._finishing

    def _finish(self, name: BundleName, released: Ownership) -> asyncio.Task[Ownership]:
        key = str(name)
        task = self._finishing.get(key)
        if task is None or task.done():
            task = asyncio.create_task(self._see_through(name, released), name=f"unload {key}")
            self._finishing[key] = task
            task.add_done_callback(lambda ended: self._ended(key, ended))
        return task

    def _ended(self, key: str, task: asyncio.Task[Ownership]) -> None:
        if self._finishing.get(key) is task:
            del self._finishing[key]

    def _resumed_ended(self, task: asyncio.Task[Ownership]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("resumed_unload_ended", task=task.get_name(), error=str(error))

    async def _see_through(self, name: BundleName, released: Ownership) -> Ownership:
        deadline_s = time.monotonic() + self._settings.deadline_s
        pause_s = _FIRST_PAUSE_S
        refusal: str | None = ""
        while self._view.is_registered(released.owner):
            refusal = await self._ask(name, released, deadline_s - time.monotonic())
            if refusal is None:
                break
            if time.monotonic() + pause_s > deadline_s:
                return await self._give_up(name, released, refusal)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        return await self._complete(name, released)

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
        }
        # Never 0 or less, which would mean "without limit" to aiohttp.
        timeout = aiohttp.ClientTimeout(total=min(self._settings.attempt_timeout_s, max(patience_s, _FIRST_PAUSE_S)))
        try:
            async with self._http.put(url, headers=headers, timeout=timeout) as answer:
                if answer.status == HTTPStatus.NO_CONTENT:
                    return None
                said = await answer.content.read(_SHOWN_BYTES)
                return f"{url} answered {answer.status}: {said.decode(errors='replace')}"
        except (aiohttp.ClientError, OSError, ValueError) as error:  # no connection or answer, or no usable URL
            return f"{url}: {type(error).__name__} {error}".rstrip()

    async def _complete(self, name: BundleName, released: Ownership) -> Ownership:
        destination = released.destination if self._view.is_registered(released.destination) else None

        def end(current: Ownership, stamp: Stamp) -> Ownership:
            _must_be(current, released)
            return complete(retarget(current, destination), stamp)

        done = await self._ledger.apply(str(name.namespace), name.range, end, released.reason)
        source = released.owner.broker if released.owner else None
        self._view.model.mark_unloaded(str(name), time.time(), source)
        self.unloads_completed += 1
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
        def keep(current: Ownership, stamp: Stamp) -> Ownership:
            _must_be(current, released)
            return abandon(current, stamp)

        kept = await self._ledger.apply(str(name.namespace), name.range, keep, Reason.UNLOAD_FAILED.value)
        self.unloads_failed += 1
        why = Verdict(str(name), Reason.UNLOAD_FAILED, acted=True, why={"error": refusal})
        self._journal.moved(
            "unload_failed", str(name), Reason.UNLOAD_FAILED, epoch=kept.epoch, source=kept.owner, because=[why]
        )
        raise UnloadFailedError(f"{name} stays with {kept.owner.broker if kept.owner else None}: {refusal}")


def _must_be(current: Ownership, expected: Ownership) -> None:
    if current.version != expected.version:
        raise IllegalTransitionError(f"the release at version {expected.version} is over: the bundle is {current}")
