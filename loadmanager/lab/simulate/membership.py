"""Membership of simulated brokers: they register, drain, leave, fail and return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import OwnershipState, Registration
from loadmanager.core.domain.plan import Plan
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.protocol import drain_machine
from loadmanager.core.protocol.drain_machine import (
    BeginMove,
    BringHome,
    DrainMachine,
    DrainPlanned,
    EndDrain,
    EndReturn,
    GiveAway,
    MoveEnded,
    TriedToEnd,
)
from loadmanager.core.protocol.move_machine import Outcome, WithdrawMove
from loadmanager.core.protocol.reconciler import (
    Action,
    AssignBundles,
    Event,
    ReconcilerMachine,
    RecordsScanned,
    ScanRecords,
)
from loadmanager.core.protocol.state_machine import Signal, Write
from loadmanager.lab.simulate.fleet_events import BrokerSpec
from loadmanager.lab.simulate.sim_brokers import SimBroker
from loadmanager.lab.simulate.sim_execution import Leader, Lookups, SimExecutor
from loadmanager.lab.simulate.world_state import SimDriver, WorldState


class Membership:
    """Registrations of brokers. `send` sends a broker's first report to the leader; `on_end` is called when a
    registration has ended.
    """

    def __init__(
        self,
        state: WorldState,
        lookups: Lookups,
        rng: np.random.Generator,
        send: Callable[[SimBroker, BrokerReport], None],
        on_end: Callable[[], None],
    ) -> None:
        self._state = state
        self._lookups = lookups
        self._rng = rng
        self._send = send
        self._on_end = on_end
        self._incarnations = 0
        self._gone: list[Registration] = []
        """Ended registrations that may still own bundles."""
        machine = ReconcilerMachine(state, self._bundles_of, least_pause_s=0.0)
        self._driver = SimDriver(state.agenda, machine, self._do, self._look)

    def add(self, spec: BrokerSpec) -> SimBroker:
        """Add and register a new broker, without a report."""
        rules = self._state.rules
        phase_s, pause_s = (self._rng.random(2) * [rules.stats_interval_s, rules.report_check_s]).tolist()
        broker = self._state.fleet.add(spec, phase_s, pause_s)
        self._register(broker)
        return broker

    def join(self, spec: BrokerSpec) -> None:
        """Add and register a new broker, with its first report."""
        broker = self.add(spec)
        self._send(broker, self._state.fleet.first_report(broker, self._state.agenda.now_s))

    def crash(self, broker_id: BrokerId, down_s: float | None = None) -> None:
        """Stop a broker that stays registered until its session ends; it returns after `down_s`."""
        broker = self._state.fleet.find(broker_id)
        if broker is None or not broker.is_up or broker.registration is None:
            return
        self._stop_serving(broker)
        agenda = self._state.agenda
        agenda.after(self._state.rules.session_timeout_s, partial(self._session_ended, broker.registration))
        if down_s is not None:
            agenda.after(down_s, partial(self.come_back, broker_id))

    def leave(self, broker_id: BrokerId) -> None:
        """Stop a broker and end its registration."""
        broker = self._state.fleet.find(broker_id)
        if broker is not None and broker.registration is not None:
            self._stop_serving(broker)
            self._session_ended(broker.registration)

    def come_back(self, broker_id: BrokerId) -> None:
        """Register a stopped broker again, without bundles."""
        broker = self._state.fleet.find(broker_id)
        if broker is None or broker.is_up:
            return
        if broker.registration is not None:
            self._session_ended(broker.registration)
        self._register(broker)
        self._send(broker, self._state.fleet.first_report(broker, self._state.agenda.now_s))
        self.sweep()

    def sweep(self) -> None:
        """Reconcile bundles of ended registrations."""
        self._driver.step(Signal.MEMBERSHIP)
        self._look()

    def _look(self) -> None:
        """Run the reconciler; then clients look up the bundles of ended registrations that are not held."""
        rows = self._rows_of(self._gone)
        self._driver.step(Signal.TIME)
        self._gone = [ended for ended in self._gone if self._state.table.rows_owned_by(ended)]
        self._lookups.ask(row for row in rows if self._lookups.needs_owner(row))

    def _do(self, action: Action) -> Event | None:
        match action:
            case ScanRecords():
                return RecordsScanned((), self._gone)
            case Write():
                return self._state.write(action)
            case AssignBundles(bundles):
                self._lookups.place(bundles)
        return None  # nothing to resume: there is only one leader

    def _bundles_of(self, owners: Iterable[Registration]) -> list[str]:
        table = self._state.table
        rows = self._rows_of(owners)
        return [table.names[row] for row in rows if table.ownership(row).state is OwnershipState.OWNED]

    def _rows_of(self, owners: Iterable[Registration]) -> list[int]:
        return [row for owner in owners for row in self._state.table.rows_owned_by(owner)]

    def _register(self, broker: SimBroker) -> None:
        self._incarnations += 1
        registration = Registration(broker.spec.id, self._incarnations)
        self._state.registrations[registration.broker] = registration
        broker.begin(registration, self._state.agenda.now_s)

    def _stop_serving(self, broker: SimBroker) -> None:
        broker.is_up = False
        self._state.serve(np.flatnonzero(self._state.table.serving == broker.number).tolist(), None)

    def _session_ended(self, registration: Registration) -> None:
        state = self._state
        if not state.is_registered(registration):
            return
        del state.registrations[registration.broker]
        state.reports.pop(registration, None)
        state.model.remove_broker(registration.broker)
        state.report_validator.forget(registration.broker)
        broker = state.fleet.find(registration.broker)
        if broker is not None:
            broker.registration = None
        self._gone.append(registration)
        self._on_end()
        self.sweep()


class SimDrainer:
    """Driver of the drain machine; decisions and writes complete at once.

    `on_empty` is called at each pass with each drained broker that owns no bundle.
    """

    def __init__(
        self, state: WorldState, leader: Leader, executor: SimExecutor, on_empty: Callable[[BrokerId], None]
    ) -> None:
        self._state = state
        self._leader = leader
        self._executor = executor
        self._on_empty = on_empty
        drains = DrainMachine(
            lambda: state.controls,
            state,
            state.process_of,
            lambda: state.rules.max_concurrent_unloads,
        )
        self._driver = SimDriver(state.agenda, drains, self._do, self._look)

    def changed(self) -> None:
        """Step the machine after a change of the controls, or after the end of a registration."""
        self._driver.step(Signal.CHANGED)

    def _look(self) -> None:
        state = self._state
        for broker in sorted(state.controls.draining.keys() & state.registrations.keys()):
            if not state.table.rows_owned_by(state.registrations[broker]):
                self._on_empty(broker)
        self._driver.step(Signal.TIME)

    def _do(self, action: drain_machine.Action) -> drain_machine.Event | None:
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
