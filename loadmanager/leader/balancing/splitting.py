"""Automatic splits: which bundles are above a limit by the brokers' reports, and what becomes of them.

Reports are looked at in a worker thread. Only of bundles that are above a limit is a broker asked for the topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import structlog

from loadmanager.core.controls import Controls
from loadmanager.core.load import MSG_RATE_IN, MSG_RATE_OUT, THROUGHPUT_IN, THROUGHPUT_OUT, ReportedBundles
from loadmanager.core.names import BundleName, InvalidNameError, namespace_of
from loadmanager.core.ownership import IllegalTransitionError, NamespaceState, OwnershipState, Registration
from loadmanager.core.placement.base import State
from loadmanager.core.plan import Unload, Verdict
from loadmanager.core.reasons import SplitReason
from loadmanager.core.settings import PlannerSettings
from loadmanager.core.snapshot import Snapshot
from loadmanager.core.splitting.base import MIB
from loadmanager.core.splitting.finder import Split, SplitCandidate, Splits
from loadmanager.core.splitting.finder import find_reason as find_limit
from loadmanager.core.splitting.round import Question, find_splits, goes_by_latest_rates, hits_of
from loadmanager.errors import LoadManagerError, NotLeaderError, OwnerSilentError, SplitRefusedError
from loadmanager.leader.carrying_out.executor import Executor
from loadmanager.leader.carrying_out.reshaping import CLUSTER, Divider, Reshaper, Topics, find_hand, loads_of, long_term
from loadmanager.leader.deciding.desk import SPLIT_STRATEGY, Desk
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import BrokerEntry, ClusterView
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.recording.recorder import Asked
from loadmanager.wire.checkpoint import Later
from loadmanager.wire.reshaping import question_as_json
from loadmanager.wire.steps import split_as_json

log = structlog.get_logger(__name__)

_QUESTIONS_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class _Hot:
    """Of one broker's report: the bundles that are above a limit, or were in the last round, and how many there are."""

    registration: Registration
    candidates: list[SplitCandidate]
    bundles: int


class Splitter:
    """One round after another; what the extensible rule remembers between them is on the desk."""

    def __init__(
        self,
        desk: Desk,
        view: ClusterView,
        reshaper: Reshaper,
        executor: Executor,
        journal: Journal,
        live: LiveSettings,
    ) -> None:
        self._desk = desk
        self._view = view
        self._reshaper = reshaper
        self._executor = executor
        self._journal = journal
        self._live = live
        self.automatic_splits = 0

    async def round(self, settings: PlannerSettings, controls: Controls) -> None:
        """Split what is above a limit by the rule that is configured; a verdict for the rest."""
        if not settings.auto_bundle_split_enabled:
            why = {"loadBalancerAutoBundleSplitEnabled": str(settings.auto_bundle_split_enabled)}
            self._judge(Verdict(CLUSTER, SplitReason.SPLITTING_DISABLED, acted=False, why=why))
            return
        entries = [self._view.brokers[broker_id] for broker_id in sorted(self._view.brokers)]
        if len(entries) < 2:  # noqa: PLR2004 - as in Pulsar
            why_one = {"brokers": len(entries)}
            self._judge(Verdict(CLUSTER, SplitReason.SPLIT_NEEDS_TWO_BROKERS, acted=False, why=why_one))
            return
        try:
            divider = Divider.of(settings)
        except SplitRefusedError as error:
            self._judge(Verdict(CLUSTER, SplitReason.SPLIT_FAILED, acted=False, why={"error": str(error)}))
            return
        namespaces = {name: entry.state for name, entry in self._view.namespaces.items()}
        remembered = self._remembered()
        snapshot, asked = self._desk.snapshot(), self._desk.recorder.ask("split")
        try:
            reports = self._believed(entries)
            looked_at = await asyncio.to_thread(_find_hot, reports, namespaces, snapshot, settings, remembered)
            await self._split_hot(asked, looked_at, divider, controls)
        except NotLeaderError:
            raise
        except Exception:
            self._desk.split_state = {}  # what was remembered may be the cause; the next round starts without it
            raise

    def _believed(self, entries: Sequence[BrokerEntry]) -> Sequence[tuple[Registration, ReportedBundles]]:
        """The last reports of the brokers whose last report may be gone by."""
        reports, believed = self._view.model.latest_reports(), []
        for entry in entries:
            doubt = self._view.gate.find_doubt(entry.registration.broker)
            if doubt is None:
                believed.append((entry.registration, reports[entry.registration]))
            else:
                broker = entry.registration.broker
                self._judge(Verdict(broker, SplitReason.REPORT_NOT_BELIEVED, acted=False, why={"doubt": doubt}))
        return believed

    async def _split_hot(self, asked: Asked, looked_at: Sequence[_Hot], divider: Divider, controls: Controls) -> None:
        topics, kept_back = await self._ask_topics(looked_at, divider, controls)
        found = self._decide(asked, self._ask(_without(looked_at, kept_back.keys()), topics), divider.settings)
        verdicts = {verdict.subject: verdict for verdict in found.verdicts}
        for verdict in (*kept_back.values(), *(each for each in found.verdicts if not each.acted)):
            self._judge(verdict)
        if not found.verdicts and not kept_back:
            why = {"bundles": sum(each.bundles for each in looked_at), "brokers": len(looked_at)}
            self._judge(Verdict(CLUSTER, SplitReason.NOTHING_TO_SPLIT, acted=False, why=why))
        for split in found.splits:
            await self._carry_out(split, verdicts[split.bundle], topics.get(split.bundle), controls)

    async def _ask_topics(
        self, looked_at: Sequence[_Hot], divider: Divider, controls: Controls
    ) -> tuple[dict[str, Topics], dict[str, Verdict]]:
        """The topics of the bundles above a limit, and verdicts for those that have to be left alone."""
        topics: dict[str, Topics] = {}
        kept_back: dict[str, Verdict] = {}
        slots = asyncio.Semaphore(_QUESTIONS_AT_A_TIME)

        async def ask(owner: Registration, candidate: SplitCandidate) -> None:
            name = candidate.name
            held = find_hand(controls, name)
            if held is not None:
                why = {**candidate.why(), "held": held}
                kept_back[name] = Verdict(name, SplitReason.SHAPE_HELD, acted=False, why=why)
                return
            async with slots:
                try:
                    topics[name] = await self._reshaper.topics_for(divider, owner, BundleName.parse(name))
                except OwnerSilentError as error:
                    why = {**candidate.why(), "error": str(error)}
                    kept_back[name] = Verdict(name, SplitReason.OWNER_SILENT, acted=False, why=why)

        settings = divider.settings
        await asyncio.gather(
            *(
                ask(each.registration, candidate)
                for each in looked_at
                for candidate in each.candidates
                if candidate.is_owned and find_limit(candidate, settings) is not None
            )
        )
        return topics, kept_back

    def _ask(self, looked_at: Sequence[_Hot], topics: Mapping[str, Topics]) -> Question:
        """What the rule is asked; only what concerns the candidates."""
        namespaces = {namespace_of(candidate.name) for each in looked_at for candidate in each.candidates}
        current = self._view.namespaces
        return Question(
            looked_at=tuple((each.registration, tuple(each.candidates)) for each in looked_at),
            counts={name: len(entry.state.bundles) for name, entry in current.items() if name in namespaces},
            topics={name: loads_of(known) for name, known in topics.items()},
            under_way=frozenset(self._reshaper.under_way),
            before=self._remembered(),
        )

    def _decide(self, asked: Asked, question: Question, settings: PlannerSettings) -> Splits:
        """By the rule that is configured; it is recorded."""
        found, remembered = find_splits(question, settings)
        if remembered is not None:
            self._desk.split_state = remembered
        steps = [split_as_json(split) for split in found.splits]
        state = {SPLIT_STRATEGY: self._desk.split_state}
        content = Later(lambda: question_as_json(question))
        self._desk.recorder.decided(asked, steps, found.verdicts, state, question=content)
        return found

    async def _carry_out(self, split: Split, verdict: Verdict, topics: Topics, controls: Controls) -> None:
        name = BundleName.parse(split.bundle)
        if controls.dry_run:
            entry, index = self._view.bundle(name)
            owner = entry.state.ownerships[index].owner
            if owner is not None:
                self._journal.would_move(
                    "would_split",
                    split.bundle,
                    split.reason,
                    epoch=self._view.epoch,
                    source=owner,
                    destination=owner,
                    because=[verdict],
                )
            return
        try:
            with self._reshaper.splitting(name):
                parts = await self._reshaper.carry_out(split, verdict, topics)
        except NotLeaderError:
            raise
        except (LoadManagerError, IllegalTransitionError, InvalidNameError) as error:
            self._reshaper.splits_failed += 1
            why = {**verdict.why, "error": str(error)}
            self._judge(Verdict(split.bundle, SplitReason.SPLIT_FAILED, acted=False, why=why))
            return
        self.automatic_splits += 1
        if self._live.current.load_balancer_auto_unload_split_bundles_enabled:
            for part in parts:
                await self._place(part)

    async def _place(self, part: BundleName) -> None:
        """Move a part to where placement would put it, within the limits on churn; if it is there already, it stays."""
        try:
            entry, index = self._view.bundle(part)
            current = entry.state.ownerships[index]
            if current.state is not OwnershipState.OWNED or current.owner is None:
                return
            destination, verdict = await self._desk.choose(str(part))
            if destination is None or destination == current.owner:
                reason = SplitReason.SPLIT_PART_STAYS if destination is not None else verdict.verdict
                self._judge(Verdict(str(part), reason, acted=False, why=verdict.why))
                return
            reason = SplitReason.SPLIT_PART_PLACED
            excess = self._desk.find_excess(Unload(str(part), current.owner, destination, reason))
            if excess is not None:
                self._judge(excess)
                return
            because = Verdict(str(part), reason, acted=True, why=verdict.why)
            await self._executor.unload(part, destination, SplitReason.SPLIT_PART_PLACED, [because])
        except NotLeaderError:
            raise
        except (LoadManagerError, IllegalTransitionError) as error:
            log.warning("part_not_unloaded", bundle=str(part), error=str(error))

    def _judge(self, verdict: Verdict) -> None:
        self._journal.judged("split", verdict, epoch=self._view.epoch)

    def _remembered(self) -> State:
        """By broker: its incarnation, and how often each of its bundles was above a limit in succession."""
        found: State = self._desk.split_state.get("hits", {})
        return found


def _find_hot(
    reports: Sequence[tuple[Registration, ReportedBundles]],
    namespaces: Mapping[str, NamespaceState],
    snapshot: Snapshot,
    settings: PlannerSettings,
    remembered: State,
) -> list[_Hot]:
    """What each broker reports that is above a limit, or was; of bundles that there are, by name."""
    latest = goes_by_latest_rates(settings)
    above_in_long_term = frozenset() if latest else _above_in_long_term(snapshot, settings)
    found = []
    for registration, report in reports:
        candidates = []
        before = hits_of(remembered, registration)
        for name, reading in _readings(report, with_rates=latest):
            # Looked at first without anything that takes long: hardly any of a hundred thousand is above a limit.
            if name not in before and name not in above_in_long_term and find_limit(reading, settings) is None:
                continue
            candidate = _candidate(name, reading, registration, namespaces, snapshot, latest=latest)
            if candidate is not None and (name in before or find_limit(candidate, settings) is not None):
                candidates.append(candidate)
        candidates.sort(key=lambda candidate: candidate.name)
        found.append(_Hot(registration, candidates, len(report.bundle_topics)))
    return found


class _Reading(NamedTuple):
    """The latest figures of a bundle, rates in and out together; 0 for rates by a rule that does not go by these."""

    topics: int
    sessions: int
    msg_rate: float
    throughput: float


def _readings(report: ReportedBundles, *, with_rates: bool) -> Iterator[tuple[str, _Reading]]:
    load = report.bundle_load if with_rates else np.zeros_like(report.bundle_load)
    rates = load[:, MSG_RATE_IN] + load[:, MSG_RATE_OUT], load[:, THROUGHPUT_IN] + load[:, THROUGHPUT_OUT]
    columns = (each.tolist() for each in (report.bundle_topics, report.bundle_sessions, *rates))
    return zip(report.bundle_names, map(_Reading._make, zip(*columns, strict=True)), strict=True)


def _above_in_long_term(snapshot: Snapshot, settings: PlannerSettings) -> frozenset[str]:
    long = snapshot.bundles.long
    msg_rate = long[:, MSG_RATE_IN] + long[:, MSG_RATE_OUT]
    throughput = long[:, THROUGHPUT_IN] + long[:, THROUGHPUT_OUT]
    above = (msg_rate > settings.namespace_bundle_max_msg_rate) | (
        throughput > settings.namespace_bundle_max_bandwidth_mbytes * MIB
    )
    return frozenset(snapshot.bundles.names[row] for row in np.flatnonzero(above).tolist())


def _candidate(
    name: str,
    reading: _Reading,
    reporter: Registration,
    namespaces: Mapping[str, NamespaceState],
    snapshot: Snapshot,
    *,
    latest: bool,
) -> SplitCandidate | None:
    """A bundle as its broker reports it, with its latest rates, else the long-term ones; None for one that is none."""
    state, own = namespaces.get(namespace_of(name)), BundleName.parse(name).range
    index = state.bundles.find_index(own) if state is not None else None
    if state is None or index is None:
        return None
    ownership = state.ownerships[index]
    msg_rate, throughput = (reading.msg_rate, reading.throughput) if latest else long_term(snapshot, name)
    return SplitCandidate(
        name,
        own,
        topics=reading.topics,
        sessions=reading.sessions,
        msg_rate=msg_rate,
        throughput=throughput,
        is_owned=ownership.state is OwnershipState.OWNED and ownership.owner == reporter,
    )


def _without(looked_at: Iterable[_Hot], names: Iterable[str]) -> list[_Hot]:
    left_out = set(names)
    return [
        _Hot(each.registration, [c for c in each.candidates if c.name not in left_out], each.bundles)
        for each in looked_at
    ]
