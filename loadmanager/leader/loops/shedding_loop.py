"""Shedding loop: a round every `loadBalancerSheddingIntervalMinutes`, its explanations, and the execution of its
steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.domain.reasons import FilterReason, ValidationReason
from loadmanager.core.planning.shedding_round import summarize_round
from loadmanager.core.protocol.leadership import Term
from loadmanager.errors import NotLeaderError
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.execution.executor import Batch, Executor
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import MINUTE_S, SLICE, PlannerService
from loadmanager.net.tracing import OFF, Tracing

log = structlog.get_logger(__name__)

_Steps = Sequence[tuple[Unload, Sequence[Verdict]]]
"""Steps with the verdicts that led to them."""


class MoveGuard(Protocol):
    """Additional limits on the moves of a round, besides those that the planner obeys."""

    def begin_round(self) -> Sequence[Verdict]:
        """Begin a round; return the verdicts that stop all of it, none if it may move bundles."""

    def check_steps(self, steps: Sequence[Unload]) -> Sequence[Sequence[Verdict]]:
        """Return the verdicts that stop each step, including those that stop the whole round."""


class SheddingLoop:
    """Plans a round of shedding every interval and executes its steps; a broker that hangs delays no other.

    Steps that the move guard stops are logged as in a dry run, with the verdicts that stop them. `on_plan` is called
    with each round as it was decided.
    """

    def __init__(
        self,
        planner: PlannerService,
        executor: Executor,
        election: Election,
        decision_log: DecisionLog,
        mirror: ClusterMirror,
        live: LiveSettings,
        guardrails: MoveGuard | None = None,
        on_plan: Callable[[Plan], None] = lambda _: None,
        tracing: Tracing = OFF,
    ) -> None:
        self._planner = planner
        self._executor = executor
        self._election = election
        self._decision_log = decision_log
        self._mirror = mirror
        self._live = live
        self._guardrails = guardrails
        self._on_plan = on_plan
        self._tracing = tracing
        self._batch = Batch()
        self._moving: set[asyncio.Task[None]] = set()
        self.rounds = 0
        self.rounds_failed = 0
        self.brokers_shed = 0
        self.last_round_s = 0.0
        self.strategy_metrics: Mapping[str, float] = {}
        """Metrics of the strategy from the last round (see `Plan.metrics`)."""

    async def run(self, *, at_once: bool = False) -> None:
        """Pause, then run a round, for as long as the term lasts; no round waits for moves.

        `at_once`: the first round comes before the first pause.
        """
        try:
            if at_once:
                await self._try_round()
            while True:
                await self._live.pause(lambda settings: settings.load_balancer_shedding_interval_minutes * MINUTE_S)
                await self._try_round()
        finally:
            for moving in self._moving:
                moving.cancel()

    async def _try_round(self) -> None:
        try:
            await self.begin_round()
        except NotLeaderError:
            raise
        except Exception:
            self.rounds_failed += 1
            log.exception("shedding_round_failed", round=self.rounds)

    async def run_round(self) -> Plan:
        """Run one round of shedding, and wait for all of its moves."""
        plan = await self.begin_round()
        await asyncio.gather(*self._moving)
        return plan

    async def begin_round(self) -> Plan:
        """Run one round of shedding, and begin its moves; a dry run or a move guard only logs explanations."""
        with self._tracing.span("shedding round", {"round": self.rounds + 1}):
            return await self._begin_round()

    async def _begin_round(self) -> Plan:
        """Run the round inside its trace span.

        Waiting steps of the last round are cancelled first: this round decides again, on a projection in which the
        moves in flight are complete.
        """
        self._executor.cancel_batch(self._batch)
        self._batch = Batch()
        started_s = time.monotonic()
        term = self._election.get_term()
        stops = self._guardrails.begin_round() if self._guardrails else ()
        if stops:
            self._decision_log.stopped("cluster", stops, epoch=term.epoch)
        plan = await self._planner.shed()
        self._on_plan(plan)
        self.last_round_s = time.monotonic() - started_s
        self.rounds += 1
        self.strategy_metrics = plan.metrics
        steps = plan.unloads
        is_dry_run = self._mirror.operator_config.controls.dry_run
        log.info(
            "shedding_round",
            round=self.rounds,
            epoch=term.epoch,
            unloads=len(steps),
            looked_at=len(plan.verdicts),
            dry_run=is_dry_run,
            duration_ms=round(self.last_round_s * 1000, 2),
        )
        await self._explain(plan, steps, term)
        if steps and self._planner.last_round is not None:
            summary = summarize_round(
                self.rounds, self._planner.last_round.snapshot, steps, acted=not (is_dry_run or stops)
            )
            self._decision_log.judged("round", summary, epoch=term.epoch)
        unstopped = self._split_stopped(plan, steps, term, is_dry_run=is_dry_run)
        if unstopped:
            self._begin(unstopped)
        return plan

    async def _explain(self, plan: Plan, steps: Sequence[Unload], term: Term) -> None:
        """Log one entry per subject that stays, with all its verdicts; the executor logs those that move."""
        moving = {step.bundle for step in steps}
        by_subject: dict[str, list[Verdict]] = {}
        for verdict in plan.verdicts:
            if verdict.subject not in moving:
                by_subject.setdefault(verdict.subject, []).append(verdict)
        for number, verdicts in enumerate(by_subject.values()):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            # Faults of a broker or its report come last.
            verdicts.sort(
                key=lambda verdict: (
                    isinstance(verdict.verdict, ValidationReason) or verdict.verdict is FilterReason.BROKER_SICK
                )
            )
            self._decision_log.judged("shed", verdicts[0], epoch=term.epoch, because=verdicts)

    def _split_stopped(self, plan: Plan, steps: Sequence[Unload], term: Term, *, is_dry_run: bool) -> _Steps:
        """Return the steps that nothing stops, with their verdicts; log the others."""
        verdicts = {verdict.subject: verdict for verdict in plan.verdicts}
        # The verdict that acted wins over a fault of the report.
        verdicts |= {verdict.subject: verdict for verdict in plan.verdicts if verdict.acted}
        unstopped: list[tuple[Unload, Sequence[Verdict]]] = []
        guardrails = self._guardrails
        stops_of: Sequence[Sequence[Verdict]] = guardrails.check_steps(steps) if guardrails else [()] * len(steps)
        for step, stops in zip(steps, stops_of, strict=True):
            because = [verdicts[each] for each in (step.source.broker, step.bundle) if each in verdicts]
            if is_dry_run or stops:
                self._log_stopped(step, [*(_select_own(step, stops) or stops[:1]), *because], term)
            else:
                unstopped.append((step, because))
        return unstopped

    def _log_stopped(self, step: Unload, because: Sequence[Verdict], term: Term) -> None:
        self._decision_log.moved(
            "would_unload",
            step.bundle,
            step.reason,
            epoch=term.epoch,
            source=step.source,
            destination=step.destination,
            because=because,
            acted=False,
        )

    def _begin(self, steps: _Steps) -> None:
        self.brokers_shed += len({step.source for step, _ in steps})
        task = asyncio.create_task(self._carry_out(steps, self._batch), name=f"moves of round {self.rounds}")
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)

    async def _carry_out(self, steps: _Steps, batch: Batch) -> None:
        try:
            await self._executor.execute_all(steps, batch)
        except Exception:
            self.rounds_failed += 1
            log.exception("moves_of_shedding_round_failed")
        self._planner.churn.memory_changed.set()


def _select_own(step: Unload, stops: Sequence[Verdict]) -> Sequence[Verdict]:
    """Return the verdicts that stop this step alone: those for the whole round are logged once."""
    return [stop for stop in stops if stop.subject == step.bundle]
