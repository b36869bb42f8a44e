"""When to decide, and what becomes of a decision: assignments at lookup, and rounds of shedding.

Deciding happens in a worker thread, on a snapshot: a cycle over a hundred thousand bundles never holds up a lookup.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Mapping

import numpy as np
import structlog

from loadmanager.core import planner
from loadmanager.core.names import BundleName
from loadmanager.core.ownership import (
    FREE,
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    assign,
    owner_gone,
)
from loadmanager.core.plan import Assign, Plan, Reason, Unload, Verdict
from loadmanager.core.settings import PlannerSettings
from loadmanager.core.snapshot import Snapshot
from loadmanager.errors import LoadManagerError, NoBrokerAvailableError, NotLeaderError
from loadmanager.leader.election import Election
from loadmanager.leader.executor import Executor
from loadmanager.leader.journal import Journal
from loadmanager.leader.ledger import Ledger
from loadmanager.leader.view import ClusterView

log = structlog.get_logger(__name__)

_SWEEP_INTERVAL_S = 30.0
_SLICE = 200
"""Bundles looked at before others get their turn on the event loop."""


class Desk:
    """What every decision needs: the snapshot of the moment, the settings, what strategies remember, and chance."""

    def __init__(self, view: ClusterView, settings: PlannerSettings, grace_period_s: float, seed: int) -> None:
        self.state: planner.State = {}
        self._view = view
        self._settings = settings
        self._grace_period_s = grace_period_s
        self._rng = np.random.default_rng(seed)
        self._snapshot: Snapshot | None = None
        self._lock = asyncio.Lock()

    async def shed(self) -> Plan:
        """One round of shedding; nothing is carried out."""
        async with self._lock:
            self._snapshot = None  # of this moment: which bundles moved recently depends on the time
            try:
                plan, self.state = await asyncio.to_thread(
                    planner.plan_shedding, self.snapshot(), self._settings, self.state, self._rng
                )
            except Exception:
                self.state = {}  # what was remembered may be the cause; the next round starts without it
                raise
            return plan

    async def place(self, bundles: list[str], non_persistent: Collection[str] = ()) -> Plan:
        """Owners for free bundles, decided as one batch; `non_persistent` are those asked for by such a topic."""
        async with self._lock:
            snapshot = self.snapshot()
            plan, self.state = await asyncio.to_thread(
                planner.plan_assignments, snapshot, bundles, self._settings, self.state, self._rng, non_persistent
            )
            return plan

    def snapshot(self) -> Snapshot:
        """The cluster now; taken anew only when something has changed."""
        model = self._view.model
        if self._snapshot is None or self._snapshot.revision != model.revision:
            self._snapshot = model.snapshot(time.time(), self._grace_period_s)
        return self._snapshot


class Assigner:
    """Gives free bundles an owner: lookups of one bundle share one decision, and a burst shares one batch."""

    def __init__(self, desk: Desk, view: ClusterView, ledger: Ledger, journal: Journal) -> None:
        self._desk = desk
        self._view = view
        self._ledger = ledger
        self._journal = journal
        self._waiting: dict[str, asyncio.Future[Ownership]] = {}
        self._queue: list[str] = []
        self._non_persistent: set[str] = set()
        self._wake = asyncio.Event()
        self.assignments = 0

    def request(self, bundle: str, *, non_persistent: bool = False) -> asyncio.Future[Ownership]:
        """A future of the committed ownership of a bundle that is free now; shared by all who ask meanwhile.

        `non_persistent`: it is wanted for a topic of that kind, which not every broker serves.
        It may fail with `NoBrokerAvailableError`, `NotLeaderError` or a `StoreError`.
        """
        future = self._waiting.get(bundle)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            future.add_done_callback(_retrieve)
            self._waiting[bundle] = future
            self._queue.append(bundle)
            if non_persistent:
                self._non_persistent.add(bundle)
            self._wake.set()
        return future

    async def run(self) -> None:
        """Decide and commit what is requested, for as long as the term lasts."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._queue = self._queue, []
            non_persistent, self._non_persistent = self._non_persistent, set()
            if batch:
                await self._assign(batch, non_persistent)

    def fail_waiting(self, error: Exception) -> None:
        """Give every waiting lookup `error`: the term is over."""
        self._queue.clear()
        self._non_persistent.clear()
        for bundle in list(self._waiting):
            self._resolve(bundle, error)

    async def _assign(self, batch: list[str], non_persistent: set[str]) -> None:
        try:
            plan = await self._desk.place(batch, non_persistent)
        except Exception as error:
            log.exception("placement_failed", bundles=len(batch))
            for bundle in batch:
                self._resolve(bundle, NoBrokerAvailableError(f"the decision failed: {error}"))
            return
        verdicts = {verdict.subject: verdict for verdict in plan.verdicts}
        steps = [step for step in plan.steps if isinstance(step, Assign)]
        await asyncio.gather(*(self._commit(step, _about(verdicts, step.bundle)) for step in steps))
        for bundle in set(batch) - {step.bundle for step in steps}:
            self._resolve(bundle, self._why_not(bundle, verdicts.get(bundle)))

    async def _commit(self, step: Assign, because: list[Verdict]) -> None:
        name = BundleName.parse(step.bundle)

        def give(current: Ownership, stamp: Stamp) -> Ownership:
            if not self._view.is_registered(step.destination):
                raise IllegalTransitionError(f"{step.destination} left while {step.bundle} was being placed on it")
            return assign(self._freed(current), step.destination, stamp)

        try:
            done = await self._ledger.apply(str(name.namespace), name.range, give, Reason.LOOKUP.value)
        except (LoadManagerError, IllegalTransitionError) as error:
            self._resolve(step.bundle, error)
            return
        self.assignments += 1
        self._journal.moved(
            "assign", step.bundle, step.reason, epoch=done.epoch, destination=step.destination, because=because
        )
        self._resolve(step.bundle, done)

    def _freed(self, current: Ownership) -> Ownership:
        """A bundle whose owner is gone is as good as free, and is given away in one step."""
        if current.state is OwnershipState.OWNED and not self._view.is_registered(current.owner):
            return Ownership(state=FREE.state, version=current.version)
        return current

    def _why_not(self, bundle: str, verdict: Verdict | None) -> Ownership | Exception:
        """What those who wait for a bundle that was not placed are told: its owner, if it has one by now."""
        try:
            entry, index = self._view.bundle(BundleName.parse(bundle))
        except LoadManagerError as error:
            return error
        current = entry.state.ownerships[index]
        if self._view.find_owner(current) is not None:
            return current
        if verdict is None:
            return NoBrokerAvailableError(f"bundle {bundle}: it is being moved")
        self._journal.judged("assign", verdict, epoch=self._view.epoch)
        return NoBrokerAvailableError(f"bundle {bundle}: {verdict.sentence()}")

    def _resolve(self, bundle: str, outcome: Ownership | Exception) -> None:
        future = self._waiting.pop(bundle, None)
        if future is None or future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


class SheddingLoop:
    """Plans a round of shedding every interval and has its steps carried out."""

    def __init__(self, desk: Desk, executor: Executor, election: Election, journal: Journal, interval_s: float) -> None:
        self._desk = desk
        self._executor = executor
        self._election = election
        self._journal = journal
        self._interval_s = interval_s
        self.cycles = 0
        self.cycles_failed = 0
        self.brokers_shed = 0
        self.last_cycle_s = 0.0
        self.strategy_metrics: Mapping[str, float] = {}
        """What the strategy counted and measured in the last round, if it does (see `Plan.metrics`)."""

    async def run(self) -> None:
        """Pause, decide, carry out, for as long as the term lasts; the pause starts after the work ends."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.cycle()
            except NotLeaderError:
                raise
            except Exception:
                self.cycles_failed += 1
                log.exception("shedding_cycle_failed", cycle=self.cycles)

    async def cycle(self) -> Plan:
        """One round of shedding, carried out."""
        started_s = time.monotonic()
        term = self._election.get_term()
        plan = await self._desk.shed()
        self.last_cycle_s = time.monotonic() - started_s
        self.cycles += 1
        self.strategy_metrics = plan.metrics
        steps = [step for step in plan.steps if isinstance(step, Unload)]
        moving = {step.bundle for step in steps}
        verdicts = {verdict.subject: verdict for verdict in plan.verdicts}
        for said, verdict in enumerate(plan.verdicts):
            if said % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if verdict.subject not in moving:  # the executor says what becomes of those
                self._journal.judged("shed", verdict, epoch=term.epoch)
        self.brokers_shed += len({step.source for step in steps})
        log.info(
            "shedding_cycle",
            cycle=self.cycles,
            epoch=term.epoch,
            unloads=len(steps),
            looked_at=len(plan.verdicts),
            duration_ms=round(self.last_cycle_s * 1000, 2),
        )
        await self._executor.execute_all((step, _about(verdicts, step.source.broker, step.bundle)) for step in steps)
        return plan


class Reconciler:
    """Finds what the records say is unfinished, and finishes it: level-triggered, so nothing can be missed for good.

    It frees the bundles of brokers that are gone, and follows releases that nobody follows.
    """

    def __init__(
        self,
        view: ClusterView,
        ledger: Ledger,
        executor: Executor,
        journal: Journal,
        place_again: Callable[[str], object] | None,
    ) -> None:
        self._view = view
        self._ledger = ledger
        self._executor = executor
        self._journal = journal
        self._place_again = place_again
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Look at every bundle at the start of the term, after each change of membership, and now and then."""
        while True:
            if self._view.is_fresh:
                await self._sweep()
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that arrives together with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_INTERVAL_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _sweep(self) -> None:
        orphans: list[tuple[BundleName, Registration]] = []
        for looked_at, (entry, index, ownership) in enumerate(self._view.ownerships()):
            if looked_at % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if ownership.owner is None:
                continue
            name = BundleName(entry.state.name, entry.state.bundles.range_at(index))
            if ownership.state is OwnershipState.RELEASING:
                if not self._executor.is_following(name):
                    self._executor.resume(name, ownership)
            elif not self._view.is_registered(ownership.owner):
                orphans.append((name, ownership.owner))
        await asyncio.gather(*(self._free(name, owner) for name, owner in orphans))

    async def _free(self, name: BundleName, owner: Registration) -> None:
        def end(current: Ownership, stamp: Stamp) -> Ownership:
            if current.owner != owner or current.state is not OwnershipState.OWNED:
                raise IllegalTransitionError(f"{name} has moved on: {current}")
            return owner_gone(current, stamp)

        try:
            freed = await self._ledger.apply(str(name.namespace), name.range, end, Reason.OWNER_GONE.value)
        except (LoadManagerError, IllegalTransitionError) as error:
            log.info("bundle_not_freed", bundle=str(name), error=str(error))
            return
        self._journal.moved("freed", str(name), Reason.OWNER_GONE, epoch=freed.epoch, source=owner)
        if self._place_again is not None:
            self._place_again(str(name))


def _about(verdicts: Mapping[str, Verdict], *subjects: str) -> list[Verdict]:
    return [verdicts[subject] for subject in subjects if subject in verdicts]


def _retrieve(future: asyncio.Future[Ownership]) -> None:
    """Nobody may be waiting any more when an assignment fails; that is no reason for a warning."""
    if not future.cancelled():
        future.exception()
