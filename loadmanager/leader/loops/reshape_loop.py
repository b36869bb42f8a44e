"""Driver of automatic splits and merges, decided by `core.protocol.reshape_round_machine`.

Reports are examined in a worker thread. Each decision is recorded with its inputs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import structlog

from loadmanager.core.domain.names import BundleRange, InvalidNameError, namespace_of
from loadmanager.core.domain.ownership import IllegalTransitionError, NamespaceState, Registration
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.protocol.reshape_machine import (
    AskTopics,
    OwnerSilent,
    ReportVerdict,
    ReshapeEnded,
    Reshaping,
    TopicsNamed,
)
from loadmanager.core.protocol.reshape_round_machine import (
    Action,
    CandidatesFound,
    DecideSplits,
    Event,
    ExecuteReshape,
    FindCandidates,
    FindMerges,
    MergesFound,
    Request,
    ReshapeRoundMachine,
    RoundDue,
    SkipInDryRun,
    SplitsDecided,
)
from loadmanager.core.strategies import merging
from loadmanager.core.strategies.placement.placement_strategy import State
from loadmanager.core.strategies.splitting.split_round import (
    SplitQuestion,
    find_candidates,
    find_splits,
)
from loadmanager.errors import LoadManagerError, NotLeaderError
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import MINUTE_S, PlannerService
from loadmanager.wire.checkpoint_codec import Later, merge_as_json, merging_as_json, question_as_json, split_as_json

log = structlog.get_logger(__name__)

_QUESTIONS_AT_A_TIME = 8


class Reshapes(Protocol):
    """Executor of automatic splits and merges."""

    splits_failed: int

    @property
    def in_progress(self) -> frozenset[tuple[str, BundleRange]]:
        """Bundles that are being split, by namespace and range."""

    async def ask_topics(self, it: Reshaping, owner: Registration) -> TopicsNamed | OwnerSilent:
        """Ask the owner of a bundle for its topics."""

    async def carry_out(self, it: Reshaping) -> None:
        """Execute one; raises `LoadManagerError`, `IllegalTransitionError` or `InvalidNameError` if it fails."""

    def tell(self, broker: Registration, namespace: str) -> None:
        """Send a broker the bundles of a namespace."""


class ReshapeLoop:
    """Runs a round of splits and merges every `loadBalancerSplitIntervalMinutes`; the planner service keeps the memory
    of the split rule.
    """

    def __init__(
        self,
        mirror: ClusterMirror,
        planner: PlannerService,
        reshaper: Reshapes,
        election: Election,
        decision_log: DecisionLog,
        live: LiveSettings,
    ) -> None:
        self._mirror = mirror
        self._planner = planner
        self._reshaper = reshaper
        self._election = election
        self._decision_log = decision_log
        self._live = live
        self._machine = ReshapeRoundMachine()
        self._one_at_a_time = asyncio.Lock()
        self._questions = asyncio.Semaphore(_QUESTIONS_AT_A_TIME)
        self.rounds = 0
        self.rounds_failed = 0

    async def run(self) -> None:
        """Pause, then run a round, for as long as the term lasts; the pause starts after the round ends."""
        while True:
            await self._live.pause(lambda settings: settings.load_balancer_split_interval_minutes * MINUTE_S)
            try:
                await self.round()
            except NotLeaderError:
                raise
            except Exception:
                self.rounds_failed += 1
                log.exception("reshaping_round_failed", round=self.rounds)

    async def round(self) -> None:
        """Run one round: splits, then merges."""
        self._election.get_term()
        async with self._one_at_a_time:
            self._remind_agents()
            self.rounds += 1
            try:
                to_do = self._machine.step(self._due())
                while to_do:
                    for each in to_do:
                        self._say(each)
                    events = await self._ask_all([each for each in to_do if isinstance(each, Request)])
                    to_do = [told for event in events for told in self._machine.step(event)]
            except NotLeaderError:
                raise
            except Exception:
                self._planner.split_state = {}  # the memory may be the cause; the next round starts without it
                raise
            finally:
                self._machine.forget()

    def _due(self) -> RoundDue:
        mirror, find_fault = self._mirror, self._mirror.gate.find_fault
        return RoundDue(
            self._live.planner,
            mirror.operator_config.controls,
            mirror.model.revision,
            {mirror.brokers[broker].registration: find_fault(broker) for broker in sorted(mirror.brokers)},
            self._live.current.load_balancer_auto_unload_split_bundles_enabled,
        )

    def _say(self, action: Action) -> None:
        match action:
            case ReportVerdict(asked, verdict):
                self._decision_log.judged(asked, verdict, epoch=self._mirror.epoch)
            case SkipInDryRun(reshaping):
                self._refrain(reshaping)

    async def _ask_all(self, requests: Sequence[Request]) -> Sequence[Event]:
        if len(requests) == 1:
            return [await self._ask(requests[0])]  # not as a task: it is recorded with the settings of this moment
        return await asyncio.gather(*map(self._ask, requests))

    async def _ask(self, request: Request) -> Event:
        match request:
            case FindCandidates():
                return await self._find_candidates(request)
            case AskTopics(reshaping, owner):
                async with self._questions:
                    return await self._reshaper.ask_topics(reshaping, owner)
            case DecideSplits():
                return self._decide(request)
            case ExecuteReshape(reshaping):
                return await self._carry_out(reshaping)
            case _:
                return await self._find_merges(request)

    async def _find_candidates(self, look: FindCandidates) -> CandidatesFound:
        snapshot, reports = self._planner.snapshot(), self._reports(look.brokers)
        self._asked = self._planner.recorder.ask("split")
        found = await asyncio.to_thread(
            find_candidates, reports.items(), self._namespaces(), snapshot, look.settings, self._hits_by_broker()
        )
        return CandidatesFound(found)

    def _decide(self, decide: DecideSplits) -> SplitsDecided:
        namespaces = {namespace_of(candidate.name) for each in decide.looked_at for candidate in each.candidates}
        question = SplitQuestion(
            looked_at=tuple((each.registration, each.candidates) for each in decide.looked_at),
            counts={name: len(state.bundles) for name, state in self._namespaces().items() if name in namespaces},
            topics=decide.topics,
            in_progress=self._reshaper.in_progress,
            before=self._hits_by_broker(),
        )
        found, remembered = find_splits(question, decide.settings)
        if remembered is not None:
            self._planner.split_state = remembered
        steps = [split_as_json(split) for split in found.splits]
        content = Later(lambda: question_as_json(question))
        self._planner.recorder.decided(self._asked, steps, found.verdicts, question=content)
        return SplitsDecided(found)

    async def _find_merges(self, look: FindMerges) -> MergesFound:
        given = self._reports(look.brokers), self._namespaces(), self._planner.snapshot(), look.controls, time.time()
        asked, settings = self._planner.recorder.ask("merge"), self._live.planner
        candidates = await asyncio.to_thread(merging.find_candidates, *given)
        merges, verdicts = await asyncio.to_thread(merging.find_merges, candidates, settings)
        steps, explained = [merge_as_json(each) for each in merges], [*verdicts, *(each.why for each in merges)]
        self._planner.recorder.decided(asked, steps, explained, candidates=Later(lambda: merging_as_json(candidates)))
        return MergesFound(merges, verdicts)

    async def _carry_out(self, reshaping: Reshaping) -> ReshapeEnded:
        try:
            await self._reshaper.carry_out(reshaping)
        except NotLeaderError:
            raise
        except (LoadManagerError, IllegalTransitionError, InvalidNameError) as error:
            self._reshaper.splits_failed += reshaping.is_split
            return ReshapeEnded(reshaping, error)
        return ReshapeEnded(reshaping)

    def _refrain(self, reshaping: Reshaping) -> None:
        owner = self._mirror.get_ownership(reshaping.bundle).owner
        if owner is None or reshaping.because is None:
            return
        self._decision_log.moved(
            "would_split" if reshaping.is_split else "would_merge",
            str(reshaping.bundle),
            reshaping.reason,
            epoch=self._mirror.epoch,
            source=owner,
            destination=owner,
            because=[reshaping.because],
            acted=False,
        )

    def _reports(self, brokers: Iterable[Registration]) -> dict[Registration, BrokerReport]:
        """Return the last valid reports of those of the brokers that have one."""
        reports = self._mirror.model.latest_reports()
        return {each: reports[each] for each in brokers if each in reports}

    def _namespaces(self) -> dict[str, NamespaceState]:
        return {name: entry.state for name, entry in self._mirror.namespaces.items()}

    def _hits_by_broker(self) -> State:
        """Return for each broker its incarnation, and for each of its bundles the consecutive reports above a limit."""
        found: State = self._planner.split_state.get("hits", {})
        return found

    def _remind_agents(self) -> None:
        """Send new boundaries to agents that report unknown bundles: they may have missed them."""
        for broker_id, namespaces in self._mirror.model.unknown_bundles().items():
            entry = self._mirror.brokers.get(broker_id)
            if entry is not None:
                for namespace in sorted(namespaces):
                    self._reshaper.tell(entry.registration, namespace)
