"""What becomes of a decision: unloads with their turns and pauses, and free bundles that clients look up again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from loadmanager.core.ownership import (
    FREE,
    Ownership,
    OwnershipState,
    Registration,
    abandon,
    assign,
    complete,
    release,
    retarget,
)
from loadmanager.core.plan import Assign, Reason, Unload, Verdict
from loadmanager.sim.leading import Leader
from loadmanager.sim.result import Move
from loadmanager.sim.scene import Scene
from loadmanager.sim.turns import Turn, Turns

_PAUSE_S = 2.0
"""Before an owner that does not answer is asked again, or a place for a bundle is looked for that had none."""


class Lookups:
    """Free bundles get an owner when clients come back for them: those that wait at one moment are one batch."""

    def __init__(self, scene: Scene, leader: Leader) -> None:
        self._scene = scene
        self._leader = leader
        self._waiting: dict[int, None] = {}
        self._is_due = False
        self.placements = 0

    def ask(self, rows: Iterable[int], delay_s: float | None = None) -> None:
        """Clients will look these bundles up."""
        self._waiting.update(dict.fromkeys(rows))
        if self._waiting and not self._is_due:
            self._is_due = True
            self._scene.agenda.after(self._scene.rules.lookup_s if delay_s is None else delay_s, self._place)

    def give(self, steps: Iterable[tuple[int, Registration]], reason: Reason) -> None:
        """Commit that these brokers own bundles that nobody has, or whose owner is gone."""
        scene = self._scene
        stamp, changes = scene.stamp(reason.value), dict[int, Ownership]()
        by_owner: dict[Registration, list[int]] = {}
        for row, destination in steps:
            free = Ownership(state=FREE.state, version=scene.table.ownership(row).version)
            changes[row] = assign(free, destination, stamp)
            by_owner.setdefault(destination, []).append(row)
        scene.table.commit(changes)
        for destination, rows in by_owner.items():
            scene.serve(rows, destination)
        self.placements += len(changes)

    def _place(self) -> None:
        scene, table = self._scene, self._scene.table
        self._is_due = False
        rows = [row for row in self._waiting if table.ownership(row).state is OwnershipState.FREE]
        self._waiting.clear()
        if not rows:
            return
        plan = self._leader.place([table.names[row] for row in rows])
        scene.judged("assign", plan.verdicts)
        placed = [
            (row, step.destination)
            for step in plan.steps
            if isinstance(step, Assign) and (row := table.row_of(step.bundle)) is not None
        ]
        self.give([(row, to) for row, to in placed if scene.is_registered(to)], Reason.LOOKUP)
        self.ask([row for row in rows if table.ownership(row).state is OwnershipState.FREE], _PAUSE_S)


class Executor:
    """Carries out unloads as the live executor does; `moves` are those that were completed."""

    def __init__(self, scene: Scene, leader: Leader, lookups: Lookups) -> None:
        self._scene = scene
        self._leader = leader
        self._lookups = lookups
        self._turns = Turns(scene.rules)
        self.moves: list[Move] = []

    def execute_all(self, steps: Sequence[Unload], on_end: Callable[[], None]) -> None:
        """Carry out the steps in their order as far as the limits allow; `on_end` is called after the last one."""
        left = len(steps)
        if not left:
            on_end()
            return

        def ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                on_end()

        for step in steps:
            self._turns.wait(Turn(step, ended))
        self._begin_next()

    def _begin_next(self) -> None:
        while (turn := self._turns.take_next()) is not None:
            self._begin(turn)

    def _begin(self, turn: Turn) -> None:
        """Commit the release, unless the step no longer fits what is true."""
        scene, step = self._scene, turn.step
        row = scene.table.row_of(step.bundle)
        current = FREE if row is None else scene.table.ownership(row)
        has_left = step.destination is not None and not scene.is_registered(step.destination)
        if row is None or current.state is not OwnershipState.OWNED or current.owner != step.source or has_left:
            self._end(turn)
            return
        released = release(current, step.destination, scene.stamp(step.reason.value))
        scene.table.commit({row: released})
        scene.serve([row], None)
        deadline_s = scene.agenda.now_s + scene.rules.unload_deadline_s
        scene.agenda.after(scene.rules.unload_s, partial(self._finish, turn, row, released, deadline_s))

    def _finish(self, turn: Turn, row: int, released: Ownership, deadline_s: float) -> None:
        """The owner has let go, or is gone; one that crashed and is registered still is asked until the deadline."""
        scene = self._scene
        if scene.is_registered(released.owner) and scene.find_serving(released.owner) is None:
            if scene.agenda.now_s + _PAUSE_S <= deadline_s:
                scene.agenda.after(_PAUSE_S, partial(self._finish, turn, row, released, deadline_s))
                return
            scene.table.commit({row: abandon(released, scene.stamp(released.reason))})
            scene.judged("shed", [Verdict(turn.step.bundle, Reason.UNLOAD_FAILED, acted=True)])
        else:
            self._complete(turn.step, row, released)
        self._end(turn)
        self._begin_next()

    def _complete(self, step: Unload, row: int, released: Ownership) -> None:
        scene = self._scene
        destination = released.destination if scene.is_registered(released.destination) else None
        done = complete(retarget(released, destination), scene.stamp(released.reason))
        scene.table.commit({row: done})
        scene.model.mark_unloaded(step.bundle, scene.now_s, step.source.broker)
        is_own, is_return = self._leader.moved(step, done.owner)
        source = scene.find_serving(step.source)
        if source is not None:
            source.has_unloaded = True
        if done.owner is None:
            self._lookups.ask([row])
        else:
            scene.serve([row], done.owner)
        self.moves.append(self._move(step, row, done, is_own=is_own, is_return=is_return))

    def _move(self, step: Unload, row: int, done: Ownership, *, is_own: bool, is_return: bool) -> Move:
        scene, loads = self._scene, self._scene.loads
        load, total = float(loads.load[row, 2] + loads.load[row, 3]), loads.total_throughput
        return Move(
            scene.agenda.now_s,
            step.bundle,
            step.source.broker,
            None if done.owner is None else done.owner.broker,
            step.reason,
            load / total if total > 0 else 0.0,
            load,
            int(loads.sessions[row]),
            is_own=is_own,
            is_return=is_return,
        )

    def _end(self, turn: Turn) -> None:
        self._turns.end(turn)
        turn.on_end()
