"""Automatic merges: which neighbours are cold by the brokers' reports, and what becomes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from loadmanager.core.controls import Controls
from loadmanager.core.load import ReportedBundles
from loadmanager.core.merging import Merge, MergeCandidate, find_merges
from loadmanager.core.names import BundleName, InvalidNameError
from loadmanager.core.ownership import IllegalTransitionError, NamespaceState, OwnershipState, Registration
from loadmanager.core.plan import Verdict
from loadmanager.core.reasons import MergeReason
from loadmanager.core.settings import PlannerSettings
from loadmanager.core.snapshot import Snapshot
from loadmanager.errors import LoadManagerError, NotLeaderError
from loadmanager.leader.carrying_out.reshaping import CLUSTER, Reshaper, find_hand, long_term
from loadmanager.leader.deciding.desk import Desk
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.recording.journal import Journal
from loadmanager.wire.checkpoint import Later
from loadmanager.wire.reshaping import merging_as_json
from loadmanager.wire.steps import merge_as_json


class Merger:
    """One round after another; nothing is remembered between them."""

    def __init__(self, desk: Desk, view: ClusterView, reshaper: Reshaper, journal: Journal) -> None:
        self._desk = desk
        self._view = view
        self._reshaper = reshaper
        self._journal = journal

    async def round(self, settings: PlannerSettings, controls: Controls) -> None:
        """Merge cold neighbours, if that is wanted; a verdict for each namespace without any."""
        if not settings.auto_bundle_merge_enabled:
            why = {"loadBalancerAutoBundleMergeEnabled": str(settings.auto_bundle_merge_enabled)}
            self._judge(Verdict(CLUSTER, MergeReason.MERGING_DISABLED, acted=False, why=why))
            return
        find_doubt, latest = self._view.gate.find_doubt, self._view.model.latest_reports()
        reports = {owner: report for owner, report in latest.items() if find_doubt(owner.broker) is None}
        namespaces = {name: entry.state for name, entry in self._view.namespaces.items()}
        snapshot, now_s = self._desk.snapshot(), time.time()
        asked = self._desk.recorder.ask("merge")

        def find() -> tuple[Mapping[str, list[MergeCandidate]], list[Merge], list[Verdict]]:
            candidates = _candidates(reports, namespaces, snapshot, controls, now_s)
            return candidates, *find_merges(candidates, settings)

        candidates, merges, verdicts = await asyncio.to_thread(find)
        steps = [merge_as_json(each) for each in merges]
        said = [*verdicts, *(each.why for each in merges)]
        self._desk.recorder.decided(asked, steps, said, candidates=Later(lambda: merging_as_json(candidates)))
        for verdict in verdicts:
            self._judge(verdict)
        for merge in merges:
            await self._carry_out(merge, controls)

    async def _carry_out(self, merge: Merge, controls: Controls) -> None:
        lower, upper = BundleName.parse(merge.lower), BundleName.parse(merge.upper)
        if controls.dry_run:
            owner = self._view.bundle(lower)[0].state.ownerships[self._view.bundle(lower)[1]].owner
            assert owner is not None, "only bundles with an owner are merged"
            self._journal.would_move(
                "would_merge",
                merge.lower,
                merge.why.verdict,
                epoch=self._view.epoch,
                source=owner,
                destination=owner,
                because=[merge.why],
            )
            return
        try:
            await self._reshaper.merge(lower, upper.range, MergeReason.COLD_NEIGHBOURS, merge.why)
        except NotLeaderError:
            raise
        except (LoadManagerError, IllegalTransitionError, InvalidNameError) as error:
            why = {**merge.why.why, "error": str(error)}
            self._judge(Verdict(merge.lower, MergeReason.MERGE_FAILED, acted=False, why=why))

    def _judge(self, verdict: Verdict) -> None:
        self._journal.judged("merge", verdict, epoch=self._view.epoch)


def _candidates(
    reports: Mapping[Registration, ReportedBundles],
    namespaces: Mapping[str, NamespaceState],
    snapshot: Snapshot,
    controls: Controls,
    now_s: float,
) -> dict[str, list[MergeCandidate]]:
    """All bundles of all namespaces; one that its owner's report does not name carries nothing."""
    found, reported = {}, {owner: _counts_in(report) for owner, report in reports.items()}
    for namespace, state in namespaces.items():
        candidates = found[namespace] = list[MergeCandidate]()
        for name, ownership in zip(state.bundle_names(), state.ownerships, strict=True):
            keeps = ownership.state is OwnershipState.OWNED and ownership.owner in reported
            owner = ownership.owner if keeps else None
            counts = reported[owner].get(name) if owner is not None else None
            msg_rate, throughput = long_term(snapshot, name) if counts is not None else (0.0, 0.0)
            topics, sessions = counts or (0, 0)
            candidates.append(
                MergeCandidate(
                    name,
                    owner,
                    topics=topics,
                    sessions=sessions,
                    msg_rate=msg_rate,
                    throughput=throughput,
                    age_s=now_s - ownership.since_ms / 1000,
                    is_held=find_hand(controls, name) is not None,
                )
            )
    return found


def _counts_in(report: ReportedBundles) -> dict[str, tuple[int, int]]:
    """Topics and sessions by bundle."""
    counts = zip(report.bundle_topics.tolist(), report.bundle_sessions.tolist(), strict=True)
    return dict(zip(report.bundle_names, counts, strict=True))
