"""Brokers register, leave, fail and come back; their bundles become free, or wait for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from loadmanager.core.load import BrokerReport
from loadmanager.core.names import BrokerId
from loadmanager.core.ownership import OwnershipState, Registration, owner_gone
from loadmanager.core.reasons import OwnershipReason, PlacementReason
from loadmanager.sim.brokers import Broker
from loadmanager.sim.executing import Lookups
from loadmanager.sim.fleet import BrokerSpec
from loadmanager.sim.scene import Scene

_SOON_S = 0.05


class Membership:
    """Who is registered. `send` has a broker's first report on its way to the leader, `on_end` is told when a
    registration has ended.
    """

    def __init__(
        self,
        scene: Scene,
        lookups: Lookups,
        rng: np.random.Generator,
        send: Callable[[Broker, BrokerReport], None],
        on_end: Callable[[], None],
    ) -> None:
        self._scene = scene
        self._lookups = lookups
        self._rng = rng
        self._send = send
        self._on_end = on_end
        self._incarnations = 0
        self._orphaned: list[Registration] = []

    def add(self, spec: BrokerSpec) -> Broker:
        """A broker that there was not before, registered; it has not reported."""
        rules = self._scene.rules
        phase_s, pause_s = (self._rng.random(2) * [rules.stats_interval_s, rules.report_check_s]).tolist()
        broker = self._scene.fleet.add(spec, phase_s, pause_s)
        self._register(broker)
        return broker

    def join(self, spec: BrokerSpec) -> None:
        """A broker that there was not before registers with its first report."""
        broker = self.add(spec)
        self._send(broker, self._scene.fleet.first_report(broker, self._scene.agenda.now_s))

    def crash(self, broker_id: BrokerId) -> None:
        """It serves nothing any more, and is registered until its session ends."""
        broker = self._scene.fleet.find(broker_id)
        if broker is None or not broker.is_up or broker.registration is None:
            return
        self._stop_serving(broker)
        self._scene.agenda.after(self._scene.rules.session_timeout_s, partial(self._session_ended, broker.registration))

    def leave(self, broker_id: BrokerId) -> None:
        """It serves nothing any more, and its registration ends."""
        broker = self._scene.fleet.find(broker_id)
        if broker is not None and broker.registration is not None:
            self._stop_serving(broker)
            self._session_ended(broker.registration)

    def come_back(self, broker_id: BrokerId) -> None:
        """A broker that is gone registers again, with nothing."""
        broker = self._scene.fleet.find(broker_id)
        if broker is None or broker.is_up:
            return
        if broker.registration is not None:
            self._session_ended(broker.registration)
        self._register(broker)
        self._send(broker, self._scene.fleet.first_report(broker, self._scene.agenda.now_s))
        self.sweep()

    def sweep(self) -> None:
        """Free the bundles of registrations that have ended; those of a broker that is held off wait for it."""
        scene = self._scene
        waiting = []
        for ended in self._orphaned:
            hold_s = scene.controls.find_hold(ended.broker, scene.now_s)
            rows = [row for row in scene.table.rows_owned_by(ended) if self._is_owned(row)]
            if not rows:
                continue
            if hold_s is None:
                stamp = scene.stamp(OwnershipReason.OWNER_GONE.value)
                scene.table.commit({row: owner_gone(scene.table.ownership(row), stamp) for row in rows})
                self._lookups.ask(rows)
            elif ended.broker in scene.registrations:
                back = scene.registrations[ended.broker]
                self._lookups.give([(row, back) for row in rows], PlacementReason.HELD_FOR_OWNER)
            else:
                waiting.append(ended)
                scene.agenda.after(hold_s + _SOON_S, self.sweep)
        self._orphaned = waiting

    def _is_owned(self, row: int) -> bool:
        return self._scene.table.ownership(row).state is OwnershipState.OWNED

    def _register(self, broker: Broker) -> None:
        self._incarnations += 1
        registration = Registration(broker.spec.id, self._incarnations)
        self._scene.registrations[registration.broker] = registration
        broker.begin(registration, self._scene.agenda.now_s)

    def _stop_serving(self, broker: Broker) -> None:
        broker.is_up = False
        self._scene.serve(np.flatnonzero(self._scene.table.serving == broker.number).tolist(), None)

    def _session_ended(self, registration: Registration) -> None:
        scene = self._scene
        if not scene.is_registered(registration):
            return
        del scene.registrations[registration.broker]
        scene.reports.pop(registration, None)
        scene.model.remove_broker(registration.broker)
        scene.gate.forget(registration.broker)
        broker = scene.fleet.find(registration.broker)
        if broker is not None:
            broker.registration = None
        self._orphaned.append(registration)
        self._on_end()
        self.sweep()
