"""Decisions of the simulated leader, and their execution: unloads under the concurrency limits, and lookups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from loadmanager.core.diagnosis.reason_catalogue import reason_of
from loadmanager.core.domain.names import namespace_of
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.model.fleet_load import share_of
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn, planner
from loadmanager.core.planning.certificate.plan_certificate import DecidedRound
from loadmanager.core.planning.churn import OPERATOR_REASONS, MoveMemory
from loadmanager.core.planning.decision_kinds import DECISIONS
from loadmanager.core.planning.repeated_moves import PastMove
from loadmanager.core.planning.shedding_round import shed
from loadmanager.core.protocol.assignment_machine import (
    AnswerWaiters,
    AssignmentMachine,
    AssignmentMade,
    AssignmentsDecided,
    AssignmentWanted,
    BackgroundAssignmentsWanted,
    DecideAssignments,
)
from loadmanager.core.protocol.assignment_machine import Event as Asked
from loadmanager.core.protocol.move_machine import (
    Action,
    AskOwner,
    CancelWaiting,
    Commit,
    Committed,
    Ended,
    Event,
    Expected,
    Kept,
    Move,
    Moved,
    MoveMachine,
    NotCommitted,
    Outcome,
    OwnerAnswered,
    Want,
)
from loadmanager.core.protocol.state_machine import Signal, Write, find_gone_owner
from loadmanager.lab.simulate.sim_result import CompletedMove
from loadmanager.lab.simulate.world_state import START_S, SimDriver, WorldState


class Leader:
    """Planner of the simulated leader, with the states of strategies, splitting and churn limits, and the last
    snapshot. It calls the functions of the core that the live leader calls, in the same order.
    """

    def __init__(self, state: WorldState, rng: np.random.Generator) -> None:
        self.strategy_states: planner.State = {}
        self.split_state: planner.State = {}
        self.churn_state: churn.State = {}
        self.on_round: Callable[[DecidedRound], None] = lambda _: None
        """Called with each shedding round."""
        self._state = state
        self._rng = rng
        self._snapshot: Snapshot | None = None

    def shed(self) -> Plan:
        """Plan a shedding round, within the limits on churn."""
        snapshot, settings = self._new_snapshot(), self._state.settings
        done = shed(snapshot, settings, self.strategy_states, self.churn_state, self._rng)
        self.strategy_states, self.churn_state = done.state, done.churn_state
        self.on_round(DecidedRound(snapshot, settings, done.plan.steps))
        return done.plan

    def decide(self, kind: str, **request: object) -> Plan:
        """Make one of `DECISIONS` on the cluster now."""
        plan, self.strategy_states = DECISIONS[kind](
            self.snapshot(), self._state.settings, self.strategy_states, self._rng, request
        )
        return plan

    def find_excess(self, step: Unload) -> Verdict | None:
        """Return the churn limit that forbids a move outside of rounds now, if any."""
        return churn.find_excess(step, self.snapshot(), self._state.settings, self.churn_state)

    def moved(self, step: Unload, destination: Registration | None) -> PastMove:
        """Record a completed unload in the churn memory, and return its entry."""
        state = self._state
        self.churn_state, tripped = churn.noted(
            self.churn_state,
            step.bundle,
            step.source,
            destination,
            share_of(self._snapshot or self.snapshot(), step.bundle),
            state.settings,
            at_s=state.now_s,
            is_own=step.reason not in OPERATOR_REASONS,
        )
        state.count_verdicts("breaker", tripped)
        return MoveMemory.of(self.churn_state).moves[-1]

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the cluster; a new one is taken only after a change."""
        state = self._state
        if self._snapshot is None or self._snapshot.revision != state.model.revision:
            self._snapshot = state.model.snapshot(state.now_s, state.rules.grace_period_s)
        return self._snapshot

    def _new_snapshot(self) -> Snapshot:
        """Take a new snapshot also without a change: recently moved bundles depend on the time."""
        state, settings = self._state, self._state.settings
        age_s, weights = settings.broker_load_data_ttl_in_seconds, settings.resource_weights
        sick_after_s = settings.sick_after_s
        state.model.set_faults(state.report_validator.faults(state.now_s, age_s, weights, sick_after_s))
        self._snapshot = None
        return self.snapshot()


_PAUSE_S = 2.0
"""Pause before the next attempt to place a bundle."""


class Lookups:
    """Lookups by clients, which assign owners to free bundles. Bundles that wait at the same time share a batch."""

    def __init__(self, state: WorldState, leader: Leader) -> None:
        self._state = state
        self._leader = leader
        self._assignments = AssignmentMachine(state)
        self._waiting: dict[int, None] = {}
        self._is_due = False
        self.placements = 0

    def ask(self, rows: Iterable[int], delay_s: float | None = None) -> None:
        """Schedule lookups of these bundles."""
        self._waiting.update(dict.fromkeys(rows))
        if self._waiting and not self._is_due:
            self._is_due = True
            self._state.agenda.after(self._state.rules.lookup_s if delay_s is None else delay_s, self._look_up)

    def place(self, bundles: Sequence[str]) -> None:
        """Assign owners to bundles without waiting lookups."""
        self._step(BackgroundAssignmentsWanted(bundles))

    def _look_up(self) -> None:
        """Look up the waiting bundles that still need an owner; retry those that get none."""
        self._is_due = False
        rows, self._waiting = [*filter(self.needs_owner, self._waiting)], {}
        self._step(*(AssignmentWanted(self._state.table.names[row]) for row in rows))
        self.ask([*filter(self.needs_owner, rows)], _PAUSE_S)

    def needs_owner(self, row: int) -> bool:
        """Return True if the bundle is free, or its owner is gone and not held off."""
        ownership = self._state.table.ownership(row)
        gone = find_gone_owner(self._state, ownership)
        is_free = ownership.state is OwnershipState.FREE
        return is_free or (gone is not None and gone.broker not in self._state.holds())

    def _step(self, *events: Asked) -> None:
        """Step the assignment machine until it has nothing left to do."""
        pending: deque[Asked] = deque(events)
        while pending or self._assignments.wake_s is not None:
            event = pending.popleft() if pending else Signal.TIME
            for action in self._assignments.step(event, self._state.agenda.now_s):
                match action:
                    case DecideAssignments(bundles):
                        plan = self._leader.decide("place", bundles=bundles, nonPersistent=())
                        self._state.count_verdicts("assign", plan.verdicts)
                        pending.append(AssignmentsDecided(action, plan))
                    case Write():
                        pending.append(self._state.write(action))
                    case AnswerWaiters(_, outcome):
                        self.placements += isinstance(outcome, AssignmentMade)


class SimExecutor:
    """Executor of unloads by the leader's state machine; `moves` are the completed ones.

    Writes complete at once. An owner releases a bundle in `unload_s`; a crashed owner that is still registered does
    not.
    """

    def __init__(self, state: WorldState, leader: Leader, lookups: Lookups) -> None:
        rules = state.rules
        limits = rules.max_concurrent_unloads, rules.max_concurrent_unloads_per_broker
        self._state = state
        self._leader = leader
        self._lookups = lookups
        machine = MoveMachine(lambda: limits, lambda: rules.unload_deadline_s, state.is_registered)
        self._driver = SimDriver(state.agenda, machine, self._do)
        self._on_end: dict[Move, Callable[[Outcome], None]] = {}
        self._of_round: set[Move] = set()
        self.moves: list[CompletedMove] = []

    def begin_round(self, steps: Sequence[Unload]) -> None:
        """Execute the steps of a round in their order, within the concurrency limits."""
        self._of_round = {self.execute(step, lambda _: None) for step in steps}

    def cancel_round(self) -> None:
        """Cancel the steps of the last round that have not begun."""
        self._driver.step(CancelWaiting(self._of_round.__contains__, "cancelled before it began"))
        self._of_round = set()

    def execute(self, step: Unload, on_end: Callable[[Outcome], None]) -> Move:
        """Execute one step; `on_end` gets its outcome."""
        check = Expected(step.source).check
        move = Move(step.bundle, step.source, step.destination, step.reason.value, check)
        self._on_end[move] = on_end
        self._driver.step(Want(move))
        return move

    def withdraw(self, bundle: str) -> None:
        """Cancel the unload of a bundle if it is still queued."""
        self._driver.step(CancelWaiting(lambda move: move.bundle == bundle, "cancelled before it began"))

    def membership_changed(self) -> None:
        """Step the machine after the end of a registration: moves stop waiting for that owner."""
        self._driver.step(Signal.MEMBERSHIP)

    def _do(self, action: Action) -> Event | None:
        match action:
            case Commit():
                return self._commit(action)
            case AskOwner(move):
                self._state.agenda.after(self._state.rules.unload_s, partial(self._answer, move))
            case Ended(move, outcome):
                self._on_ended(move, outcome)
        return None

    def _commit(self, it: Commit) -> Event:
        bundle = it.move.bundle
        made = self._state.write(Write(namespace_of(bundle), {bundle: it.transition}, it.reason)).made[bundle]
        return Committed(it.move, made) if isinstance(made, Ownership) else NotCommitted(it.move, made)

    def _answer(self, move: Move) -> None:
        owner = move.get_released().owner
        has_crashed = self._state.is_registered(owner) and self._state.find_serving(owner) is None
        self._driver.step(OwnerAnswered(move, "no answer" if has_crashed else None))

    def _on_ended(self, move: Move, outcome: Outcome) -> None:
        if isinstance(outcome, Moved):
            self._on_completed(move, outcome.done)
        elif isinstance(outcome, Kept):
            self._state.count_verdicts("shed", [Verdict(move.bundle, outcome.reason, acted=True)])
        self._on_end.pop(move)(outcome)

    def _on_completed(self, move: Move, done: Ownership) -> None:
        state, owner = self._state, move.get_released().owner
        row = state.table.row_of(move.bundle)
        assert row is not None, "a bundle on its way keeps its shape"
        assert owner is not None, "what is released has an owner"
        state.model.mark_unloaded(move.bundle, state.now_s, owner.broker)
        step = Unload(move.bundle, owner, move.destination, reason_of(move.reason))
        noted = self._leader.moved(step, done.owner)
        source = state.find_serving(owner)
        if source is not None:
            source.has_unloaded = True
        if done.owner is None:
            self._lookups.ask([row])
        self.moves.append(self._move(step, done.owner, row, noted))

    def _move(self, step: Unload, destination: Registration | None, row: int, noted: PastMove) -> CompletedMove:
        state, loads = self._state, self._state.loads
        load, total = float(loads.load[row, 2] + loads.load[row, 3]), loads.total_throughput
        return CompletedMove(
            state.agenda.now_s,
            step.bundle,
            step.source.broker,
            None if destination is None else destination.broker,
            step.reason,
            load / total if total > 0 else 0.0,
            load,
            int(loads.sessions[row]),
            noted.is_own,
            noted.moved_s - START_S,
            noted.left_s - START_S,
        )
