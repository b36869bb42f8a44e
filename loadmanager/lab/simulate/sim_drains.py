"""Driver of the drain machine in a simulation. Decisions and writes complete at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Plan
from loadmanager.core.protocol.drain_machine import (
    Action,
    BeginMove,
    BringHome,
    DrainMachine,
    DrainPlanned,
    EndDrain,
    EndReturn,
    Event,
    GiveAway,
    MoveEnded,
    TriedToEnd,
    WithdrawMove,
)
from loadmanager.core.protocol.move_machine import Outcome
from loadmanager.core.protocol.state_machine import Signal
from loadmanager.lab.simulate.sim_execution import Leader, SimExecutor
from loadmanager.lab.simulate.world_state import SimDriver, WorldState


class SimDrainer:
    """Runs drains. `on_empty` is called at each pass with each drained broker that owns no bundle."""

    def __init__(
        self, state: WorldState, leader: Leader, executor: SimExecutor, on_empty: Callable[[BrokerId], None]
    ) -> None:
        self._state = state
        self._leader = leader
        self._executor = executor
        self._on_empty = on_empty
        drains = DrainMachine(
            lambda: state.controls,
            state.registrations.get,
            state.process_of,
            self._owner_of,
            lambda: state.rules.max_concurrent_unloads,
        )
        self._driver = SimDriver(state.agenda, drains, self._do, self._look)

    def changed(self) -> None:
        """Step the machine after a change of the controls, or after the end of a registration."""
        self._driver.step(Signal.CHANGED)

    def _owner_of(self, bundle: str) -> Registration | None:
        current = self._state.find_ownership(bundle)
        return None if current is None else current.owner

    def _look(self) -> None:
        state = self._state
        for broker in sorted(state.controls.draining.keys() & state.registrations.keys()):
            if not state.table.rows_owned_by(state.registrations[broker]):
                self._on_empty(broker)
        self._driver.step(Signal.TIME)

    def _do(self, action: Action) -> Event | None:
        match action:
            case GiveAway(brokers, most, leave):
                return self._on_planned(self._leader.decide("drain", brokers=brokers, most=most, leave=leave))
            case BringHome(_, leave):
                return self._on_planned(self._leader.decide("bring_home", leave=leave))
            case BeginMove(step):
                self._executor.execute(step, partial(self._move_ended, step.bundle))
            case WithdrawMove(bundle):
                self._executor.withdraw(bundle)
            case EndDrain(broker, since_s):
                self._state.set_controls(self._state.controls.without_drain(broker, since_s))
                return TriedToEnd(broker)
            case EndReturn(broker, bundles):
                self._state.set_controls(self._state.controls.without_returned(broker, bundles))
                return TriedToEnd(broker)
        return None

    def _on_planned(self, plan: Plan) -> DrainPlanned:
        self._state.count_verdicts("drain", plan.verdicts)
        return DrainPlanned(plan)

    def _move_ended(self, bundle: str, outcome: Outcome) -> None:
        self._driver.step(MoveEnded(bundle, outcome))
