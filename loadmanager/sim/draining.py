"""Carries out what `loadmanager.core.leading.drains` says, in a world: a decision and a write are done at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from loadmanager.core.leading.drains import (
    BeginMove,
    BringHome,
    Drains,
    EndDrain,
    Event,
    GiveAway,
    MoveEnded,
    Planned,
    TriedToEnd,
    WithdrawMove,
)
from loadmanager.core.leading.moves import Outcome
from loadmanager.core.leading.signal import Signal
from loadmanager.core.names import BrokerId
from loadmanager.core.ownership import Registration
from loadmanager.core.plan import Plan
from loadmanager.sim.executing import SimExecutor
from loadmanager.sim.leading import Leader
from loadmanager.sim.scene import Scene


class SimDrainer:
    """`on_empty` is told of each broker that is drained and owns nothing, at each look."""

    def __init__(
        self, scene: Scene, leader: Leader, executor: SimExecutor, on_empty: Callable[[BrokerId], None]
    ) -> None:
        self._scene = scene
        self._leader = leader
        self._executor = executor
        self._on_empty = on_empty
        self._drains = Drains(
            lambda: scene.controls, scene.registrations.get, self._owner_of, lambda: scene.rules.max_concurrent_unloads
        )
        self._alarm_s: float | None = None

    def changed(self) -> None:
        """The controls are others, or a registration has ended."""
        self._step(Signal.CHANGED)

    def _owner_of(self, bundle: str) -> Registration | None:
        row = self._scene.table.row_of(bundle)
        return None if row is None else self._scene.table.ownership(row).owner

    def _look(self, alarm_s: float) -> None:
        if alarm_s != self._alarm_s:
            return  # another look was wanted since
        self._alarm_s = None
        scene = self._scene
        for broker in sorted(scene.controls.draining.keys() & scene.registrations.keys()):
            if not scene.table.rows_owned_by(scene.registrations[broker]):
                self._on_empty(broker)
        self._step(Signal.TIME)

    def _step(self, event: Event) -> None:
        for instruction in self._drains.step(event, self._scene.agenda.now_s):
            match instruction:
                case GiveAway(brokers, most, leave):
                    self._decided(self._leader.drain(brokers, most, leave))
                case BringHome(_, leave):
                    self._decided(self._leader.bring_home(leave))
                case BeginMove(step):
                    self._executor.execute(step, partial(self._move_ended, step.bundle))
                case WithdrawMove(bundle):
                    self._executor.withdraw(bundle)
                case EndDrain(broker, since_s):
                    self._scene.set_controls(self._scene.controls.without_drain(broker, since_s))
                    self._step(TriedToEnd(broker))
        self._set_alarm()

    def _set_alarm(self) -> None:
        wake_s = self._drains.wake_s
        if wake_s is not None and wake_s != self._alarm_s:
            self._alarm_s = wake_s
            self._scene.agenda.put(wake_s, partial(self._look, wake_s))

    def _decided(self, plan: Plan) -> None:
        self._scene.judged("drain", plan.verdicts)
        self._step(Planned(plan))

    def _move_ended(self, bundle: str, outcome: Outcome) -> None:
        self._step(MoveEnded(bundle, outcome))
