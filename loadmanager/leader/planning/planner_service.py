"""Planner service: makes every decision of a leader, on a snapshot and in a thread.

A round over a hundred thousand bundles does not delay lookups. `TermHistory` records the terms of a node and their
checkpoints.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import structlog

from loadmanager.core.diagnosis.explanation import DecisionInput
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Assign, Plan, Unload, Verdict
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn, planner
from loadmanager.core.planning import shedding_round as shedding
from loadmanager.core.planning.blocking_limits import BlockingLimit, RoundPace, find_active_limits, find_round_limits
from loadmanager.core.planning.certificate.plan_certificate import CertificateSummary, DecidedRound, certify
from loadmanager.core.planning.decision_kinds import DECISIONS, merged, read_choice
from loadmanager.core.planning.shedding_round import Proposal, Round
from loadmanager.core.strategies.shedding.threshold_shedder import before_round
from loadmanager.core.strategies.splitting.split_round import SPLIT_STRATEGY
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.leader.audit.move_records import MoveRecorder
from loadmanager.leader.audit.recorded_model import RecordedModel
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.churn_memory import Churn
from loadmanager.leader.planning.planner_pool import PlannerPool, Previews, Worker

log = structlog.get_logger(__name__)

MINUTE_S = 60.0

_TRIES = 2
"""Attempts to apply the churn limits in a thread; if moves end during each, they are applied on the event loop."""

SLICE = 200
"""Subjects per slice between two yields to the event loop."""


class PlannerService:
    """Makes decisions, with the snapshot, the settings, the memory of strategies and the random generators.

    Each decision is recorded with its inputs. Small decisions, such as assignments, run one after the other. Rounds of
    shedding and previews may take long. They run concurrently, on the memory at their start and with generators of
    their own. The memory of a round is merged with what other decisions have stored meanwhile (see
    `core.planning.decision_kinds.merged`).
    """

    def __init__(
        self,
        mirror: ClusterMirror,
        live: LiveSettings,
        decision_log: DecisionLog,
        seed: int,
        recorder: HistoryRecorder,
        moves: MoveRecorder,
        planning: PlannerPool | None = None,
    ) -> None:
        self.state: planner.State = {}
        self.split_state: planner.State = {}
        """Memory of the extensible split rule, separate from that of the strategies."""
        self.recorder = recorder
        self.churn = Churn(mirror, live, decision_log, self._recent_snapshot, recorder, moves)
        self._mirror = mirror
        self._live = live
        self._rng, self._round_rng = np.random.default_rng(seed).spawn(2)
        self.last_round: DecidedRound | None = None
        """The last round of shedding of this term."""
        self._limits: tuple[BlockingLimit, ...] = ()
        """Limits that kept bundles in place in the last round of this term."""
        self._snapshot: Snapshot | None = None
        self._small, self._round = asyncio.Lock(), asyncio.Lock()
        self._worker = Worker("small decisions")
        self.planning = planning or PlannerPool()
        self.previews = Previews()

    @property
    def memory(self) -> planner.State:
        """Memory for the next leader: the state of strategies, of the split rule and of the churn limits."""
        return {**self.state, **self.churn.state, **({SPLIT_STRATEGY: self.split_state} if self.split_state else {})}

    def memory_now(self) -> dict[str, Any]:
        """Return the memory for a checkpoint, and drop the snapshot, so that the next decision takes a new one."""
        self._snapshot = None
        return {
            "states": self.state,
            "splitState": self.split_state,
            "churn": self.churn.state,
            "rng": self._rng.bit_generator.state,
            "roundRng": self._round_rng.bit_generator.state,
        }

    def forget(self) -> planner.State:
        """Clear the memory and return it; called before the last leader's memory is read."""
        memory = self.memory
        self.state, self.split_state, self.churn.state = {}, {}, {}
        return memory

    async def restore(self, memory: planner.State) -> None:
        """Restore a former leader's memory, merged with what was stored since `forget`."""
        async with self._small:
            others = {name: state for name, state in memory.items() if name not in (churn.KEY, SPLIT_STRATEGY)}
            self.state = {**self.state, **others}
            self.split_state = memory.get(SPLIT_STRATEGY, self.split_state)
            self.churn.state = churn.restored(self.churn.state, memory, time.time())
            self.recorder.restored(self.state, self.split_state, self.churn.state)

    def begin_term(self) -> None:
        """Begin a term: spawn random generators of its own, and drop the last round."""
        self.last_round, self._limits = None, ()
        self._rng, self._round_rng = self._rng.spawn(2)
        self.planning.begin_term()

    async def end_term(self) -> None:
        """End the term: no further round is computed."""
        await self.planning.end_term()

    async def checkpoint(self, model: RecordedModel) -> None:
        """Record a checkpoint of everything that decisions depend on, between two decisions."""
        async with self._round, self._small:  # in this order small decisions do not wait for a round
            self.recorder.checkpoint(model, self.memory_now())

    async def shed(self) -> Plan:
        """Plan one round of shedding, within the churn limits; nothing is executed."""
        async with self._round:
            snapshot, settings, before = self._new_snapshot(), self._live.planner, self.state
            rng = copy.deepcopy(self._round_rng)
            asked = self.recorder.begin("shed")
            try:
                proposal = await self.planning.propose(snapshot, settings, before, rng)
            except Exception as error:
                async with self._small:
                    self._round_rng = rng
                    self.state = {}  # the memory may be the cause; the next round starts without it
                    self.recorder.failed(asked, error, rng)
                raise
            async with self._small:
                done, in_progress = await self._within_limits(proposal, self._worker)
                self._round_rng = rng
                self.state, self.churn.state = merged(before, done.state, self.state), done.churn_state
                self.recorder.decided(asked, done.plan.steps, done.plan.verdicts, rng, inProgress=in_progress)
            self.last_round = DecidedRound(snapshot.afresh(), settings, done.plan.steps)
            current = self._live.current
            pace = RoundPace(
                current.load_balancer_shedding_interval_minutes * MINUTE_S,
                current.load_balancer_shedding_grace_period_minutes * MINUTE_S,
            )
            self._limits = find_round_limits(done.plan.verdicts, snapshot.taken_at_s, pace)
            return done.plan

    async def _within_limits(self, proposal: Proposal, worker: Worker) -> tuple[Round, float]:
        """Apply the churn limits to a proposal in a thread; return the round, and the share of load in flight.

        Repeated if moves have ended meanwhile, since they count towards the limits.
        """
        for _ in range(_TRIES):
            noted, in_progress = self.churn.state, self.churn.share_in_progress
            done = await worker.run(proposal.within_limits, noted, in_progress)
            if noted is self.churn.state and in_progress == self.churn.share_in_progress:
                return done, in_progress
        in_progress = self.churn.share_in_progress
        return proposal.within_limits(self.churn.state, in_progress), in_progress

    async def preview_shed(self) -> tuple[Plan, Snapshot]:
        """Plan a round as `shed` would now; return it with its snapshot. Nothing is remembered.

        All previews raise `TooManyPreviewsError`.
        """
        async with self.previews.turn() as worker:
            snapshot, settings, rng = self._shown_snapshot(), self._live.planner, copy.deepcopy(self._round_rng)
            asked = self.recorder.begin("preview_shed")
            proposal = await worker.run(shedding.propose, snapshot, settings, self.state, rng)
            done, in_progress = await self._within_limits(proposal, worker)
            self.recorder.decided(asked, done.plan.steps, done.plan.verdicts, inProgress=in_progress)
            return done.plan, snapshot

    async def certify(
        self, snapshot: Snapshot, steps: Sequence[Assign | Unload], emptied: Collection[BrokerId] = ()
    ) -> CertificateSummary:
        """Certify how close these steps of a plan on that snapshot come to the best possible."""
        async with self.previews.turn() as worker:
            return await worker.run(certify, snapshot, self._live.planner, steps, emptied)

    async def standing(self) -> tuple[DecidedRound, DecidedRound | None]:
        """Return the current cluster, as a round without moves, and the last round, both with their certificates."""
        async with self.previews.turn() as worker:
            now, last = DecidedRound(self._shown_snapshot(), self._live.planner, ()), self.last_round
            for work_out in (now.certified, now.reserve, *(() if last is None else (last.certified,))):
                await worker.run(work_out)
            return now, last

    def look(self) -> DecisionInput:
        """Return a copy of all inputs of a decision, for explanations; changing it affects no decision."""
        snapshot, settings = self._shown_snapshot(), self._live.planner
        state = {**before_round(self.state, snapshot, settings), **self.churn.state}
        return DecisionInput(snapshot, settings, state, copy.deepcopy(self._rng))

    async def drain(self, brokers: Collection[BrokerId], most: int, leave: Collection[str]) -> Plan:
        """Plan the next `most` moves off these brokers, without the bundles in `leave`; nothing is executed."""
        return await self._decide("drain", brokers=sorted(brokers), most=most, leave=sorted(leave))

    async def preview_drain(self, broker: BrokerId) -> tuple[Plan, Snapshot]:
        """Plan the moves of all bundles off the broker; return them with the snapshot. Nothing is remembered."""
        async with self.previews.turn() as worker:
            snapshot, rng = self._shown_snapshot(), copy.deepcopy(self._round_rng)
            asked = self.recorder.begin("preview_drain")
            request: dict[str, Any] = {"brokers": [broker], "most": None, "leave": []}
            plan, _ = await worker.run(DECISIONS["drain"], snapshot, self._live.planner, self.state, rng, request)
            self.recorder.decided(asked, plan.steps, plan.verdicts, **request)
            return plan, snapshot

    async def bring_home(self, leave: Collection[str]) -> Plan:
        """Plan the moves of pinned bundles to their brokers, without the bundles in `leave`."""
        return await self._decide("bring_home", leave=sorted(leave))

    def find_move_refusal(self, bundle: str, destination: BrokerId) -> Verdict | None:
        """Return the verdict that forbids the move even to an operator, None if it is allowed."""
        snapshot = self._recent_snapshot()
        if not self._mirror.model.has_config_of(snapshot) or snapshot.brokers.find_row(destination) is None:
            snapshot = self.snapshot()
        return planner.find_move_refusal(snapshot, bundle, destination, self._live.planner)

    def blocking_limits(self) -> list[BlockingLimit]:
        """Return the limits that currently keep bundles from moving."""
        now_s, in_progress = time.time(), self.churn.share_in_progress
        standing = churn.standing_limits(
            self.churn.state, self._recent_snapshot(), self._live.planner, now_s, in_progress
        )
        return find_active_limits([*standing, *self._limits], now_s)

    def find_excess(self, step: Unload) -> Verdict | None:
        """Return the verdict of the churn limits against a move outside a round, None if they allow it."""
        return churn.find_excess(
            step, self.snapshot(), self._live.planner, self.churn.state, self.churn.share_in_progress
        )

    async def place(self, bundles: list[str], non_persistent: Collection[str] = ()) -> Plan:
        """Choose owners for free bundles as one batch; `non_persistent` are those requested for such a topic."""
        return await self._decide("place", bundles=bundles, nonPersistent=list(non_persistent))

    async def choose(self, bundle: str) -> tuple[Registration | None, Verdict]:
        """Choose the broker on which placement would put a bundle now, even if it has an owner."""
        return read_choice(await self._decide("choose", bundle=bundle))

    async def _decide(self, kind: str, **request: Any) -> Plan:  # noqa: ANN401 - whatever JSON can hold
        """Make a small decision, and record it unless it is empty."""
        async with self._small:
            snapshot, asked, rng = self.snapshot(), self.recorder.ask(kind), copy.deepcopy(self._rng)
            try:
                plan, self.state = await self._worker.run(
                    DECISIONS[kind], snapshot, self._live.planner, self.state, rng, request
                )
            except Exception as error:
                self._rng = rng
                self.recorder.failed(asked, error, rng)
                raise
            self._rng = rng
            if plan.steps or plan.verdicts:
                self.recorder.decided(asked, plan.steps, plan.verdicts, rng, **request)
            return plan

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the cluster; a new one is taken only after a change."""
        model = self._mirror.model
        if self._snapshot is None or self._snapshot.revision != model.revision:
            taken_at_s = time.time()
            grace_period_s = self._live.current.load_balancer_shedding_grace_period_minutes * MINUTE_S
            self._snapshot = model.snapshot(taken_at_s, grace_period_s)
            self.recorder.record_snapshot(taken_at_s, grace_period_s)
        return self._snapshot

    def _new_snapshot(self) -> Snapshot:
        """Take a new snapshot also without a change: recent moves and silent brokers depend on the time."""
        settings = self._live.planner
        age_s, weights = settings.broker_load_data_ttl_in_seconds, settings.resource_weights
        sick_after_s = settings.sick_after_s
        self._mirror.model.set_faults(self._mirror.gate.faults(time.time(), age_s, weights, sick_after_s))
        self._snapshot = None
        return self.snapshot()

    def _shown_snapshot(self) -> Snapshot:
        """Take a new snapshot for display only, so that its cached figures do not stay in memory."""
        return self._new_snapshot().afresh()

    def _recent_snapshot(self) -> Snapshot:
        return self._snapshot or self.snapshot()


_CHECKPOINT_INTERVAL_S = 3_600.0
"""A replay begins at a checkpoint, so it reads at most one hour of history before the requested time."""


class TermHistory:
    """Records the terms of one node."""

    def __init__(self, node_id: str, mirror: ClusterMirror, planner: PlannerService, moves: MoveRecorder) -> None:
        self._node_id = node_id
        self._mirror = mirror
        self._planner = planner
        self._moves = moves

    def begin(self, epoch: int) -> None:
        """Begin the term of the planner service, and record it if the node records."""
        self._moves.forget()
        self._planner.begin_term()
        model = self._mirror.model
        if isinstance(model, RecordedModel) and self._planner.recorder.is_on:
            self._planner.recorder.begin_term(epoch, self._node_id, model, self._planner.memory_now())

    async def keep_checkpoints(self) -> None:
        """Record a checkpoint at every interval: a replay can begin at each."""
        model = self._mirror.model
        while isinstance(model, RecordedModel) and self._planner.recorder.is_on:
            await asyncio.sleep(_CHECKPOINT_INTERVAL_S)
            await self._planner.checkpoint(model)
