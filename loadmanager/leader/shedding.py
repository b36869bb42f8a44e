"""When to shed, and what becomes of it: a round every `loadBalancerSheddingIntervalMinutes`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog

from loadmanager.core.plan import Plan, Unload
from loadmanager.errors import NotLeaderError
from loadmanager.leader.election import Election
from loadmanager.leader.executor import Executor
from loadmanager.leader.journal import Journal
from loadmanager.leader.live_settings import LiveSettings
from loadmanager.leader.planning import MINUTE_S, SLICE, Desk, about
from loadmanager.leader.view import ClusterView

log = structlog.get_logger(__name__)


class SheddingLoop:
    """Plans a round of shedding every interval and has its steps carried out."""

    def __init__(
        self,
        desk: Desk,
        executor: Executor,
        election: Election,
        journal: Journal,
        view: ClusterView,
        live: LiveSettings,
    ) -> None:
        self._desk = desk
        self._executor = executor
        self._election = election
        self._journal = journal
        self._view = view
        self._live = live
        self.cycles = 0
        self.cycles_failed = 0
        self.brokers_shed = 0
        self.last_cycle_s = 0.0
        self.strategy_metrics: Mapping[str, float] = {}
        """What the strategy counted and measured in the last round, if it does (see `Plan.metrics`)."""

    async def run(self) -> None:
        """Pause, decide, carry out, for as long as the term lasts; the pause starts after the work ends."""
        while True:
            await self._live.pause(lambda settings: settings.load_balancer_shedding_interval_minutes * MINUTE_S)
            try:
                await self.cycle()
            except NotLeaderError:
                raise
            except Exception:
                self.cycles_failed += 1
                log.exception("shedding_cycle_failed", cycle=self.cycles)

    async def cycle(self) -> Plan:
        """One round of shedding, carried out; in a dry run only explained."""
        started_s = time.monotonic()
        term = self._election.get_term()
        plan = await self._desk.shed()
        self.last_cycle_s = time.monotonic() - started_s
        self.cycles += 1
        self.strategy_metrics = plan.metrics
        steps = [step for step in plan.steps if isinstance(step, Unload)]
        is_dry_run = self._view.laid_down.controls.dry_run
        moving = {step.bundle for step in steps}
        verdicts = {verdict.subject: verdict for verdict in plan.verdicts}
        for said, verdict in enumerate(plan.verdicts):
            if said % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if verdict.subject not in moving:  # the executor says what becomes of those
                self._journal.judged("shed", verdict, epoch=term.epoch)
        log.info(
            "shedding_cycle",
            cycle=self.cycles,
            epoch=term.epoch,
            unloads=len(steps),
            looked_at=len(plan.verdicts),
            dry_run=is_dry_run,
            duration_ms=round(self.last_cycle_s * 1000, 2),
        )
        because = ((step, about(verdicts, step.source.broker, step.bundle)) for step in steps)
        if is_dry_run:
            for step, why in because:
                self._journal.would_move(
                    "would_unload",
                    step.bundle,
                    step.reason,
                    epoch=term.epoch,
                    source=step.source,
                    destination=step.destination,
                    because=why,
                )
            return plan
        self.brokers_shed += len({step.source for step in steps})
        await self._executor.execute_all(because)
        if steps:
            self._desk.churn.memory_changed.set()
        return plan
