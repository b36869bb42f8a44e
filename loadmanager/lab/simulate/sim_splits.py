"""Automatic splits by the leader's state machines. Bundles are never merged."""

from __future__ import annotations

from collections import deque

from loadmanager.core.domain.ownership import IllegalTransitionError, OwnershipState
from loadmanager.core.domain.reasons import SplitReason
from loadmanager.core.planning.decision_kinds import read_choice
from loadmanager.core.protocol import reshape_machine, reshape_round_machine
from loadmanager.core.protocol.reshape_machine import (
    AskTopics,
    ChooseDestination,
    CommitReshape,
    DestinationChosen,
    OwnerSilent,
    ReportVerdict,
    ReshapeCommitted,
    Reshaped,
    ReshapeEnded,
    ReshapeMachine,
    ReshapeRefused,
    ReshapeWanted,
    Reshaping,
    TopicsNamed,
    Transfer,
    WaitEnded,
)
from loadmanager.core.protocol.reshape_round_machine import (
    CandidatesFound,
    DecideSplits,
    ExecuteReshape,
    FindCandidates,
    ReshapeRoundMachine,
    RoundDue,
    RoundEnded,
    SkipInDryRun,
    SplitsDecided,
)
from loadmanager.core.strategies.splitting.split_round import SplitQuestion, find_candidates, find_splits
from loadmanager.lab.simulate.sim_execution import Leader, Lookups, SimExecutor
from loadmanager.lab.simulate.sim_result import SplitDone
from loadmanager.lab.simulate.world_state import WorldState

_Event = reshape_machine.Event | reshape_round_machine.Event


class SimSplitter:
    """Runs rounds of splits; each begins `split_interval_s` after the last part of the previous one was placed.

    `splits` are the completed ones. All actions complete at once, except the unload of a part.
    """

    def __init__(self, state: WorldState, leader: Leader, executor: SimExecutor, lookups: Lookups) -> None:
        self.splits: list[SplitDone] = []
        self._state = state
        self._leader = leader
        self._executor = executor
        self._lookups = lookups
        self._rounds = ReshapeRoundMachine()
        self._reshapings = ReshapeMachine(state, leader.find_excess)
        self._pending: deque[_Event] = deque()

    def round(self) -> None:
        """Run a round: find bundles to split, and split them."""
        state = self._state
        brokers = {
            each: state.report_validator.find_fault(broker) for broker, each in sorted(state.registrations.items())
        }
        places_parts = state.rules.unload_split_bundles
        self._step(RoundDue(state.settings, state.controls, state.model.revision, brokers, places_parts))

    def _step(self, event: _Event) -> None:
        self._pending.append(event)
        if len(self._pending) > 1:
            return  # an outer call is already processing the events
        while self._pending:
            event = self._pending[0]
            following: list[_Event | None]
            if isinstance(event, reshape_round_machine.Event):
                following = [self._do(action) for action in self._rounds.step(event)]
            else:
                following = [self._do_reshape(action) for action in self._reshapings.step(event)]
            self._pending += (each for each in following if each is not None)
            self._pending.popleft()

    def _do(self, action: reshape_round_machine.Action) -> _Event | None:
        match action:
            case FindCandidates():
                return self._find_candidates(action)
            case AskTopics(asked):
                return self._ask_topics(asked)
            case DecideSplits():
                return self._decide(action)
            case ExecuteReshape(it):
                return ReshapeWanted(it)
            case ReportVerdict("split", verdict):
                self._state.count_verdicts("split", [verdict])
            case SkipInDryRun(it) if it.because is not None:
                self._state.count_verdicts("split", [it.because])
            case RoundEnded():
                self._state.agenda.after(self._state.rules.split_interval_s, self.round)
        return None

    def _do_reshape(self, action: reshape_machine.Action) -> _Event | None:
        match action:
            case CommitReshape(it):
                return self._commit(it)
            case ChooseDestination(it, part):
                return DestinationChosen(it, *read_choice(self._leader.decide("choose", bundle=str(part))))
            case ReshapeEnded():
                return action
            case Transfer(it, step):
                self._executor.execute(step, lambda _: self._step(WaitEnded(it)))
            case ReportVerdict(asked, verdict):
                self._state.count_verdicts(asked, [verdict])
            case Reshaped(it) if it.because is not None:
                self._state.count_verdicts("split", [it.because])
        return None

    def _find_candidates(self, look: FindCandidates) -> CandidatesFound:
        state, remembered = self._state, self._leader.split_state.get("hits", {})
        reports = [(each, state.reports[each]) for each in look.brokers if each in state.reports]
        snapshot = self._leader.snapshot()
        return CandidatesFound(find_candidates(reports, state.table.states(), snapshot, look.settings, remembered))

    def _ask_topics(self, asked: Reshaping) -> TopicsNamed | OwnerSilent:
        state, row = self._state, self._state.table.row_of(str(asked.bundle))
        topics = None if row is None else state.table.find_topics(row, state.loads.load[row])
        if topics is None:
            return OwnerSilent(asked, LookupError(f"nobody knows the topics of {asked.bundle}"))
        return TopicsNamed(asked, topics)

    def _decide(self, decide: DecideSplits) -> SplitsDecided:
        question = SplitQuestion(
            looked_at=tuple((each.registration, each.candidates) for each in decide.looked_at),
            counts=self._state.table.namespace_sizes(),
            topics=decide.topics,
            in_progress=self._reshapings.being_split,
            before=self._leader.split_state.get("hits", {}),
        )
        found, remembered = find_splits(question, decide.settings)
        if remembered is not None:
            self._leader.split_state = remembered
        return SplitsDecided(found)

    def _commit(self, it: Reshaping) -> ReshapeCommitted | ReshapeRefused:
        state, table = self._state, self._state.table
        row = table.row_of(str(it.bundle))
        if row is None or table.ownership(row).state is OwnershipState.RELEASING:
            return ReshapeRefused(it, IllegalTransitionError(f"{it.bundle} is on its way, or no more"))
        assert isinstance(it.reason, SplitReason), "bundles are never merged"
        rows = table.split(row, it.boundaries, state.stamp(it.reason.value), state.loads.load[row])
        state.split_up(rows)
        self.splits.append(SplitDone(state.agenda.now_s, str(it.bundle), it.boundaries, it.reason))
        if table.ownership(row).state is OwnershipState.FREE:
            self._lookups.ask(rows)
        return ReshapeCommitted(it, table.states()[str(it.bundle.namespace)])
