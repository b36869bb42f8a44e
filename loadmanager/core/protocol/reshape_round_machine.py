"""State machine for rounds of automatic splits and merges: find candidates, ask for topics, decide, execute in order.

`reshape_machine` executes each split and merge. There is one round at a time. The driver schedules rounds and handles
failed ones.

    stage       event                       if                              then
    -----       -----                       --                              ----
    IDLE        RoundDue                    the balancer is frozen          ReportVerdict, RoundEnded
                                            nothing is new, and the rule
                                            does not count rounds           RoundEnded
                                            nothing may be split            ReportVerdict, as if no split is left
                                            else                            ReportVerdict of rejected reports;
                                                                            FindCandidates            ─▶ SCANNING
    SCANNING    CandidatesFound                                             AskTopics of each above a limit, or
                                                                            ReportVerdict if held     ─▶ ASKING
                                            none is to be asked             as if all had answered
    ASKING      TopicsNamed                 all have answered               DecideSplits              ─▶ DECIDING
                OwnerSilent                 topics are needed               ReportVerdict, as TopicsNamed of the others
                                            else                            as TopicsNamed
    DECIDING    SplitsDecided                                               ReportVerdict of the rest, then
                                                                            as ReshapeEnded           ─▶ SPLITTING
    SPLITTING   ReshapeEnded                it failed                       ReportVerdict; then in any case:
                                            a split is left                 ExecuteReshape, or SkipInDryRun
                                                                            and the next
                                            none is, merges are off         ReportVerdict, RoundEnded ─▶ IDLE
                                            none is                         FindMerges                ─▶ COMPARING
    COMPARING   MergesFound                                                 ReportVerdict of the others, then
                                                                            as ReshapeEnded           ─▶ MERGING
    MERGING     ReshapeEnded                a merge is left                 as SPLITTING
                                            none is                         RoundEnded                ─▶ IDLE
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import MergeReason, Reason, SplitReason
from loadmanager.core.domain.settings import PlannerSettings, UnknownStrategyError, is_extensible
from loadmanager.core.protocol.reshape_machine import (
    AskTopics,
    OwnerSilent,
    Parts,
    ReportVerdict,
    ReshapeEnded,
    Reshaping,
    TopicsNamed,
)
from loadmanager.core.strategies.merging import Merge
from loadmanager.core.strategies.splitting import Divider
from loadmanager.core.strategies.splitting.split_finder import SplitCandidate, Splits, find_reason
from loadmanager.core.strategies.splitting.split_round import ScannedReport

CLUSTER = "cluster"
"""Subject of a verdict on a whole round."""

_FEWEST_BROKERS = 2  # as in Pulsar


class ReshapeStage(enum.Enum):
    IDLE = enum.auto()
    SCANNING = enum.auto()
    ASKING = enum.auto()
    DECIDING = enum.auto()
    SPLITTING = enum.auto()
    COMPARING = enum.auto()
    MERGING = enum.auto()


# Events, beside TopicsNamed, OwnerSilent and Ended of a split or merge


@dataclass(frozen=True, slots=True)
class RoundDue:
    """A round begins. `revision` is the model's; `brokers` maps the registered brokers, in order, to the fault of their
    last report; `places_parts`: parts of a split are placed by the strategy.
    """

    settings: PlannerSettings
    controls: Controls
    revision: int
    brokers: Mapping[Registration, str | None]
    places_parts: bool


@dataclass(frozen=True, slots=True)
class CandidatesFound:
    looked_at: Sequence[ScannedReport]


@dataclass(frozen=True, slots=True)
class SplitsDecided:
    found: Splits


@dataclass(frozen=True, slots=True)
class MergesFound:
    merges: Sequence[Merge]
    verdicts: Sequence[Verdict]


Event = RoundDue | CandidatesFound | TopicsNamed | OwnerSilent | SplitsDecided | ReshapeEnded | MergesFound

_AWAITED = {
    ReshapeStage.IDLE: RoundDue,
    ReshapeStage.SCANNING: CandidatesFound,
    ReshapeStage.ASKING: TopicsNamed | OwnerSilent,
    ReshapeStage.DECIDING: SplitsDecided,
    ReshapeStage.SPLITTING: ReshapeEnded,
    ReshapeStage.COMPARING: MergesFound,
    ReshapeStage.MERGING: ReshapeEnded,
}

# Actions, beside AskTopics and ReportVerdict


@dataclass(frozen=True, slots=True)
class FindCandidates:
    """Find split candidates in these brokers' reports (`strategies.splitting.split_round`); answered by
    CandidatesFound.
    """

    brokers: Sequence[Registration]
    settings: PlannerSettings


@dataclass(frozen=True, slots=True)
class DecideSplits:
    """Apply the configured split rule (`find_splits`) to the candidates; answered by SplitsDecided."""

    looked_at: Sequence[ScannedReport]
    topics: Mapping[str, Sequence[TopicLoad]]
    settings: PlannerSettings


@dataclass(frozen=True, slots=True)
class ExecuteReshape:
    """Execute the split or merge; answered by ReshapeEnded."""

    reshaping: Reshaping


@dataclass(frozen=True, slots=True)
class SkipInDryRun:
    """Report what a dry run would have done."""

    reshaping: Reshaping


@dataclass(frozen=True, slots=True)
class FindMerges:
    """Find merges of cold neighbours in these brokers' reports (`strategies.merging`); answered by MergesFound."""

    brokers: Sequence[Registration]
    controls: Controls


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """The round is over."""


Request = FindCandidates | AskTopics | DecideSplits | ExecuteReshape | FindMerges
"""Actions that are answered by an event; the others only report."""

Action = Request | SkipInDryRun | ReportVerdict | RoundEnded


class ReshapeRoundMachine:
    """State machine for the reshape rounds of one leader."""

    _due: RoundDue
    _divider: Divider

    def __init__(self) -> None:
        self._stage = ReshapeStage.IDLE
        self._last_revision = 0
        self._looked_at: Sequence[ScannedReport] = ()
        self._unanswered: dict[Reshaping, SplitCandidate] = {}
        self._topics: dict[str, Sequence[TopicLoad]] = {}
        self._left_alone: set[str] = set()
        self._queue: deque[Reshaping] = deque()
        self._actions: list[Action] = []

    def step(self, event: Event) -> list[Action]:
        """Process an event and return the actions that follow. Events that the stage does not await are ignored."""
        if not isinstance(event, _AWAITED[self._stage]):
            return []
        match event:
            case RoundDue():
                self._begin(event)
            case CandidatesFound(looked_at):
                self._on_found(looked_at)
            case TopicsNamed(asked, topics):
                self._on_answered(asked, topics)
            case OwnerSilent(asked, error):
                self._on_silence(asked, error)
            case SplitsDecided(found):
                self._on_decided(found)
            case ReshapeEnded(reshaping, error):
                if error is not None:
                    self._on_failed(reshaping, error)
                self._go_on()
            case _:
                self._on_compared(event)
        actions, self._actions = self._actions, []
        return actions

    def forget(self) -> None:
        """Abort the current round: it failed, or the term is over."""
        self._stage = ReshapeStage.IDLE
        for each in (self._unanswered, self._queue, self._actions):
            each.clear()

    @property
    def _believed(self) -> tuple[Registration, ...]:
        return tuple(broker for broker, fault in self._due.brokers.items() if fault is None)

    def _begin(self, due: RoundDue) -> None:
        self._due = due
        if due.controls.frozen:
            self._judge("split", CLUSTER, SplitReason.RESHAPING_FROZEN, {"frozen": due.controls.frozen})
            self._actions.append(RoundEnded())
        elif due.revision == self._last_revision and not is_extensible(due.settings):
            self._actions.append(RoundEnded())
        elif self._may_split(due):
            self._stage = ReshapeStage.SCANNING
            for broker, fault in due.brokers.items():
                if fault is not None:
                    self._judge("split", broker.broker, SplitReason.REPORT_NOT_BELIEVED, {"fault": fault})
            self._actions.append(FindCandidates(self._believed, due.settings))
        else:
            self._stage = ReshapeStage.SPLITTING
            self._go_on()

    def _may_split(self, due: RoundDue) -> bool:
        """Return True if automatic splits are possible; report the reason if not."""
        if not due.settings.auto_bundle_split_enabled:
            why: dict[str, Figure] = {"loadBalancerAutoBundleSplitEnabled": str(due.settings.auto_bundle_split_enabled)}
            self._judge("split", CLUSTER, SplitReason.SPLITTING_DISABLED, why)
            return False
        if len(due.brokers) < _FEWEST_BROKERS:
            self._judge("split", CLUSTER, SplitReason.SPLIT_NEEDS_TWO_BROKERS, {"brokers": len(due.brokers)})
            return False
        try:
            self._divider = Divider.of(due.settings)
        except UnknownStrategyError as error:
            self._judge("split", CLUSTER, SplitReason.SPLIT_FAILED, {"error": str(error)})
            return False
        return True

    def _on_found(self, looked_at: Sequence[ScannedReport]) -> None:
        """Ask for the topics of bundles above a limit, except those under operator controls."""
        self._stage, self._looked_at = ReshapeStage.ASKING, looked_at
        self._topics, self._left_alone = {}, set()
        for each in looked_at:
            for candidate in each.candidates:
                limit = find_reason(candidate, self._due.settings) if candidate.is_owned else None
                if limit is not None:
                    self._want_topics(each.registration, candidate, limit)
        self._decide_if_known()

    def _want_topics(self, owner: Registration, candidate: SplitCandidate, limit: SplitReason) -> None:
        held = self._due.controls.find_control(candidate.name)
        if held is not None:
            self._leave_alone(candidate, SplitReason.SHAPE_HELD, {"held": held})
            return
        name = BundleName.parse_any(candidate.name)
        asked = Reshaping(name, limit, (name.range,))
        self._unanswered[asked] = candidate
        self._actions.append(AskTopics(asked, owner))

    def _on_answered(self, asked: Reshaping, topics: Sequence[TopicLoad]) -> None:
        del self._unanswered[asked]
        self._topics[str(asked.bundle)] = topics
        self._decide_if_known()

    def _on_silence(self, asked: Reshaping, error: Exception) -> None:
        if not self._divider.needs_topics:
            self._on_answered(asked, ())
            return
        self._leave_alone(self._unanswered.pop(asked), SplitReason.OWNER_SILENT, {"error": str(error)})
        self._decide_if_known()

    def _leave_alone(self, candidate: SplitCandidate, reason: SplitReason, why: Mapping[str, Figure]) -> None:
        self._left_alone.add(candidate.name)
        self._judge("split", candidate.name, reason, {**candidate.why(), **why})

    def _decide_if_known(self) -> None:
        if not self._unanswered:
            self._stage = ReshapeStage.DECIDING
            looked_at = [each.without(self._left_alone) for each in self._looked_at]
            self._actions.append(DecideSplits(looked_at, self._topics, self._due.settings))

    def _on_decided(self, found: Splits) -> None:
        self._stage = ReshapeStage.SPLITTING
        verdicts = {verdict.subject: verdict for verdict in found.verdicts}
        self._actions += [ReportVerdict("split", verdict) for verdict in found.verdicts if not verdict.acted]
        if not found.verdicts and not self._left_alone:
            bundles = sum(each.bundles for each in self._looked_at)
            why = {"bundles": bundles, "brokers": len(self._looked_at)}
            self._judge("split", CLUSTER, SplitReason.NOTHING_TO_SPLIT, why)
        for split in found.splits:
            name, topics = BundleName.parse_any(split.bundle), self._topics.get(split.bundle, ())
            parts = Parts.PLACED if self._due.places_parts else Parts.STAY
            reshaping = Reshaping(name, split.reason, (name.range,), parts=parts, topics=topics)
            reshaping.cut(split, verdicts[split.bundle])
            self._queue.append(reshaping)
        self._go_on()

    def _on_compared(self, found: MergesFound) -> None:
        self._stage = ReshapeStage.MERGING
        self._actions += [ReportVerdict("merge", verdict) for verdict in found.verdicts]
        for each in found.merges:
            self._queue.append(
                Reshaping.merge(BundleName.parse_any(each.lower), BundleName.parse_any(each.upper), each.why)
            )
        self._go_on()

    def _go_on(self) -> None:
        """Execute the next split or merge; find merges after the last split; else end the round."""
        while self._queue and self._due.controls.dry_run:
            self._actions.append(SkipInDryRun(self._queue.popleft()))
        if self._queue:
            self._actions.append(ExecuteReshape(self._queue.popleft()))
        elif self._stage is ReshapeStage.SPLITTING and self._due.settings.auto_bundle_merge_enabled:
            self._stage = ReshapeStage.COMPARING
            self._actions.append(FindMerges(self._believed, self._due.controls))
        else:
            self._over()

    def _over(self) -> None:
        if self._stage is ReshapeStage.SPLITTING:
            why = {"loadBalancerAutoBundleMergeEnabled": str(self._due.settings.auto_bundle_merge_enabled)}
            self._judge("merge", CLUSTER, MergeReason.MERGING_DISABLED, why)
        self._stage, self._last_revision = ReshapeStage.IDLE, self._due.revision
        self._actions.append(RoundEnded())

    def _on_failed(self, it: Reshaping, error: BaseException) -> None:
        asked, reason = ("split", SplitReason.SPLIT_FAILED) if it.is_split else ("merge", MergeReason.MERGE_FAILED)
        assert it.because is not None, "it was decided, and why"
        self._judge(asked, str(it.bundle), reason, {**it.because.why, "error": str(error)})

    def _judge(self, asked: str, subject: str, reason: Reason, why: Mapping[str, Figure]) -> None:
        self._actions.append(ReportVerdict(asked, Verdict(subject, reason, acted=False, why=why)))
