"""Simulation of a fleet in virtual time: load, reports, decisions and their execution, failures.

    step ──▶ loads ──▶ usage ──▶ reports that are due ──▶ the leader's model
                                                              │
    unload: pause, destination owns ◀── round of shedding ◀───┤
    lookup: one batch of placements ◀── free bundles  ◀───────┘

Loads change, and brokers measure, at the start of a step; everything else happens at its own time. The result depends
only on the arguments: there is one seed, no clock, no I/O, and no dependence on the order of sets.

`reconnections.py` models the cost of a move besides its pause.

Differs from a real fleet: an overloaded broker still serves all its load, and only its reports and figures show the
overload; the only leader never fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.learned_loads import NOTHING_LEARNED, LearnedLoads
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.planning.certificate.plan_certificate import DecidedRound
from loadmanager.core.strategies.placement import placement_strategy
from loadmanager.core.strategies.shedding import shedding_strategy
from loadmanager.core.strategies.splitting import SPECIFIED_POSITIONS, split_algorithm
from loadmanager.lab.simulate.fleet_events import (
    BrokerFallsSick,
    BrokerJoins,
    BrokersCrash,
    BrokerSlows,
    BrokerSpec,
    BrokersRestart,
    BrokersStop,
    Event,
    LeaderElected,
    LoadJumps,
    NamespaceSpec,
    NewNamespace,
    ReportsGoBad,
)
from loadmanager.lab.simulate.membership import Membership, SimDrainer
from loadmanager.lab.simulate.run_rules import CostModel, WorldRules
from loadmanager.lab.simulate.sim_brokers import SimBroker
from loadmanager.lab.simulate.sim_execution import Leader, Lookups, SimExecutor
from loadmanager.lab.simulate.sim_result import FirstReport, Result, StepRecorder
from loadmanager.lab.simulate.sim_splits import SimSplitter
from loadmanager.lab.simulate.workload import Purpose, Workload, generator
from loadmanager.lab.simulate.world_state import WorldState

_DEFAULT_RULES = WorldRules()
_DEFAULT_COST = CostModel()


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run, and the state of its world: see `lab.simulate.sim_result.StepSeries`."""

    t_s: float
    duration_s: float
    imbalance: float
    worst_usage: float
    moves: int


class World:
    """Simulated fleet; it can run only once. The constructor checks names and settings.

    Bundles are never merged, whatever the settings say.

    The rows of the workload are the bundles of `namespaces` in their order, then those of `NewNamespace` events in the
    order of their times. Raises `ValueError` or `UnknownStrategyError`.
    """

    def __init__(
        self,
        brokers: Sequence[BrokerSpec],
        namespaces: Sequence[NamespaceSpec],
        workload: Workload,
        settings: PlannerSettings,
        *,
        rules: WorldRules = _DEFAULT_RULES,
        cost: CostModel = _DEFAULT_COST,
        events: Sequence[Event] = (),
        learned: LearnedLoads = NOTHING_LEARNED,
        seed: int = 0,
    ) -> None:
        self.workload = workload
        self._seed = seed
        self._rules = rules
        restarts = (each.one_by_one() if isinstance(each, BrokersRestart) else (each,) for each in events)
        self._events: list[Event] = sorted(chain.from_iterable(restarts), key=lambda event: event.at_s)
        check_settings(settings)
        _check_names(brokers, namespaces, self._events)
        self._state = WorldState(workload, replace(settings, auto_bundle_merge_enabled=False), rules, cost)
        self._state.fleet.says_health = any(isinstance(event, BrokerFallsSick) for event in events)
        self._leader = Leader(self._state, generator(seed, Purpose.PLANNER))
        self._lookups = Lookups(self._state, self._leader)
        self._executor = SimExecutor(self._state, self._leader, self._lookups)
        self._drains = SimDrainer(self._state, self._leader, self._executor, self._on_drained)
        self._splitter = SimSplitter(self._state, self._leader, self._executor, self._lookups)
        self._recorder = StepRecorder(self._state)
        self._membership = Membership(
            self._state,
            self._lookups,
            generator(seed, Purpose.REPORTS),
            self._send,
            self._registration_ended,
        )
        self._stopping: set[Registration] = set()
        self._first_reports: list[FirstReport] = []
        self._reports = 0
        self._rounds = 0
        self._step_s = self._next_round_s = 0.0
        self._has_run = False
        self._state.model.set_learned(learned)
        self._begin(brokers, namespaces)

    def run(
        self,
        duration_s: float,
        step_s: float = 60.0,
        observe: Callable[[Progress], None] | None = None,
        on_round: Callable[[DecidedRound], None] = lambda _: None,
    ) -> Result:
        """Simulate `duration_s` in steps of `step_s`. `observe` is called after each step, `on_round` with each
        shedding round. Raises `ValueError`.
        """
        if not step_s > 0 or not duration_s >= step_s:
            raise ValueError(f"step_s {step_s}, duration_s {duration_s}: expected a step above 0, and one at the least")
        assert not self._has_run, "a world runs once"
        self._has_run, self._step_s, self._leader.on_round = True, step_s, on_round
        state, agenda = self._state, self._state.agenda
        for event in self._events:
            agenda.put(event.at_s, partial(self._apply, event))
        self._put_round(self._rules.get_first_round_s())
        agenda.put(self._rules.split_interval_s, self._splitter.round)
        steps = int(np.ceil(duration_s / step_s))
        for number in range(steps):
            if number:
                agenda.run_until(number * step_s)
            self._step(is_first=number == 0)
            if observe is not None:
                last = self._recorder.last()
                moves = len(self._executor.moves)
                observe(Progress(agenda.now_s, duration_s, last["imbalance"], last["worst_usage"], moves))
        agenda.run_until(duration_s)
        return Result(
            seed=self._seed,
            step_s=step_s,
            duration_s=duration_s,
            series=self._recorder.series(),
            moves=tuple(self._executor.moves),
            splits=tuple(self._splitter.splits),
            first_reports=tuple(self._first_reports),
            placements=self._lookups.placements,
            rounds=self._rounds,
            unowned_bundle_s=state.unowned_bundle_s(),
            reconnections=state.clients.reconnections,
            bundles=len(state.table),
            verdicts=dict(sorted(state.verdicts.items())),
        )

    def _begin(self, brokers: Sequence[BrokerSpec], namespaces: Sequence[NamespaceSpec]) -> None:
        for spec in brokers:
            self._membership.add(spec)
        for namespace in namespaces:
            self._create(namespace)
        self._drains.changed()

    def _step(self, *, is_first: bool) -> None:
        """Begin a step with its new load. Some brokers measure, and send a report if it is due."""
        state, fleet = self._state, self._state.fleet
        state.begin_step()
        now_s = state.agenda.now_s
        connecting = state.clients.cpu(len(fleet), now_s)
        own = fleet.carried(state.table, state.loads, connecting)
        self._recorder.step(own, self._executor.moves, self._reports)
        self._reports = 0
        measuring = fleet.up() if is_first else fleet.measuring(now_s, self._step_s)
        loads = state.clients.send(state.table, fleet, state.cost, state.loads, own, now_s, self._step_s)
        carried = own if loads is state.loads else fleet.carried(state.table, loads, connecting)
        for broker, report in fleet.report(state.table, loads, fleet.served(carried, now_s), now_s, measuring):
            assert broker.registration is not None, "only brokers that are up report"
            if is_first:
                self._take_in(broker.registration, report)
            else:
                self._send(broker, report, broker.pause_s)

    def _send(self, broker: SimBroker, report: BrokerReport, pause_s: float = 0.0) -> None:
        assert broker.registration is not None, "only brokers that are up report"
        take_in = partial(self._take_in, broker.registration, report)
        self._state.agenda.after(pause_s + self._rules.report_delay_s, take_in)

    def _take_in(self, registration: Registration, report: BrokerReport) -> None:
        """Have the leader read a report, unless the registration has ended."""
        state = self._state
        if not state.is_registered(registration):
            return
        if registration not in state.reports:
            found = FirstReport(state.agenda.now_s, registration.broker, registration.incarnation)
            self._first_reports.append(found)
        self._reports += 1
        state.reports[registration] = report
        most_age_s = state.settings.broker_load_data_ttl_in_seconds
        judged = state.report_validator.judge(registration, report, state.now_s, most_age_s)
        if judged.counts:
            state.model.apply_report(registration, judged.report)

    def _put_round(self, at_s: float) -> None:
        """Schedule the next shedding round, in place of the one scheduled before."""
        self._next_round_s = at_s
        self._state.agenda.put(at_s, partial(self._run_shedding, at_s))

    def _run_shedding(self, at_s: float) -> None:
        """Run a shedding round. Queued steps of the last round are cancelled first, and may be decided again."""
        if at_s != self._next_round_s:
            return
        self._put_round(at_s + self._rules.shedding_interval_s)
        self._executor.cancel_round()
        plan = self._leader.shed()
        self._rounds += 1
        self._state.count_verdicts("shed", plan.verdicts)
        self._executor.begin_round(plan.unloads)

    def _apply(self, event: Event) -> None:
        state, members = self._state, self._membership
        match event:
            case BrokerJoins(broker=spec):
                members.join(spec)
            case BrokersStop(brokers=brokers, drain=drain):
                for broker in brokers:
                    self._stop(broker, drain=drain)
            case BrokersCrash(brokers=brokers, down_s=down_s):
                for broker in brokers:
                    members.crash(broker, down_s)
            case BrokersRestart(brokers=(broker,), down_s=down_s):
                members.leave(broker)
                state.agenda.after(down_s, partial(members.come_back, broker))
            case BrokerSlows(broker=broker, factor=factor):
                state.fleet.set_speed(broker, factor)
            case ReportsGoBad() | BrokerFallsSick():
                state.fleet.afflict(event)
            case NewNamespace() | LoadJumps() | LeaderElected():
                self._apply_to_all(event)

    def _apply_to_all(self, event: NewNamespace | LoadJumps | LeaderElected) -> None:
        """Apply an event that concerns no single broker."""
        state = self._state
        match event:
            case NewNamespace(namespace=namespace):
                self._create(namespace)
            case LoadJumps(bundles=bundles, factor=factor, until_s=until_s):
                state.agenda.put(until_s, state.table.heat(bundles, factor))
            case LeaderElected():
                self._put_round(state.agenda.now_s + self._rules.shedding_interval_s)

    def _stop(self, broker: BrokerId, *, drain: bool) -> None:
        """Stop a broker for an operator; with `drain` only after its drain."""
        registration = self._state.registrations.get(broker)
        if drain and registration is not None:
            self._stopping.add(registration)
            self._state.begin_drain(broker)
            self._drains.changed()
        else:
            self._membership.leave(broker)

    def _registration_ended(self) -> None:
        self._executor.membership_changed()
        self._drains.changed()

    def _on_drained(self, broker: BrokerId) -> None:
        """Stop a drained broker, unless it was drained for another reason."""
        if self._state.registrations[broker] in self._stopping:
            self._membership.leave(broker)

    def _create(self, spec: NamespaceSpec) -> None:
        state = self._state
        rows = state.table.create(spec, state.registrations, state.stamp(OwnershipReason.LOOKUP.value))
        state.created(len(rows))
        free = []
        by_owner: dict[Registration, list[int]] = {}
        for row in rows:
            owner = state.table.ownership(row).owner
            if owner is None:
                free.append(row)
            else:
                by_owner.setdefault(owner, []).append(row)
        for registration, owned in by_owner.items():
            state.serve(owned, registration)
        self._lookups.ask(free)


def check_settings(settings: PlannerSettings) -> None:
    """Refuse settings that a simulation does not implement."""
    placement_strategy(settings)
    shedding_strategy(settings)
    name, _ = split_algorithm(settings)
    if settings.auto_bundle_split_enabled and name == SPECIFIED_POSITIONS:
        raise ValueError(f"defaultNamespaceBundleSplitAlgorithm {name}: it has to be told where to cut; choose another")


def _check_names(brokers: Sequence[BrokerSpec], namespaces: Sequence[NamespaceSpec], events: Sequence[Event]) -> None:
    """Raise `ValueError` unless names are unique."""
    joining = [event.broker for event in events if isinstance(event, BrokerJoins)]
    require_unique([spec.id for spec in (*brokers, *joining)], "broker")
    new = [event.namespace for event in events if isinstance(event, NewNamespace)]
    require_unique([spec.name for spec in (*namespaces, *new)], "namespace")


def require_unique(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise ValueError(f"{what} {twice}: there are two of that name")
