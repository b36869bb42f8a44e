"""Driver of `loadmanager.core.protocol.move_machine`: executes unloads with the ledger and the owners' agents.

It has a task for each write and each call in flight, a timer for the machine's next TIME step, and a future for each
caller that waits for the end of a move.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from opentelemetry.trace import INVALID_SPAN, Span

from loadmanager.core.diagnosis.reason_catalogue import reason_of
from loadmanager.core.domain.names import BundleName, BundleRange
from loadmanager.core.domain.ownership import IllegalTransitionError, Ownership, OwnershipState, Registration
from loadmanager.core.domain.plan import Figure, Unload, Verdict
from loadmanager.core.domain.reasons import OwnershipReason, Reason
from loadmanager.core.protocol.move_machine import (
    Action,
    AskOwner,
    Cancel,
    Cancelled,
    CancelWaiting,
    Commit,
    Committed,
    Ended,
    Event,
    Expected,
    Failed,
    Kept,
    Move,
    Moved,
    MoveMachine,
    NotCommitted,
    Outcome,
    OwnerAnswered,
    Phase,
    Prepare,
    Prepared,
    Resume,
    StaleStepError,
    StopAsking,
    Unanswered,
    Want,
)
from loadmanager.core.protocol.state_machine import OwnerChange, Signal, do_all
from loadmanager.errors import (
    DestinationMissedError,
    LoadManagerError,
    NotLeaderError,
    NoUnloadError,
    OutcomeUnknownError,
    UnloadCancelledError,
    UnloadFailedError,
)
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.election.machine_driver import Waiters
from loadmanager.leader.execution.agent_calls import AgentCalls, OwnerClient
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.churn_memory import Churn
from loadmanager.net.tracing import OFF, Tracing, end_span, enter_span

log = structlog.get_logger(__name__)

_LOOK_AHEAD = 256
"""Number of a plan's steps that wait at the same time: more than can run, so that a busy broker delays no other."""

PREPARE_S = 2.0
"""Timeout of `prepare`, while the owner still serves; a destination that needs longer may answer early and continue."""


@dataclass(slots=True, eq=False)
class Batch:
    """Steps of one round, which can be cancelled together: steps that have not begun are skipped."""

    moves: set[Move] = field(default_factory=set)
    is_cancelled: bool = False


class OwnershipWriter(Protocol):
    async def apply(self, namespace: str, bundle_range: BundleRange, transition: OwnerChange, reason: str) -> Ownership:
        """Commit one transition of one bundle; return the stored ownership.

        Raises `IllegalTransitionError`, or a `LoadManagerError`; `OutcomeUnknownError` if it may have happened.
        """

    async def settled(self) -> None:
        """Wait until the records that a write of unknown outcome may have changed are read again."""


class Executor:
    """Executes unloads of the current leader.

    `churn` records the start and the end of each unload. Without `destinations` there is no warm-up.
    """

    def __init__(
        self,
        mirror: ClusterMirror,
        writes: OwnershipWriter,
        owners: OwnerClient,
        decision_log: DecisionLog,
        live: LiveSettings,
        churn: Churn,
        tracing: Tracing = OFF,
        destinations: AgentCalls | None = None,
    ) -> None:
        self._mirror = mirror
        self._writes = writes
        self._owners = owners
        self._destinations = destinations
        self._decision_log = decision_log
        self._churn = churn
        self._tracing = tracing
        self._spans: dict[Move, Span] = {}
        self._moves = MoveMachine(
            lambda: (live.current.max_concurrent_unloads, live.current.max_concurrent_unloads_per_broker),
            lambda: live.current.namespace_bundle_unloading_timeout_ms / 1000,
            mirror.is_registered,
            lambda each: PREPARE_S if destinations is not None and destinations.can_prepare(each) else 0.0,
        )
        self._ends = Waiters[Move, Ownership]()
        self._because: dict[Move, Sequence[Verdict]] = {}
        self._contexts: dict[Move, contextvars.Context] = {}
        self._tasks: dict[Move, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.unloads_completed = 0
        self.unloads_failed = 0
        self.stale_steps = 0

    async def abort(self) -> None:
        """Abandon the unloads in flight; the next leader finishes them from their records."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for move in self._moves.forget():
            over = NotLeaderError("the term ended before the unload did; the next leader finishes it")
            self._settle(move, over)
        self._set_timer()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Commands

    async def execute_all(self, steps: Iterable[tuple[Unload, Sequence[Verdict]]], batch: Batch | None = None) -> None:
        """Execute the steps of a plan in order, within the concurrency limits, until the batch is cancelled."""
        remaining, batch = iter(steps), batch or Batch()

        async def work() -> None:
            for step, because in remaining:
                if batch.is_cancelled:
                    return
                await self.execute(step, because, batch)
                await asyncio.sleep(0)  # a refused step yields nowhere else

        await asyncio.gather(*(work() for _ in range(_LOOK_AHEAD)))

    def cancel_batch(self, batch: Batch) -> None:
        """Begin no further step of the batch; moves in flight are finished."""
        batch.is_cancelled = True
        self._step(CancelWaiting(batch.moves.__contains__, "cancelled before it began"))

    async def execute(self, step: Unload, because: Sequence[Verdict] = (), batch: Batch | None = None) -> None:
        """Execute one step of a plan; a step that no longer fits the ownership is refused and counted."""
        name, expected = BundleName.parse_any(step.bundle), Expected(step.source)
        try:
            expected.check(self._mirror.get_ownership(name))
            await self.unload(name, step.destination, step.reason, because, expected.check, batch)
        except StaleStepError as error:
            self.stale_steps += 1
            log.info("stale_step_refused", bundle=step.bundle, error=str(error))
        except (LoadManagerError, IllegalTransitionError) as error:
            if type(error) is UnloadFailedError:
                log.warning("unload_failed", bundle=step.bundle, error=str(error))
            else:
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
        """Unload an owned bundle when the concurrency limits allow; return the ownership afterwards.

        `check` gets the bundle's ownership just before its release is written, and may raise `StaleStepError`. Also
        raises `UnloadFailedError` when the owner did not unload it in time and keeps it, `UnloadCancelledError`, or
        `DestinationMissedError`; `IllegalTransitionError` when the bundle is not owned or the destination has left;
        `BundleNotFoundError`, `NotLeaderError`, or a `StoreError`. Cancelling the caller cancels an unload that has
        not begun.
        """
        move = Move(str(name), self._mirror.get_ownership(name).owner, destination, reason.value, check)
        if batch is not None:
            batch.moves.add(move)
        self._because[move] = because
        self._begin_span(move)
        self._step(Want(move))
        try:
            return await self._end_of(move)
        except asyncio.CancelledError:
            self._step(CancelWaiting(lambda each: each is move, "nobody waits for it any more"))
            raise

    def withdraw(self, bundle: str) -> bool:
        """Cancel the unload of a bundle if it still waits; return True if it did."""
        is_waiting = self._moves.is_waiting(bundle)
        self._step(CancelWaiting(lambda move: move.bundle == bundle, "cancelled before it began"))
        return is_waiting

    async def cancel(self, name: BundleName) -> None:
        """Cancel the unload of a bundle: its owner keeps it, at a higher version if the unload had begun.

        Raises `NoUnloadError` when there is none, or when the owner has unloaded the bundle already;
        `BundleNotFoundError`, `NotLeaderError`, or a `StoreError`.
        """
        current = self._mirror.get_ownership(name)
        if current.state is not OwnershipState.RELEASING:
            if not self.withdraw(str(name)):
                raise NoUnloadError(f"no unload of {name} is under way: it is {current.state}")
            return
        move = self._follow(name, current)
        ended = self._end_of(move)
        self._step(Cancel(move))
        try:
            done = await ended
        except UnloadFailedError:
            return
        raise NoUnloadError(f"too late: {name} is released already, and now {done}")

    def resume(self, name: BundleName) -> None:
        """Finish the unload that the record of a bundle shows, unless there is none or it is in flight here."""
        current = self._mirror.find_ownership(str(name))
        if current is not None and current.state is OwnershipState.RELEASING:
            self._follow(name, current)

    async def outcome_of(self, name: BundleName, released: Ownership) -> Ownership:
        """Wait for the end of an unload in flight; raises as `unload` does."""
        return await self._end_of(self._follow(name, released))

    def membership_changed(self) -> None:
        """Step the machine after a broker has joined or left: moves stop waiting for an owner that has left."""
        self._step(Signal.MEMBERSHIP)

    # The driver

    def _step(self, event: Event) -> None:
        try:
            do_all(self._moves.step(event, time.monotonic()), self._do)
        finally:
            self._set_timer()

    def _do(self, action: Action) -> None:
        match action:
            case Prepare(move, timeout_s):
                self._begin(move, self._prepare(move, timeout_s))
            case Commit(move):
                self._begin(move, self._commit(action))
            case AskOwner(move, timeout_s):
                self._begin(move, self._ask(move, timeout_s))
            case StopAsking(move):
                self._tasks.pop(move).cancel()
            case Ended(move, outcome):
                self._on_ended(move, outcome)

    def _begin(self, move: Move, work: Coroutine[Any, Any, None]) -> None:
        name, context = f"unload {move.bundle}", self._contexts.get(move)
        task = self._tasks[move] = asyncio.create_task(work, name=name, context=context)
        task.add_done_callback(lambda done: self._work_ended(move, done))

    def _begin_span(self, move: Move) -> None:
        """Use the caller's log context and one trace span for all work of the move."""
        span = self._spans[move] = self._tracing.begin("move", {"bundle": move.bundle, "reason": move.reason})
        context = self._contexts[move] = contextvars.copy_context()
        context.run(enter_span, span)

    def _work_ended(self, move: Move, task: asyncio.Task[None]) -> None:
        if self._tasks.get(move) is task:
            del self._tasks[move]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("unload_task_failed", bundle=move.bundle, exc_info=error)
            if move.phase is not Phase.ENDED and isinstance(error, Exception):
                self._step(NotCommitted(move, error))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_s = self._moves.wake_s
        if wake_s is not None:
            pause_s = max(0.0, wake_s - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._step, Signal.TIME)

    async def _prepare(self, move: Move, timeout_s: float) -> None:
        if self._destinations is not None and move.destination is not None:
            name = BundleName.parse_any(move.bundle)
            await self._destinations.prepare(name, move.owner, move.destination, timeout_s)
        self._step(Prepared(move))

    async def _commit(self, action: Commit) -> None:
        move = action.move
        name = BundleName.parse_any(move.bundle)
        event: Event
        try:
            stored = await self._writes.apply(str(name.namespace), name.range, action.transition, action.reason)
        except OutcomeUnknownError as error:
            event = Unanswered(move, await self._read_again(name), error)
        except (LoadManagerError, IllegalTransitionError) as error:
            event = NotCommitted(move, error)
        else:
            event = Committed(move, stored)
        had_begun = move.released is not None
        self._step(event)
        if not had_begun and move.released is not None:
            self._began(name, move, move.released)

    async def _read_again(self, name: BundleName) -> Ownership | None:
        """Return a bundle's ownership after it was read again; None if the bundle is gone."""
        await self._writes.settled()
        return self._mirror.find_ownership(str(name))

    async def _ask(self, move: Move, timeout_s: float) -> None:
        try:
            refusal = await self._owners.ask(BundleName.parse_any(move.bundle), move.get_released(), timeout_s)
        except NotLeaderError as error:
            self._step(NotCommitted(move, error))
            return
        if refusal is None:
            self._step(OwnerAnswered(move, None))
        else:
            self._step(OwnerAnswered(move, refusal.why, refusal.is_final))

    # Outcomes of moves

    def _follow(self, name: BundleName, released: Ownership) -> Move:
        """Return the move that finishes this unload: the one in flight, or a new one."""
        move = self._moves.find(str(name), released.version)
        if move is None:
            move = Move(str(name), released.owner, released.destination, released.reason, released=released)
            self._begin_span(move)
            self._step(Resume(move))
        return move

    def _end_of(self, move: Move) -> asyncio.Future[Ownership]:
        """Return a future of the ownership at the end of a move; it fails as `unload` does."""
        return self._ends.future(move)

    def _began(self, name: BundleName, move: Move, released: Ownership) -> None:
        effect = self._churn.began(name, released)
        self._decision_log.moved(
            "unload",
            move.bundle,
            reason_of(move.reason),
            epoch=released.epoch,
            source=released.owner,
            destination=move.destination,
            because=self._because.get(move, ()),
            effect=effect,
        )

    def _on_ended(self, move: Move, outcome: Outcome) -> None:
        name = BundleName.parse_any(move.bundle)
        match outcome:
            case Moved(done):
                self._settle(move, self._on_moved(name, move.get_released(), done))
            case Kept():
                self._settle(move, self._on_kept(name, move.get_released(), outcome))
            case Cancelled(why):
                self._settle(move, UnloadCancelledError(f"{name}: {why}"))
            case Failed(error):
                if move not in self._ends:
                    log.warning("resumed_unload_ended", bundle=move.bundle, error=str(error))
                self._settle(move, error)

    def _settle(self, move: Move, outcome: Ownership | Exception) -> None:
        self._because.pop(move, None)
        self._contexts.pop(move, None)
        end_span(self._spans.pop(move, INVALID_SPAN), outcome if isinstance(outcome, Exception) else None)
        if move.released is not None:
            self._churn.ended(BundleName.parse_any(move.bundle), move.released)
        self._ends.resolve(move, outcome)

    def _on_moved(self, name: BundleName, released: Ownership, done: Ownership) -> Ownership | Exception:
        wanted, owner, missed = released.destination, done.owner, None
        if wanted is not None and owner is not None and owner.broker != wanted.broker:
            why: dict[str, Figure] = {"owner": owner.broker, "destination": wanted.broker}
            missed = Verdict(str(name), OwnershipReason.DESTINATION_MISSED, acted=True, why=why)
        else:  # after a miss there is no grace period: the next round decides again
            source = released.owner.broker if released.owner else None
            self._mirror.model.mark_unloaded(str(name), time.time(), source)
        self.unloads_completed += 1
        effect = self._churn.moved(name, released, done)
        self._decision_log.moved(
            "unloaded",
            str(name),
            missed.verdict if missed else OwnershipReason.UNLOAD_COMPLETED,
            epoch=done.epoch,
            source=released.owner,
            destination=done.owner,
            because=[missed] if missed else (),
            effect=effect,
        )
        log.info("unloaded", bundle=str(name), source=str(released.owner), destination=str(done.owner))
        return DestinationMissedError(f"{name}: {missed.sentence()}") if missed else done

    def _on_kept(self, name: BundleName, released: Ownership, outcome: Kept) -> Exception:
        kept, reason = outcome.kept, outcome.reason
        self._churn.kept(name, released, reason, outcome.refusal)
        why = Verdict(str(name), reason, acted=True, why={"error": outcome.refusal})
        self._decision_log.moved(reason.value, str(name), reason, epoch=kept.epoch, source=kept.owner, because=[why])
        verb = "stays" if kept.owner == released.owner else "is"
        where = f"{name} {verb} with {kept.owner.broker if kept.owner else 'nobody'}"
        if reason is OwnershipReason.UNLOAD_CANCELLED:
            log.info("unload_cancelled", bundle=str(name), owner=str(kept.owner), version=kept.version)
            return UnloadCancelledError(f"{where}: it was cancelled")
        self.unloads_failed += 1
        return UnloadFailedError(f"{where}: {outcome.refusal}")
