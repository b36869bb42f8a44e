"""Gives away what draining brokers own, and brings pinned bundles to their brokers, as the controls say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from loadmanager.core.names import BrokerId
from loadmanager.core.plan import Plan, Unload
from loadmanager.sim.executing import Executor
from loadmanager.sim.leading import Leader
from loadmanager.sim.scene import Scene

_PAUSE_S = 1.0
_REST_S = 5.0
"""How long a bundle is left alone that did not leave its broker, or that no other broker may own."""


class Drains:
    """Rounds go on for as long as there is something to give away; `on_empty` is told of each drained broker."""

    def __init__(self, scene: Scene, leader: Leader, executor: Executor, on_empty: Callable[[BrokerId], None]) -> None:
        self._scene = scene
        self._leader = leader
        self._executor = executor
        self._on_empty = on_empty
        self._moving: set[str] = set()
        self._resting: dict[str, float] = {}
        self._is_due = False

    def wake(self) -> None:
        """The controls are others, or a broker is: look at them now, and from then on."""
        if not self._is_due:
            self._is_due = True
            self._scene.agenda.after(0.0, self._round)

    def _round(self) -> None:
        scene = self._scene
        self._is_due = False
        draining = sorted(broker for broker in scene.controls.draining if broker in scene.registrations)
        for broker in [each for each in draining if not scene.table.rows_owned_by(scene.registrations[each])]:
            self._on_empty(broker)
        draining = [broker for broker in draining if broker in scene.registrations]
        window = 2 * scene.rules.max_concurrent_unloads
        if len(self._moving) <= window // 2:
            now_s = scene.agenda.now_s
            self._resting = {bundle: until_s for bundle, until_s in self._resting.items() if until_s > now_s}
            if draining:
                leave = self._moving | self._resting.keys()
                self._begin(self._leader.drain(draining, window - len(self._moving), leave))
            leave = self._moving | self._resting.keys()
            if any(
                bundle not in leave and self._is_astray(bundle, home) for bundle, home in scene.controls.pinned.items()
            ):
                self._begin(self._leader.bring_home(leave))
        if draining or scene.controls.pinned:
            self._is_due = True
            scene.agenda.after(_PAUSE_S, self._round)

    def _is_astray(self, bundle: str, home: BrokerId) -> bool:
        """Whether a pinned bundle could be brought home: another broker owns it."""
        row = self._scene.table.row_of(bundle)
        owner = None if row is None else self._scene.table.ownership(row).owner
        return owner is not None and owner.broker != home and home in self._scene.registrations

    def _begin(self, plan: Plan) -> None:
        self._scene.judged("drain", plan.verdicts)
        for verdict in plan.verdicts:
            if not verdict.acted:
                self._resting[verdict.subject] = self._scene.agenda.now_s + _REST_S
        for step in plan.steps:
            if isinstance(step, Unload):
                self._moving.add(step.bundle)
                self._executor.execute_all([step], partial(self._ended, step.bundle))

    def _ended(self, bundle: str) -> None:
        self._moving.discard(bundle)
