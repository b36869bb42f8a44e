"""Virtual time, and the shared state of a simulation: bundles, brokers, and the leader's model."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
)
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.report_validation import ReportValidator
from loadmanager.core.protocol.state_machine import Machine, Signal, Write, WriteEnded
from loadmanager.lab.simulate.reconnections import Clients
from loadmanager.lab.simulate.run_rules import CostModel, WorldRules
from loadmanager.lab.simulate.sim_brokers import SimBroker, SimFleet
from loadmanager.lab.simulate.sim_bundles import EPOCH, BundleTable, SimLoads
from loadmanager.lab.simulate.workload import Workload


class Agenda:
    """Event queue. Actions at the same time run in the order of their calls of `put`.

    `now_s` is the current time: it stands still during an action, then jumps to the next one.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def put(self, at_s: float, action: Callable[[], None]) -> None:
        """Schedule an action at that time, or now if the time has passed."""
        heapq.heappush(self._entries, (max(at_s, self.now_s), self._count, action))
        self._count += 1

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.put(self.now_s + delay_s, action)

    def run_until(self, end_s: float) -> None:
        """Run all actions up to that time, then set the clock to it."""
        while self._entries and self._entries[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self._entries)
            action()
        self.now_s = end_s


_Event = TypeVar("_Event")
_Action = TypeVar("_Action")


class SimDriver(Generic[_Event, _Action]):
    """Steps a state machine. `do` executes an action, and returns the resulting event if it completes at once; `wake`
    is called at the machine's `wake_s`, by default to step it with `Signal.TIME`.
    """

    def __init__(
        self,
        agenda: Agenda,
        machine: Machine[_Event | Signal, _Action],
        do: Callable[[_Action], _Event | None],
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._agenda = agenda
        self._machine = machine
        self._do = do
        self._wake = wake or partial(self.step, Signal.TIME)
        self._alarm_s: float | None = None

    def step(self, event: _Event | Signal) -> None:
        for action in self._machine.step(event, self._agenda.now_s):
            following = self._do(action)
            if following is not None:
                self.step(following)
        wake_s = self._machine.wake_s
        if wake_s is not None and wake_s != self._alarm_s:
            self._alarm_s = wake_s
            self._agenda.put(wake_s, partial(self._ring, wake_s))

    def _ring(self, alarm_s: float) -> None:
        if alarm_s == self._alarm_s:  # the alarm was not replaced
            self._alarm_s = None
            self._wake()


START_S = 1_700_000_000.0
"""Start of every simulation, in seconds since 1970; not 0, because decisions treat the time 0 as none."""


class WorldState:
    """Shared state, with counters: verdicts by decision, and the seconds of bundles without service."""

    def __init__(self, workload: Workload, settings: PlannerSettings, rules: WorldRules, cost: CostModel) -> None:
        self.agenda = Agenda()
        self.settings = settings
        self.rules = rules
        self.cost = cost
        self.model = ClusterModel(settings)
        self.table = BundleTable(workload, self.model)
        self.clients = Clients(rules)
        self.fleet = SimFleet(cost, rules, settings.resource_weights, START_S)
        self.report_validator = ReportValidator()
        self.registrations: dict[BrokerId, Registration] = {}
        self.reports: dict[Registration, BrokerReport] = {}
        """The last report of each broker that the leader has read."""
        self.controls = Controls()
        self._loads: SimLoads | None = None
        self.verdicts: Counter[tuple[str, Reason, bool]] = Counter()
        self.unowned = 0
        """Number of bundles that no broker serves."""
        self._step_s = 0.0
        self._unowned_bundle_s = 0.0
        self._counted_until_s = 0.0

    @property
    def now_s(self) -> float:
        """Wall-clock time for the planner, seconds since 1970."""
        return START_S + self.agenda.now_s

    @property
    def loads(self) -> SimLoads:
        """Loads of the current step for the current bundles, without the backlog of clients."""
        if self._loads is None:
            self._loads = self.table.loads_at(self._step_s)
        return self._loads

    def backlog(self) -> float:
        """Return the bytes that clients have buffered because their bundle has no owner."""
        return float((self.loads.throughput() * self.clients.waiting_s(len(self.table), self.agenda.now_s)).sum())

    def stamp(self, reason: str) -> Stamp:
        return Stamp(EPOCH, round(self.now_s * 1000), reason)

    def is_registered(self, registration: Registration | None) -> bool:
        return registration is not None and self.registrations.get(registration.broker) == registration

    def holds(self) -> dict[BrokerId, float]:
        """Return the brokers that are held off, with the seconds until their bundles stop waiting for them."""
        return self.controls.holds(self.now_s)

    def find_ownership(self, bundle: str) -> Ownership | None:
        """Return the ownership of a bundle; None if the bundle does not exist."""
        row = self.table.row_of(bundle)
        return None if row is None else self.table.ownership(row)

    def write(self, action: Write) -> WriteEnded:
        """Execute the write at once. Afterwards owners serve their bundles; other bundles in it are not served."""
        stamp, made = self.stamp(action.reason), dict[str, Ownership | Exception]()
        changes, by_owner = dict[int, Ownership](), dict[Registration | None, list[int]]()
        for bundle, transition in action.transitions.items():
            try:
                row = self._get_row(bundle)
                made[bundle] = changes[row] = transition(self.table.ownership(row), stamp)
            except IllegalTransitionError as error:
                made[bundle] = error
            else:
                owner = changes[row].owner if changes[row].state is OwnershipState.OWNED else None
                by_owner.setdefault(owner, []).append(row)
        self.table.commit(changes)
        for owner, rows in by_owner.items():
            self.serve(rows, owner)
        return WriteEnded(action, made)

    def _get_row(self, bundle: str) -> int:
        row = self.table.row_of(bundle)
        if row is None:
            raise IllegalTransitionError(f"{bundle} is no more")
        return row

    def find_serving(self, registration: Registration | None) -> SimBroker | None:
        """Return the broker if it is up with this registration, else None."""
        broker = None if registration is None else self.fleet.find(registration.broker)
        return broker if broker is not None and broker.is_up and broker.registration == registration else None

    def set_controls(self, controls: Controls) -> None:
        """Replace the controls; times in seconds since 1970."""
        self.controls = controls
        self.model.set_controls(controls)

    def process_of(self, broker: BrokerId) -> int:
        """Return the process of a registered broker, 0 for others. Each registration counts as a new process."""
        registration = self.registrations.get(broker)
        return 0 if registration is None else registration.incarnation

    def begin_drain(self, broker: BrokerId) -> None:
        order = DrainOrder(self.now_s, self.process_of(broker))
        self.set_controls(replace(self.controls, draining={broker: order, **self.controls.draining}))

    def count_verdicts(self, asked: str, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            self.verdicts[asked, verdict.verdict, verdict.acted] += 1

    def serve(self, rows: Sequence[int], registration: Registration | None) -> None:
        """Have this registration serve the bundles if its broker is up; otherwise they are not served."""
        if not len(rows):
            return
        self.unowned_bundle_s()
        broker, own = self.find_serving(registration), np.asarray(rows)
        unserved = self.table.serving[own] < 0
        before = int(np.count_nonzero(unserved))
        if broker is None:
            self.clients.unserved(own[~unserved], self.agenda.now_s)
        else:
            come = own[unserved]
            self.clients.served(come, self.loads.sessions[come], broker.number, self.agenda.now_s)
        self.table.serve(rows, -1 if broker is None else broker.number)
        self.unowned += (len(rows) if broker is None else 0) - before

    def created(self, bundles: int) -> None:
        """Count new bundles without service."""
        self.unowned_bundle_s()
        self.unowned += bundles
        self._loads = None

    def split_up(self, rows: Sequence[int]) -> None:
        """Update clients and counters after a split into these rows."""
        self.clients.divided(np.asarray(rows))
        self.created(len(rows) - 1 if self.table.serving[rows[0]] < 0 else 0)

    def begin_step(self) -> None:
        """Use the load of the current time until the next step begins."""
        self._step_s = self.agenda.now_s
        self._loads = None

    def unowned_bundle_s(self) -> float:
        """Return the sum over bundles of the seconds without service, up to now."""
        self._unowned_bundle_s += self.unowned * (self.agenda.now_s - self._counted_until_s)
        self._counted_until_s = self.agenda.now_s
        return self._unowned_bundle_s
