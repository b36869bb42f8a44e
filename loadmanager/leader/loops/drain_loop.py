"""Driver of `loadmanager.core.protocol.drain_machine`, with the planner service, the executor and the operator
controls.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import structlog

from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import IllegalTransitionError, Registration
from loadmanager.core.domain.plan import Unload, Verdict
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.protocol import drain_machine
from loadmanager.core.protocol.drain_machine import (
    Action,
    BeginMove,
    BringHome,
    Drain,
    DrainMachine,
    DrainPlanned,
    EndDrain,
    EndReturn,
    Event,
    GiveAway,
    MoveEnded,
    TriedToEnd,
)
from loadmanager.core.protocol.move_machine import Expected, Failed, Moved, Outcome, StaleStepError, WithdrawMove
from loadmanager.core.protocol.state_machine import Signal, do_all
from loadmanager.errors import BrokerNotFoundError, ConflictError, LoadManagerError
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.election.config_writer import ConfigWriter
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.util.timed_wait import wait_at_most
from loadmanager.wire.plan_bodies import BlockedBundle, DrainProgress

log = structlog.get_logger(__name__)

_SHOWN_BLOCKED = 20


class DrainLoop:
    """Runs drains, and returns bundles afterwards. `refusal`, unless empty, is the reason to refuse all drains."""

    def __init__(
        self,
        mirror: ClusterMirror,
        planner: PlannerService,
        executor: Executor,
        operators: ConfigWriter,
        decision_log: DecisionLog,
        live: LiveSettings,
        refusal: str = "",
    ) -> None:
        self._refusal = refusal
        self._mirror = mirror
        self._planner = planner
        self._executor = executor
        self._operators = operators
        self._decision_log = decision_log
        self._live = live
        self._wake = asyncio.Event()
        self._work = asyncio.TaskGroup()
        self.forget()

    def forget(self) -> None:
        """Begin a new term with a new state machine."""
        self._drains = DrainMachine(
            lambda: self._controls,
            self._mirror,
            self._mirror.process_of,
            lambda: self._live.current.max_concurrent_unloads,
        )

    @property
    def _controls(self) -> Controls:
        return self._mirror.operator_config.controls

    async def start(self, broker: BrokerId, *, and_return: bool = False) -> DrainProgress:
        """Begin to drain a broker; with `and_return`, its current bundles return after its restart.

        Raises `BrokerNotFoundError`, `NotLeaderError` or a `StoreError`, and `ConflictError` with a `refusal`.
        """
        if self._refusal:
            raise ConflictError(
                f"{broker} cannot be drained: {self._refusal}; a plan of kind drain shows what it would take"
            )
        if broker not in self._controls.draining:
            self._mirror.get_registration(broker)
        ordered = DrainOrder(time.time(), self._mirror.process_of(broker))
        registration = self._mirror.registrations.get(broker)
        bundles = self._mirror.model.bundles_of(registration) if and_return and registration else ()
        await self._operators.update_controls(lambda controls: controls.with_drain(broker, ordered, bundles))
        log.info("drain_begun", broker=broker)
        self._tell(Signal.CHANGED)
        return self.progress(broker)

    async def stop(self, broker: BrokerId) -> None:
        """Stop the drain of a broker and its returns, if any; bundles that have not begun to move stay. Raises
        `NotLeaderError` or a `StoreError`.
        """
        await self._operators.update_controls(lambda controls: controls.without_drain(broker))
        log.info("drain_stopped", broker=broker)
        self._tell(Signal.CHANGED)

    def progress(self, broker: BrokerId) -> DrainProgress:
        """Return the progress of the drain of a broker, registered or not; `BrokerNotFoundError` when there is none."""
        order, now_s = self._controls.draining.get(broker), time.monotonic()
        if order is None and broker in self._controls.returning:
            return self._return_progress(broker)
        if order is None:
            self._mirror.get_registration(broker)
            raise BrokerNotFoundError(f"broker {broker} is not being drained")
        drain = self._drains.find(broker) or Drain(self._registration_of(broker), order.since_s, now_s)
        left, rate = len(self._mirror.model.bundles_of(drain.registration)), drain.rate_per_s(now_s)
        blocked = [BlockedBundle(bundle=bundle, why=why) for bundle, why in self._drains.blocked(drain).items()]
        return DrainProgress(
            broker=broker,
            state=self._drains.state(drain, left),
            since=round(order.since_s * 1000),
            bundles_left=left,
            moved=drain.moved,
            failed=drain.failed,
            rate_per_s=round(rate, 3),
            eta_s=0 if left == 0 else math.ceil(left / rate) if rate > 0 else None,
            blocked=blocked[:_SHOWN_BLOCKED],
        )

    def _return_progress(self, broker: BrokerId) -> DrainProgress:
        order, resting = self._controls.returning[broker], self._drains.blocked(None)
        blocked = [BlockedBundle(bundle=each, why=resting[each]) for each in order.bundles if each in resting]
        return DrainProgress(
            broker=broker,
            state="returning",
            since=round(order.since_s * 1000),
            bundles_left=len(order.bundles),
            moved=0,
            failed=0,
            rate_per_s=0,
            eta_s=None,
            blocked=blocked[:_SHOWN_BLOCKED],
        )

    def bundles_left(self) -> Mapping[BrokerId, int]:
        """Return the number of bundles that each draining broker still owns."""
        draining = sorted(self._controls.draining)
        return {each: len(self._mirror.model.bundles_of(self._registration_of(each))) for each in draining}

    def _registration_of(self, broker: BrokerId) -> Registration:
        """Return the registration of a broker; while it is not registered, one that owns nothing."""
        return self._mirror.registrations.get(broker, Registration(broker, 0))

    async def run(self) -> None:
        """Step the machine every pause, and when woken, for as long as the term lasts."""
        self._context = contextvars.copy_context()  # of the term: a drain outlives its request
        async with asyncio.TaskGroup() as self._work:
            while True:
                if self._mirror.is_fresh:
                    self._tell(Signal.TIME)
                await wait_at_most(self._wake, drain_machine.PAUSE_S)
                self._wake.clear()

    def _tell(self, event: Event) -> None:
        now_s = time.monotonic()
        do_all(self._drains.step(event, now_s), self._do)
        wake_s = self._drains.wake_s
        if wake_s is not None and wake_s <= now_s:
            self._wake.set()

    def _do(self, action: Action) -> None:
        match action:
            case GiveAway() | BringHome():
                self._begin(self._decide(action), "drain")
            case BeginMove(step, because):
                self._begin(self._carry_out(step, because), f"{step.reason.value} {step.bundle}")
            case WithdrawMove(bundle):
                self._executor.withdraw(bundle)
            case EndDrain(broker, since_s):
                self._begin(self._end(broker, since_s), f"end of drain {broker}")
            case EndReturn(broker, bundles):
                self._begin(self._end_return(broker, bundles), f"end of return {broker}")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._work.create_task(work, name=name, context=self._context.copy())

    async def _decide(self, asked: GiveAway | BringHome) -> None:
        try:
            if isinstance(asked, GiveAway):
                plan = await self._planner.drain(asked.brokers, asked.most, asked.leave)
            else:
                plan = await self._planner.bring_home(asked.leave)
            for verdict in plan.verdicts:
                if not verdict.acted:
                    kind = "drain" if isinstance(asked, GiveAway) else "pin"
                    self._decision_log.judged(kind, verdict, epoch=self._mirror.epoch)
        except Exception:
            log.exception("drain_round_failed")
            self._tell(DrainPlanned(None))
        else:
            self._tell(DrainPlanned(plan))

    async def _carry_out(self, step: Unload, because: Sequence[Verdict]) -> None:
        name, check = BundleName.parse_any(step.bundle), Expected(step.source).check
        outcome: Outcome
        try:
            outcome = Moved(await self._executor.unload(name, step.destination, step.reason, because, check))
        except StaleStepError as error:
            log.info("stale_step_refused", bundle=step.bundle, error=str(error))
            outcome = Failed(error)
        except (LoadManagerError, IllegalTransitionError) as error:
            log.warning("bundle_not_drained", bundle=step.bundle, source=str(step.source), error=str(error))
            outcome = Failed(error)
        except Exception as error:
            log.exception("bundle_not_drained", bundle=step.bundle, source=str(step.source))
            outcome = Failed(error)
        self._tell(MoveEnded(step.bundle, outcome))

    async def _end(self, broker: BrokerId, since_s: float) -> None:
        """End a drain after another process of the broker has registered."""
        if await self._update(broker, lambda controls: controls.without_drain(broker, since_s)):
            ended = Verdict(broker, OwnershipReason.DRAIN_ENDED, acted=True)
            self._decision_log.judged("drain", ended, epoch=self._mirror.epoch)
            log.info("drain_ended_with_process", broker=broker)
        self._tell(TriedToEnd(broker))

    async def _end_return(self, broker: BrokerId, bundles: frozenset[str]) -> None:
        await self._update(broker, lambda controls: controls.without_returned(broker, bundles))
        self._tell(TriedToEnd(broker))

    async def _update(self, broker: BrokerId, change: Callable[[Controls], Controls]) -> bool:
        """Change the controls; return False after a failure, which the next pass retries."""
        try:
            await self._operators.update_controls(change)
        except LoadManagerError as error:
            log.warning("drain_not_ended", broker=broker, error=str(error))
        except Exception:
            log.exception("drain_not_ended", broker=broker)
        else:
            return True
        return False
