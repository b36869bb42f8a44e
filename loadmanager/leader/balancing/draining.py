"""Gives away what draining brokers own, and brings pinned bundles to their brokers; the controls say which.

    draining ──▶ bundles move to other brokers, heaviest first ──▶ done: it owns nothing, and is given nothing
        │                                                            │
        └── lifted by an operator, or the registration has ended ◀───┘

The wish is in the controls, which every leader reads, and the record of each bundle says how far its move has come. So
a new leader goes on where the last one stopped; only what was counted starts anew.

A drain is for one life of a broker: it ends with its registration, so that a broker which was stopped after its drain
is given bundles again when it is back. Pinned and frozen bundles leave a draining broker like all others, and pinned
ones come back to it when it is drained no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from loadmanager.core.controls import Controls
from loadmanager.core.leading.moves import Expected, StaleStepError
from loadmanager.core.names import BrokerId, BundleName
from loadmanager.core.ownership import IllegalTransitionError, Registration
from loadmanager.core.plan import Plan, Unload, Verdict
from loadmanager.core.reasons import OwnershipReason
from loadmanager.errors import (
    BrokerNotFoundError,
    ConcurrentModificationError,
    InvalidRecordError,
    LoadManagerError,
    NotLeaderError,
    StoreError,
)
from loadmanager.leader.carrying_out.executor import Executor
from loadmanager.leader.deciding.desk import Desk
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.term.operators import Operators
from loadmanager.wire.plans import BlockedBundle, DrainProgress

log = structlog.get_logger(__name__)

_PAUSE_S = 1.0
_REST_S = 5.0
"""How long a bundle is left alone that did not leave its broker, or that no other broker may own."""

_RATE_WINDOW_S = 60.0
_SHOWN_BLOCKED = 20


@dataclass(slots=True)
class _Drain:
    """One drain since this node leads: what came of it, and why some bundles stay (bundle: why, until when)."""

    registration: Registration
    since_s: float
    began_s: float = field(default_factory=time.monotonic)
    moved: int = 0
    failed: int = 0
    ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=1_000))
    staying: dict[str, tuple[str, float]] = field(default_factory=dict)

    def rate_per_s(self) -> float:
        """Bundles that left it per second, of late."""
        now_s = time.monotonic()
        since_s = max(self.began_s, now_s - _RATE_WINDOW_S)
        recent = sum(end_s > since_s for end_s in self.ends_s)
        return recent / max(now_s - since_s, 0.1)


class Drains:
    """`run` works for as long as the term lasts; `bundles_moved` counts what it moved for drains and pins."""

    def __init__(
        self,
        view: ClusterView,
        desk: Desk,
        executor: Executor,
        operators: Operators,
        journal: Journal,
        live: LiveSettings,
    ) -> None:
        self._view = view
        self._desk = desk
        self._executor = executor
        self._operators = operators
        self._journal = journal
        self._live = live
        self._drains: dict[BrokerId, _Drain] = {}
        self._moving: dict[str, tuple[Unload, asyncio.Task[None]]] = {}
        self._lost: dict[str, float] = {}
        self._wake = asyncio.Event()
        self.bundles_moved = 0

    @property
    def _controls(self) -> Controls:
        return self._view.laid_down.controls

    async def start(self, broker: BrokerId) -> DrainProgress:
        """Begin to drain a broker. Raises `BrokerNotFoundError`, `NotLeaderError` or a `StoreError`."""
        self._view.get_registration(broker)
        since_s = time.time()
        await self._operators.update_controls(
            lambda controls: replace(controls, draining={broker: since_s, **controls.draining})
        )
        log.info("drain_begun", broker=broker)
        self._wake.set()
        return self.progress(broker)

    async def stop(self, broker: BrokerId) -> None:
        """Drain the broker no more, if it was; what was not begun stays. `NotLeaderError` or a `StoreError`."""
        await self._operators.update_controls(lambda controls: _without_drain(controls, broker))
        log.info("drain_stopped", broker=broker)
        self._wake.set()

    def progress(self, broker: BrokerId) -> DrainProgress:
        """How far the drain of a broker is; `BrokerNotFoundError` when there is none."""
        since_s = self._controls.draining.get(broker)
        registration = self._view.registrations.get(broker)
        if since_s is None or registration is None:
            self._view.get_registration(broker)
            raise BrokerNotFoundError(f"broker {broker} is not being drained")
        drain = self._drains.get(broker) or _Drain(registration, since_s)
        left, rate = self._view.model.count_bundles_of(registration), drain.rate_per_s()
        return DrainProgress(
            broker=broker,
            state=self._state(drain, left),
            since=round(since_s * 1000),
            bundles_left=left,
            moved=drain.moved,
            failed=drain.failed,
            rate_per_s=round(rate, 3),
            eta_s=0 if left == 0 else math.ceil(left / rate) if rate > 0 else None,
            blocked=[BlockedBundle(bundle=bundle, why=why) for bundle, (why, _) in sorted(drain.staying.items())][
                :_SHOWN_BLOCKED
            ],
        )

    def _state(self, drain: _Drain, left: int) -> str:
        if left == 0 and not any(step.source == drain.registration for step, _ in self._moving.values()):
            return "done"
        return "blocked" if 0 < left <= len(drain.staying) else "draining"

    def bundles_left(self) -> Mapping[BrokerId, int]:
        """What each draining broker still owns."""
        return {
            broker: self._view.model.count_bundles_of(self._view.registrations[broker])
            for broker in sorted(self._controls.draining)
            if broker in self._view.registrations
        }

    async def run(self) -> None:
        """Look at the controls again and again, and do what they want."""
        self._drains.clear()
        try:
            while True:
                try:
                    await self._round()
                except NotLeaderError:
                    raise
                except Exception:
                    log.exception("drain_round_failed")
                # Not `wait_for`: in Python 3.11 it swallows a cancellation that arrives together with the wake-up.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE_S):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            for _, task in self._moving.values():
                task.cancel()
            self._moving.clear()

    async def _round(self) -> None:
        """End and begin drains as the controls say, and have as many moves under way as make sense."""
        if not self._view.is_fresh:
            return
        await self._follow_controls()
        window = 2 * self._live.current.max_concurrent_unloads
        if len(self._moving) > window // 2:
            return
        leave, most = self._left_alone(), window - len(self._moving)
        if self._drains:
            plan = await self._desk.drain(list(self._drains), most, leave)
            self._begin(plan, "drain", most)
            self._remember_staying(plan)
        if any(self._is_astray(*pin) for pin in self._controls.pinned.items()):
            plan = self._desk.bring_home(leave | self._moving.keys())
            self._begin(plan, "pin", most)
            self._lost |= {v.subject: time.monotonic() + _REST_S for v in plan.verdicts}

    def _is_astray(self, bundle: str, home: BrokerId) -> bool:
        """Whether a pinned bundle could be brought home: another broker owns it, and nobody is looking after it."""
        if bundle in self._moving or bundle in self._lost or home not in self._view.registrations:
            return False
        with contextlib.suppress(LoadManagerError):
            entry, index = self._view.bundle(BundleName.parse(bundle))
            owner = entry.state.ownerships[index].owner
            return owner is not None and owner.broker != home
        return False

    async def _follow_controls(self) -> None:
        for broker, since_s in self._controls.draining.items():
            registration, drain = self._view.registrations.get(broker), self._drains.get(broker)
            if registration is None or (drain is not None and drain.registration != registration):
                await self._end(broker, since_s)
            elif drain is None:
                self._drains[broker] = _Drain(registration, since_s)
        for broker in self._drains.keys() - self._controls.draining.keys():
            del self._drains[broker]
            for bundle, (step, _) in self._moving.items():
                if step.source.broker == broker and step.reason is OwnershipReason.DRAIN:
                    self._executor.withdraw(bundle)

    async def _end(self, broker: BrokerId, since_s: float) -> None:
        """The life of the broker that was to be drained is over; tried again in the next round if need be."""
        try:
            await self._operators.update_controls(
                lambda now: _without_drain(now, broker) if now.draining.get(broker) == since_s else now
            )
        except (StoreError, InvalidRecordError, ConcurrentModificationError) as error:
            log.warning("drain_not_ended", broker=broker, error=str(error))
            return
        self._drains.pop(broker, None)
        self._journal.judged("drain", Verdict(broker, OwnershipReason.DRAIN_ENDED, acted=True), epoch=self._view.epoch)
        log.info("drain_ended_with_registration", broker=broker)

    def _left_alone(self) -> frozenset[str]:
        """Bundles that are on their way, and those that are given a rest."""
        now_s = time.monotonic()
        self._lost = {bundle: until_s for bundle, until_s in self._lost.items() if until_s > now_s}
        resting = {
            bundle
            for drain in self._drains.values()
            for bundle, (_, until_s) in drain.staying.items()
            if until_s > now_s
        }
        return frozenset({*self._moving, *self._lost, *resting})

    def _begin(self, plan: Plan, kind: str, most: int) -> None:
        verdicts = {verdict.subject: verdict for verdict in plan.verdicts}
        for step in [step for step in plan.steps if isinstance(step, Unload)][:most]:
            because = [verdicts[step.bundle]] if step.bundle in verdicts else []
            task = asyncio.create_task(self._carry_out(step, because), name=f"{step.reason} {step.bundle}")
            self._moving[step.bundle] = step, task
        for verdict in plan.verdicts:
            if not verdict.acted:
                self._journal.judged(kind, verdict, epoch=self._view.epoch)

    def _remember_staying(self, plan: Plan) -> None:
        """Why bundles stay, of those that were looked at; nobody looks at them again for a while."""
        now_s, snapshot = time.monotonic(), self._desk.snapshot()
        for drain in self._drains.values():
            drain.staying = {bundle: stay for bundle, stay in drain.staying.items() if stay[1] > now_s}
        for verdict in plan.verdicts:
            row = snapshot.bundles.find_row(verdict.subject)
            if verdict.acted or row is None:
                continue
            holder = int(snapshot.bundles.assigned[row])
            broker = self._drains.get(snapshot.brokers.ids[holder]) if holder >= 0 else None
            if broker is not None:
                broker.staying[verdict.subject] = verdict.sentence(), now_s + _REST_S

    async def _carry_out(self, step: Unload, because: Sequence[Verdict]) -> None:
        drain = self._drains.get(step.source.broker) if step.reason is OwnershipReason.DRAIN else None
        failure: Exception | None = None
        try:
            await self._executor.unload(
                BundleName.parse(step.bundle), step.destination, step.reason, because, Expected(step.source).check
            )
        except StaleStepError as error:
            log.info("stale_step_refused", bundle=step.bundle, error=str(error))
            self._moving.pop(step.bundle, None)  # and nobody woken: planned at once again, it would be as stale
            return
        except (LoadManagerError, IllegalTransitionError) as error:
            log.warning("bundle_not_given_away", bundle=step.bundle, source=str(step.source), error=str(error))
            failure = error
        except Exception as error:
            log.exception("bundle_not_given_away", bundle=step.bundle, source=str(step.source))
            failure = error
        else:
            self.bundles_moved += 1
            if drain is not None:
                drain.moved += 1
                drain.ends_s.append(time.monotonic())
        self._settle(step, drain, failure)

    def _settle(self, step: Unload, drain: _Drain | None, failure: Exception | None) -> None:
        """The bundle is on its way no more: it has moved, or it rests before it is tried again."""
        self._moving.pop(step.bundle, None)
        rest_until_s = time.monotonic() + _REST_S
        if drain is not None:
            drain.staying.pop(step.bundle, None)
            if failure is not None:
                drain.failed += 1
                drain.staying[step.bundle] = str(failure), rest_until_s
        elif failure is not None:
            self._lost[step.bundle] = rest_until_s
        if len(self._moving) <= self._live.current.max_concurrent_unloads:
            self._wake.set()


def _without_drain(controls: Controls, broker: BrokerId) -> Controls:
    draining = {each: since_s for each, since_s in controls.draining.items() if each != broker}
    return replace(controls, draining=draining)
