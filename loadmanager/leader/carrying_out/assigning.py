"""Owners for free bundles, at lookup or in the background; what is asked for together is written together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice

import structlog

from loadmanager.core.names import BundleName, BundleRange, namespace_of
from loadmanager.core.ownership import (
    FREE,
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    assign,
)
from loadmanager.core.plan import Assign, Verdict
from loadmanager.core.reasons import OwnershipReason, PlacementReason
from loadmanager.errors import HeldForOwnerError, LoadManagerError, NoBrokerAvailableError
from loadmanager.leader.deciding.desk import Desk, about
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.term.ledger import Ledger, Transition

log = structlog.get_logger(__name__)

_BATCH = 1_000
"""Bundles placed together at most: a lookup waits for the batch under way and is in the next one."""


class Assigner:
    """Gives free bundles an owner: lookups of one bundle share one decision, and a burst shares one batch.

    Bundles that nobody asks for take the places that lookups leave in a batch.
    """

    def __init__(self, desk: Desk, view: ClusterView, ledger: Ledger, journal: Journal) -> None:
        self._desk = desk
        self._view = view
        self._ledger = ledger
        self._journal = journal
        self._waiting: dict[str, asyncio.Future[Ownership]] = {}
        self._queue: list[str] = []
        self._backlog: dict[str, None] = {}
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
            future = self._begin(bundle)
            self._backlog.pop(bundle, None)
            self._queue.append(bundle)
            if non_persistent:
                self._non_persistent.add(bundle)
            self._wake.set()
        return future

    def place_soon(self, bundles: Iterable[str]) -> None:
        """Have bundles placed that nobody has asked for, without holding up those that somebody waits for."""
        self._backlog.update(dict.fromkeys(bundle for bundle in bundles if bundle not in self._waiting))
        self._wake.set()

    def _begin(self, bundle: str) -> asyncio.Future[Ownership]:
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        self._waiting[bundle] = future
        return future

    async def run(self) -> None:
        """Decide and commit what is requested, for as long as the term lasts."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next_batch():
                non_persistent = self._non_persistent.intersection(batch)
                self._non_persistent -= non_persistent
                await self._assign(batch, non_persistent)

    def _next_batch(self) -> list[str]:
        """Those that somebody waits for, then the others, each in their order."""
        batch, self._queue = self._queue[:_BATCH], self._queue[_BATCH:]
        others = list(islice(self._backlog, _BATCH - len(batch)))
        for bundle in others:
            del self._backlog[bundle]
            self._begin(bundle)
        return batch + others

    def fail_waiting(self, error: Exception) -> None:
        """Give every waiting lookup `error`: the term is over."""
        self._queue.clear()
        self._backlog.clear()
        self._non_persistent.clear()
        for bundle in list(self._waiting):
            self._resolve(bundle, error)

    async def _assign(self, batch: list[str], non_persistent: set[str]) -> None:
        batch = await self._give_back(batch)
        if not batch:
            return
        try:
            plan = await self._desk.place(batch, non_persistent)
        except Exception as error:
            log.exception("placement_failed", bundles=len(batch))
            for bundle in batch:
                self._resolve(bundle, NoBrokerAvailableError(f"the decision failed: {error}"))
            return
        verdicts = {verdict.subject: verdict for verdict in plan.verdicts}
        steps = [step for step in plan.steps if isinstance(step, Assign)]
        await self._commit([(step, about(verdicts, step.bundle)) for step in steps])
        for bundle in set(batch) - {step.bundle for step in steps}:
            self._resolve(bundle, self._why_not(bundle, verdicts.get(bundle)))

    async def _give_back(self, batch: list[str]) -> list[str]:
        """Bundles that wait for their broker go to it if it is back, else to nobody; the others are returned."""
        if not self._view.laid_down.controls.held_off:
            return batch
        others: list[str] = []
        returning: list[tuple[Assign, list[Verdict]]] = []
        for bundle in batch:
            held = self._find_hold(bundle)
            if held is None:
                others.append(bundle)
            elif isinstance(held, HeldForOwnerError):
                self._resolve(bundle, held)
            else:
                why = Verdict(bundle, PlacementReason.HELD_FOR_OWNER, acted=True, why={"broker": held.broker})
                returning.append((Assign(bundle, held, PlacementReason.HELD_FOR_OWNER), [why]))
        await self._commit(returning)
        return others

    def _find_hold(self, bundle: str) -> Registration | HeldForOwnerError | None:
        """The broker that a bundle waits for, or that it has to wait; None when it does not."""
        try:
            entry, index = self._view.bundle(BundleName.parse(bundle))
        except LoadManagerError:
            return None  # placing it says the same
        ownership = entry.state.ownerships[index]
        left_s = self._view.find_hold(ownership)
        if ownership.owner is None or left_s is None:
            return None
        broker = ownership.owner.broker
        return self._view.registrations.get(broker) or HeldForOwnerError(
            f"bundle {bundle} waits for {broker}, which is held off, for {left_s:.0f} s at most", left_s
        )

    async def _commit(self, steps: Iterable[tuple[Assign, list[Verdict]]]) -> None:
        by_namespace: dict[str, list[tuple[Assign, list[Verdict]]]] = defaultdict(list)
        for step, because in steps:
            by_namespace[namespace_of(step.bundle)].append((step, because))
        await asyncio.gather(*(self._commit_in(*each) for each in by_namespace.items()))

    async def _commit_in(self, namespace: str, steps: list[tuple[Assign, list[Verdict]]]) -> None:
        ranges = [BundleRange.parse(step.bundle.rpartition("/")[2]) for step, _ in steps]
        transitions = {own: self._giving(step) for own, (step, _) in zip(ranges, steps, strict=True)}
        try:
            made = await self._ledger.apply_all(namespace, transitions, OwnershipReason.LOOKUP.value)
        except (LoadManagerError, IllegalTransitionError) as error:
            made = dict.fromkeys(ranges, error)
        for own, (step, because) in zip(ranges, steps, strict=True):
            done = made[own]
            if isinstance(done, Ownership):
                self.assignments += 1
                self._journal.moved(
                    "assign", step.bundle, step.reason, epoch=done.epoch, destination=step.destination, because=because
                )
            self._resolve(step.bundle, done)

    def _giving(self, step: Assign) -> Transition:
        def give(current: Ownership, stamp: Stamp) -> Ownership:
            if not self._view.is_registered(step.destination):
                raise IllegalTransitionError(f"{step.destination} left while {step.bundle} was being placed on it")
            return assign(self._freed(current), step.destination, stamp)

        return give

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


def _retrieve(future: asyncio.Future[Ownership]) -> None:
    """Nobody may be waiting any more when an assignment fails; that is no reason for a warning."""
    if not future.cancelled():
        future.exception()
