"""What every decision needs, and assignments at lookup.

Deciding happens in threads, on a snapshot: a cycle over a hundred thousand bundles never holds up a lookup.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import TypeVar

import numpy as np
import structlog

from loadmanager.core import churn, planner, recency
from loadmanager.core.explain import Situation
from loadmanager.core.names import BrokerId, BundleName, BundleRange, namespace_of
from loadmanager.core.ownership import (
    FREE,
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    assign,
)
from loadmanager.core.plan import Assign, Plan, Unload, Verdict
from loadmanager.core.reasons import OwnershipReason, PlacementReason
from loadmanager.core.shedding import round as shedding
from loadmanager.core.snapshot import Snapshot
from loadmanager.core.state import merged
from loadmanager.errors import HeldForOwnerError, LoadManagerError, NoBrokerAvailableError
from loadmanager.leader.churn import Churn
from loadmanager.leader.journal import Journal
from loadmanager.leader.ledger import Ledger, Transition
from loadmanager.leader.live_settings import LiveSettings
from loadmanager.leader.moving import Moves
from loadmanager.leader.recorded_model import RecordedModel
from loadmanager.leader.recording import Asked, Memory, Recorder
from loadmanager.leader.view import ClusterView
from loadmanager.leader.working import Previews, Worker

log = structlog.get_logger(__name__)

MINUTE_S = 60.0
SPLIT_STRATEGY = "DefaultNamespaceBundleSplitStrategyImpl"
"""Pulsar's name for the extensible rule of splitting, among the names of strategies."""
_Decided = TypeVar("_Decided")

_BATCH = 1_000
"""Bundles placed together at most: a lookup waits for the batch under way and is in the next one."""

SLICE = 200
"""Bundles looked at before others get their turn on the event loop."""


class Desk:
    """What every decision needs: the snapshot of the moment, the settings, what strategies remember, and chance.

    Each decision is recorded with all that it was taken with. Those that are small, as assignments are, are made one
    after the other. A round of shedding may take long, and what is only shown may be asked for by anybody: both are
    worked out beside them, from what was remembered when they began, with a generator of their own. What a round
    remembers is put together with what the others have remembered meanwhile (see `core.state.merged`).
    """

    def __init__(
        self,
        view: ClusterView,
        live: LiveSettings,
        journal: Journal,
        seed: int,
        recorder: Recorder | None = None,
        moves: Moves | None = None,
    ) -> None:
        self.state: planner.State = {}
        self.split_state: planner.State = {}
        """What the extensible rule of splitting remembers: it is asked apart from all the others."""
        self.recorder = recorder or Recorder()
        self.churn = Churn(view, live, journal, self._recent_snapshot, self.recorder, moves or Moves(self.recorder))
        self._view = view
        self._live = live
        self._rng, self._round_rng = np.random.default_rng(seed).spawn(2)
        self._snapshot: Snapshot | None = None
        self._small, self._round = asyncio.Lock(), asyncio.Lock()
        self._worker = Worker("small decisions")
        self.previews = Previews()

    @property
    def memory(self) -> planner.State:
        """What is remembered for the next leader, of strategies, of splitting and of churn."""
        return {**self.state, **self.churn.state, **({SPLIT_STRATEGY: self.split_state} if self.split_state else {})}

    def memory_now(self) -> Memory:
        """What is remembered, for a checkpoint; the next decision is made on a new snapshot."""
        self._snapshot = None
        return Memory(
            self.state,
            self.split_state,
            self.churn.state,
            self._rng.bit_generator.state,
            self._round_rng.bit_generator.state,
        )

    def forget(self) -> planner.State:
        """What is remembered, and from here on is not: before it is known what the last leader remembered."""
        memory = self.memory
        self.state, self.split_state, self.churn.state = {}, {}, {}
        return memory

    async def restore(self, memory: planner.State) -> None:
        """Go on with what a former leader remembered, and with what was remembered since `forget`."""
        async with self._small:
            others = {name: state for name, state in memory.items() if name not in (churn.KEY, SPLIT_STRATEGY)}
            self.state = {**self.state, **others}
            self.split_state = memory.get(SPLIT_STRATEGY, self.split_state)
            self.churn.state = churn.restored(self.churn.state, memory, time.time(), self._live.planner)
            self.recorder.restored(self.state, self.split_state, self.churn.state)

    def begin_term(self) -> None:
        """Draw from generators of this term's own."""
        self._rng, self._round_rng = self._rng.spawn(2)

    async def checkpoint(self, model: RecordedModel) -> None:
        """Record all that decisions depend on, between two of them."""
        async with self._round, self._small:  # in this order nothing waits for a round
            self.recorder.checkpoint(model, self)

    async def shed(self) -> Plan:
        """One round of shedding, within the limits on churn; nothing is carried out."""
        async with self._round:
            snapshot, settings, before = self._new_snapshot(), self._live.planner, self.state
            rng = copy.deepcopy(self._round_rng)
            asked = self.recorder.begin("shed")
            try:
                proposal = await asyncio.to_thread(shedding.propose, snapshot, settings, before, rng)
            except Exception as error:
                async with self._small:
                    self._round_rng = rng
                    self.state = {}  # what was remembered may be the cause; the next round starts without it
                    self.recorder.failed(asked, error, rng)
                raise
            async with self._small:
                under_way = self.churn.share_under_way
                done = proposal.within_limits(self.churn.state, under_way)
                self._round_rng = rng
                self.state, self.churn.state = merged(before, done.state, self.state), done.churn_state
                self.recorder.decided(asked, done.plan.steps, done.plan.verdicts, self.state, rng, underWay=under_way)
                self.recorder.remembered({**self.state, **self.churn.state})
            return done.plan

    async def preview_shed(self) -> tuple[Plan, Snapshot]:
        """What `shed` would decide now, and on which snapshot. Nothing is remembered of it.

        This and the other previews raise `TooManyPreviewsError`.
        """
        async with self.previews.turn() as worker:
            snapshot, settings, rng = self._new_snapshot(), self._live.planner, copy.deepcopy(self._round_rng)
            asked = self.recorder.begin("preview_shed")
            proposal = await worker.run(shedding.propose, snapshot, settings, self.state, rng)
            under_way = self.churn.share_under_way
            plan = proposal.within_limits(self.churn.state, under_way).plan
            self.recorder.decided(asked, plan.steps, plan.verdicts, underWay=under_way)
            return plan, snapshot

    def look(self) -> Situation:
        """All that would be decided on now, to be explained: a copy, so that nothing done to it changes a decision."""
        snapshot, settings = self._new_snapshot(), self._live.planner
        state = {**recency.before_round(self.state, snapshot, settings), **self.churn.state}
        return Situation(snapshot, settings, state, copy.deepcopy(self._rng))

    async def drain(self, brokers: Collection[BrokerId], most: int, leave: Collection[str]) -> Plan:
        """Where the next `most` bundles of these brokers go, but not those to `leave`; nothing is carried out."""
        async with self._small:
            snapshot, asked, rng = self.snapshot(), self.recorder.ask("drain"), copy.deepcopy(self._rng)
            settings = self._live.planner
            plan, self.state = await self._decide(
                asked, rng, planner.plan_drain, snapshot, brokers, settings, self.state, rng, most, leave
            )
            if plan.steps or plan.verdicts:
                detail = {"brokers": sorted(brokers), "most": most, "leave": sorted(leave)}
                self.recorder.decided(asked, plan.steps, plan.verdicts, self.state, rng, **detail)
            return plan

    async def preview_drain(self, broker: BrokerId) -> tuple[Plan, Snapshot]:
        """Where all bundles of the broker would go now, and on which snapshot. Nothing is remembered of it."""
        async with self.previews.turn() as worker:
            snapshot, rng = self._new_snapshot(), copy.deepcopy(self._round_rng)
            asked = self.recorder.begin("preview_drain")
            plan, _ = await worker.run(planner.plan_drain, snapshot, [broker], self._live.planner, self.state, rng)
            self.recorder.decided(asked, plan.steps, plan.verdicts, brokers=[broker], most=None, leave=[])
            return plan, snapshot

    def bring_home(self, leave: Collection[str]) -> Plan:
        """The way home for pinned bundles that another broker owns, but not for those to `leave`."""
        snapshot, asked = self.snapshot(), self.recorder.ask("bring_home")
        plan = planner.plan_pins(snapshot, self._live.planner, leave)
        self.recorder.decided(asked, plan.steps, plan.verdicts, leave=sorted(leave))
        return plan

    def find_move_refusal(self, bundle: str, destination: BrokerId) -> Verdict | None:
        """Why that broker may not be given the bundle even at an operator's word, None if it may."""
        snapshot = self._recent_snapshot()
        if not self._view.model.is_laid_down_in(snapshot) or snapshot.brokers.find_row(destination) is None:
            snapshot = self.snapshot()
        return planner.find_move_refusal(snapshot, bundle, destination, self._live.planner)

    def find_excess(self, step: Unload) -> Verdict | None:
        """Why the limits on churn keep a move from being made now that no round has planned, None if they do not."""
        return churn.find_excess(
            step, self.snapshot(), self._live.planner, self.churn.state, self.churn.share_under_way
        )

    async def place(self, bundles: list[str], non_persistent: Collection[str] = ()) -> Plan:
        """Owners for free bundles, decided as one batch; `non_persistent` are those asked for by such a topic."""
        async with self._small:
            snapshot, asked, rng = self.snapshot(), self.recorder.ask("place"), copy.deepcopy(self._rng)
            settings = self._live.planner
            plan, self.state = await self._decide(
                asked, rng, planner.plan_assignments, snapshot, bundles, settings, self.state, rng, non_persistent
            )
            detail = {"bundles": bundles, "nonPersistent": list(non_persistent)}
            self.recorder.decided(asked, plan.steps, plan.verdicts, self.state, rng, **detail)
            return plan

    async def choose(self, bundle: str) -> tuple[Registration | None, Verdict]:
        """Where placement would put a bundle now, whoever owns it."""
        async with self._small:
            snapshot, asked, rng = self.snapshot(), self.recorder.ask("choose"), copy.deepcopy(self._rng)
            settings = self._live.planner
            chosen, verdict, self.state = await self._decide(
                asked, rng, planner.choose_destination, snapshot, bundle, None, settings, self.state, rng
            )
            steps = [] if chosen is None else [Assign(bundle, chosen, verdict.verdict)]
            self.recorder.decided(asked, steps, [verdict], self.state, rng, bundle=bundle)
            return chosen, verdict

    async def _decide(
        self, asked: Asked, rng: np.random.Generator, decide: Callable[..., _Decided], *given: object
    ) -> _Decided:
        """Have a small decision made, which draws from `rng`, and record it when that fails."""
        try:
            decided = await self._worker.run(decide, *given)
        except Exception as error:
            self._rng = rng
            self.recorder.failed(asked, error, rng)
            raise
        self._rng = rng
        return decided

    def snapshot(self) -> Snapshot:
        """The cluster now; taken anew only when something has changed."""
        model = self._view.model
        if self._snapshot is None or self._snapshot.revision != model.revision:
            taken_at_s = time.time()
            grace_period_s = self._live.current.load_balancer_shedding_grace_period_minutes * MINUTE_S
            self._snapshot = model.snapshot(taken_at_s, grace_period_s)
            self.recorder.snapshot_taken(taken_at_s, grace_period_s)
        return self._snapshot

    def _new_snapshot(self) -> Snapshot:
        """Of this very moment: which bundles moved recently depends on the time, and who has long been silent."""
        settings = self._live.planner
        age_s, weights = settings.broker_load_data_ttl_in_seconds, settings.resource_weights
        self._view.model.set_doubts(self._view.gate.doubts(time.time(), age_s, weights))
        self._snapshot = None
        return self.snapshot()

    def _recent_snapshot(self) -> Snapshot:
        """The last one that was taken, or a new one if there is none."""
        return self._snapshot or self.snapshot()


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


def about(verdicts: Mapping[str, Verdict], *subjects: str) -> list[Verdict]:
    """Those of these bundles and brokers that have one, in this order."""
    return [verdicts[subject] for subject in subjects if subject in verdicts]


def _retrieve(future: asyncio.Future[Ownership]) -> None:
    """Nobody may be waiting any more when an assignment fails; that is no reason for a warning."""
    if not future.cancelled():
        future.exception()
