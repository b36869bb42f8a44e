"""What every decision needs: a snapshot, what strategies remember, chance, and a thread.

Deciding happens in threads, on a snapshot: a cycle over a hundred thousand bundles never holds up a lookup.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import numpy as np
import structlog

from loadmanager.core.diagnosis.explanation import Situation
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Assign, Plan, Unload, Verdict
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn, planner, recency
from loadmanager.core.planning import shedding_round as shedding
from loadmanager.core.planning.blocking_limits import BlockingLimit, RoundPace, in_force, limits_of_round
from loadmanager.core.planning.certificate.plan_certificate import Certified, certify
from loadmanager.core.planning.certificate.round_certificates import DecidedRound
from loadmanager.core.planning.shedding_round import Proposal, Round
from loadmanager.core.planning.strategy_memory import merged
from loadmanager.core.strategies.splitting.split_round import SPLIT_STRATEGY
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.audit.history_recorder import Asked, DeskMemory, HistoryRecorder
from loadmanager.leader.audit.move_records import MoveRecorder
from loadmanager.leader.audit.recorded_model import RecordedModel
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.churn_memory import Churn
from loadmanager.leader.planning.planner_pool import PlannerPool
from loadmanager.leader.planning.thread_pool import Previews, Worker

log = structlog.get_logger(__name__)

MINUTE_S = 60.0
_Decided = TypeVar("_Decided")

_TRIES = 2
"""After so many a round is brought within the limits while nothing else happens: moves end too quickly."""

SLICE = 200
"""Bundles looked at before others get their turn on the event loop."""


class PlannerService:
    """What every decision needs: the snapshot of the moment, the settings, what strategies remember, and chance.

    Each decision is recorded with all that it was taken with. Those that are small, as assignments are, are made one
    after the other. A round of shedding may take long, and what is only shown may be asked for by anybody: both are
    worked out beside them, from what was remembered when they began, with a generator of their own. What a round
    remembers is put together with what the others have remembered meanwhile (see
    `core.planning.strategy_memory.merged`).
    """

    def __init__(
        self,
        view: ClusterMirror,
        live: LiveSettings,
        journal: DecisionLog,
        seed: int,
        recorder: HistoryRecorder | None = None,
        moves: MoveRecorder | None = None,
        planning: PlannerPool | None = None,
    ) -> None:
        self.state: planner.State = {}
        self.split_state: planner.State = {}
        """What the extensible rule of splitting remembers: it is asked apart from all the others."""
        self.recorder = recorder or HistoryRecorder()
        self.churn = Churn(
            view, live, journal, self._recent_snapshot, self.recorder, moves or MoveRecorder(self.recorder)
        )
        self._view = view
        self._live = live
        self._rng, self._round_rng = np.random.default_rng(seed).spawn(2)
        self.last_round: DecidedRound | None = None
        """The last round of shedding of this term."""
        self._limits: tuple[BlockingLimit, ...] = ()
        """Behind what the last round of this term left where it is."""
        self._snapshot: Snapshot | None = None
        self._small, self._round = asyncio.Lock(), asyncio.Lock()
        self._worker = Worker("small decisions")
        self._planning = planning or PlannerPool()
        self.previews = Previews()

    @property
    def memory(self) -> planner.State:
        """What is remembered for the next leader, of strategies, of splitting and of churn."""
        return {**self.state, **self.churn.state, **({SPLIT_STRATEGY: self.split_state} if self.split_state else {})}

    def memory_now(self) -> DeskMemory:
        """What is remembered, for a checkpoint; the next decision is made on a new snapshot."""
        self._snapshot = None
        return DeskMemory(
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
        """Draw from generators of this term's own; no round has been decided in it."""
        self.last_round, self._limits = None, ()
        self._rng, self._round_rng = self._rng.spawn(2)
        self._planning.begin_term()

    async def end_term(self) -> None:
        """No round is worked out any more."""
        await self._planning.end_term()

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
                proposal = await self._planning.propose(snapshot, settings, before, rng)
            except Exception as error:
                async with self._small:
                    self._round_rng = rng
                    self.state = {}  # what was remembered may be the cause; the next round starts without it
                    self.recorder.failed(asked, error, rng)
                raise
            async with self._small:
                done, under_way = await self._within_limits(proposal, self._worker)
                self._round_rng = rng
                self.state, self.churn.state = merged(before, done.state, self.state), done.churn_state
                self.recorder.decided(asked, done.plan.steps, done.plan.verdicts, self.state, rng, underWay=under_way)
                self.recorder.remembered({**self.state, **self.churn.state})
            self.last_round = DecidedRound(snapshot.afresh(), settings, done.plan.steps)
            current = self._live.current
            pace = RoundPace(
                current.load_balancer_shedding_interval_minutes * MINUTE_S,
                current.load_balancer_shedding_grace_period_minutes * MINUTE_S,
            )
            self._limits = limits_of_round(done.plan.verdicts, snapshot.taken_at_s, pace)
            return done.plan

    async def _within_limits(self, proposal: Proposal, worker: Worker) -> tuple[Round, float]:
        """What may be made of it, and the share under way that this goes by: looked at step by step, in a thread.

        If moves have ended meanwhile, it is done again: they count, and are not to be forgotten.
        """
        for _ in range(_TRIES):
            noted, under_way = self.churn.state, self.churn.share_under_way
            done = await worker.run(proposal.within_limits, noted, under_way)
            if noted is self.churn.state and under_way == self.churn.share_under_way:
                return done, under_way
        under_way = self.churn.share_under_way
        return proposal.within_limits(self.churn.state, under_way), under_way

    async def preview_shed(self) -> tuple[Plan, Snapshot]:
        """What `shed` would decide now, and on which snapshot. Nothing is remembered of it.

        This and the other previews raise `TooManyPreviewsError`.
        """
        async with self.previews.turn() as worker:
            snapshot, settings, rng = self._shown_snapshot(), self._live.planner, copy.deepcopy(self._round_rng)
            asked = self.recorder.begin("preview_shed")
            proposal = await worker.run(shedding.propose, snapshot, settings, self.state, rng)
            done, under_way = await self._within_limits(proposal, worker)
            self.recorder.decided(asked, done.plan.steps, done.plan.verdicts, underWay=under_way)
            return done.plan, snapshot

    async def certify(
        self, snapshot: Snapshot, steps: Sequence[Assign | Unload], emptied: Collection[BrokerId] = ()
    ) -> Certified:
        """How near these steps come, of a plan on that snapshot, to what no plan can beat."""
        async with self.previews.turn() as worker:
            return await worker.run(certify, snapshot, self._live.planner, steps, emptied)

    async def standing(self) -> tuple[DecidedRound, DecidedRound | None]:
        """The cluster as it is now, as if a round had moved nothing, and the last round; their figures are there."""
        async with self.previews.turn() as worker:
            now, last = DecidedRound(self._shown_snapshot(), self._live.planner, ()), self.last_round
            for work_out in (now.certified, now.reserve, *(() if last is None else (last.certified,))):
                await worker.run(work_out)
            return now, last

    def look(self) -> Situation:
        """All that would be decided on now, to be explained: a copy, so that nothing done to it changes a decision."""
        snapshot, settings = self._shown_snapshot(), self._live.planner
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
            snapshot, rng = self._shown_snapshot(), copy.deepcopy(self._round_rng)
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

    def blocking_limits(self) -> list[BlockingLimit]:
        """Limits that keep bundles where they are at this moment."""
        now_s, under_way = time.time(), self.churn.share_under_way
        standing = churn.standing_limits(
            self.churn.state, self._recent_snapshot(), self._live.planner, now_s, under_way
        )
        return in_force([*standing, *self._limits], now_s)

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
        patience_s = settings.sick_broker_patience_s
        self._view.model.set_doubts(self._view.gate.doubts(time.time(), age_s, weights, patience_s))
        self._snapshot = None
        return self.snapshot()

    def _shown_snapshot(self) -> Snapshot:
        """Of this very moment, for what is only shown: what is worked out of it is not kept with the last snapshot."""
        return self._new_snapshot().afresh()

    def _recent_snapshot(self) -> Snapshot:
        """The last one that was taken, or a new one if there is none."""
        return self._snapshot or self.snapshot()
