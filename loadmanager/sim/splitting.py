"""Automatic splits, found by the rule that is configured in what brokers reported last, and carried out one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from loadmanager.core.load import BrokerReport, FloatArray
from loadmanager.core.names import BundleName
from loadmanager.core.ownership import OwnershipState, Registration
from loadmanager.core.plan import Unload, Verdict
from loadmanager.core.reasons import SplitReason
from loadmanager.core.settings import is_extensible
from loadmanager.core.snapshot import Snapshot
from loadmanager.core.splitting import split_algorithm
from loadmanager.core.splitting.base import MIB, TopicLoad
from loadmanager.core.splitting.finder import Split, SplitCandidate, Splits, find_reason
from loadmanager.core.splitting.round import Question, find_splits, goes_by_latest_rates, hits_of
from loadmanager.sim.executing import Executor, Lookups
from loadmanager.sim.leading import Leader
from loadmanager.sim.result import SplitDone
from loadmanager.sim.scene import Scene

_CLUSTER = "cluster"
_WITHOUT_TOPICS = "range_equally_divide"
"""The algorithm that cuts whatever topics there are; the others cannot be asked without."""


class Splitter:
    """One round after another, the next one `split_interval_s` after the last part of the one before is placed.

    `splits` are those that were done.
    """

    def __init__(self, scene: Scene, leader: Leader, executor: Executor, lookups: Lookups) -> None:
        self.splits: list[SplitDone] = []
        self._scene = scene
        self._leader = leader
        self._executor = executor
        self._lookups = lookups
        self._algorithm, _ = split_algorithm(scene.settings)
        self._work: deque[Callable[[], bool]] = deque()
        self._looked_at = 0

    def round(self) -> None:
        """Look for bundles to split, if anything has changed; the extensible rule counts rounds."""
        scene = self._scene
        revision = scene.model.revision
        if scene.controls.frozen:
            why = {"frozen": scene.controls.frozen}
            self._judge(Verdict(_CLUSTER, SplitReason.RESHAPING_FROZEN, acted=False, why=why))
        elif revision != self._looked_at or is_extensible(scene.settings):
            self._looked_at = revision
            self._look()
        self._go_on()

    def _look(self) -> None:
        registrations = sorted(self._scene.reports, key=lambda each: each.broker)
        if not self._scene.settings.auto_bundle_split_enabled:
            self._judge(Verdict(_CLUSTER, SplitReason.SPLITTING_DISABLED, acted=False))
            return
        if len(registrations) < 2:  # noqa: PLR2004 - as the leader
            self._judge(Verdict(_CLUSTER, SplitReason.SPLIT_NEEDS_TWO_BROKERS, acted=False))
            return
        candidates = self._candidates(registrations)
        topics: dict[str, Sequence[TopicLoad] | None] = {}
        for own in candidates.values():
            own[:] = [each for each in own if self._may_be_split(each, topics)]
        found = self._find(candidates, topics)
        verdicts = {verdict.subject: verdict for verdict in found.verdicts}
        for verdict in found.verdicts:
            if not verdict.acted:
                self._judge(verdict)
        if not found.verdicts:
            self._judge(Verdict(_CLUSTER, SplitReason.NOTHING_TO_SPLIT, acted=False))
        for split in found.splits:
            self._work.append(lambda split=split: self._carry_out(split, verdicts[split.bundle]))  # type: ignore[misc]

    def _may_be_split(self, candidate: SplitCandidate, topics: dict[str, Sequence[TopicLoad] | None]) -> bool:
        """Whether an operator leaves it to us, and its topics are known where they are needed."""
        scene, name = self._scene, candidate.name
        if not candidate.is_owned or find_reason(candidate, scene.settings) is None:
            return True
        if not scene.controls.may_be_shed(name):
            self._judge(Verdict(name, SplitReason.SHAPE_HELD, acted=False))
            return False
        row = scene.table.row_of(name)
        topics[name] = None if row is None else scene.table.find_topics(row, scene.loads.load[row])
        if topics[name] is None and self._algorithm != _WITHOUT_TOPICS:
            self._judge(Verdict(name, SplitReason.OWNER_SILENT, acted=False))
            return False
        return True

    def _find(
        self, candidates: Mapping[Registration, list[SplitCandidate]], topics: Mapping[str, Sequence[TopicLoad] | None]
    ) -> Splits:
        """By the rule that is configured."""
        question = Question(
            looked_at=tuple((registration, tuple(own)) for registration, own in candidates.items()),
            counts=self._scene.table.namespace_sizes(),
            topics={name: known or () for name, known in topics.items()},
            under_way=frozenset(),
            before=self._leader.split_state.get("hits", {}),
        )
        found, remembered = find_splits(question, self._scene.settings)
        if remembered is not None:
            self._leader.split_state = remembered
        return found

    def _candidates(self, registrations: Sequence[Registration]) -> dict[Registration, list[SplitCandidate]]:
        """What each broker reports that is above a limit, or was in the last round; of bundles that there are."""
        settings, latest = self._scene.settings, goes_by_latest_rates(self._scene.settings)
        snapshot, remembered = self._leader.snapshot(), self._leader.split_state.get("hits", {})
        hot = frozenset[str]() if latest else self._hot_in(snapshot)
        found: dict[Registration, list[SplitCandidate]] = {}
        for registration in registrations:
            report, before = self._scene.reports[registration], hits_of(remembered, registration)
            sessions = settings.namespace_bundle_max_sessions
            above = report.bundle_topics > settings.namespace_bundle_max_topics
            above |= report.bundle_sessions > (sessions if sessions > 0 else np.inf)
            if latest:
                above |= self._above(report.bundle_load)
            positions = np.flatnonzero(above).tolist()
            if hot or before:
                named = [i for i, name in enumerate(report.bundle_names) if name in hot or name in before]
                positions = sorted({*positions, *named})
            own = [self._candidate(registration, report, i, snapshot, latest=latest) for i in positions]
            found[registration] = sorted(
                (
                    each
                    for each in own
                    if each is not None and (find_reason(each, settings) is not None or each.name in before)
                ),
                key=lambda each: each.name,
            )
        return found

    def _hot_in(self, snapshot: Snapshot) -> frozenset[str]:
        """The bundles with long-term rates above a limit."""
        rows = np.flatnonzero(self._above(snapshot.bundles.long)).tolist()
        return frozenset(snapshot.bundles.names[row] for row in rows)

    def _above(self, load: FloatArray) -> np.typing.NDArray[np.bool_]:
        settings = self._scene.settings
        return np.asarray(
            (load[:, 0] + load[:, 1] > settings.namespace_bundle_max_msg_rate)
            | (load[:, 2] + load[:, 3] > settings.namespace_bundle_max_bandwidth_mbytes * MIB)
        )

    def _candidate(
        self, reporter: Registration, report: BrokerReport, position: int, snapshot: Snapshot, *, latest: bool
    ) -> SplitCandidate | None:
        """A bundle as its broker reports it, with its latest rates, else the long-term ones; None if it is no more."""
        name = report.bundle_names[position]
        row, known = self._scene.table.row_of(name), snapshot.bundles.find_row(name)
        if row is None:
            return None
        unknown = np.zeros(4)
        rates = report.bundle_load[position] if latest else unknown if known is None else snapshot.bundles.long[known]
        msg_in, msg_out, bytes_in, bytes_out = rates.tolist()
        ownership = self._scene.table.ownership(row)
        return SplitCandidate(
            name,
            BundleName.parse(name).range,
            topics=int(report.bundle_topics[position]),
            sessions=int(report.bundle_sessions[position]),
            msg_rate=msg_in + msg_out,
            throughput=bytes_in + bytes_out,
            is_owned=ownership.state is OwnershipState.OWNED and ownership.owner == reporter,
        )

    def _go_on(self) -> None:
        """Do what is left of the round, until something has to be waited for; then the next round comes."""
        while self._work:
            if not self._work.popleft()():
                return
        self._scene.agenda.after(self._scene.rules.split_interval_s, self.round)

    def _carry_out(self, split: Split, verdict: Verdict) -> bool:
        scene, table = self._scene, self._scene.table
        row = table.row_of(split.bundle)
        if row is None or table.ownership(row).state is OwnershipState.RELEASING:
            self._judge(Verdict(split.bundle, SplitReason.SPLIT_FAILED, acted=False))
            return True
        self._judge(verdict)
        if scene.controls.dry_run:
            return True
        rows = table.split(row, split.boundaries, scene.stamp(split.reason.value), scene.loads.load[row])
        scene.split_up(rows)
        self.splits.append(SplitDone(scene.agenda.now_s, split.bundle, split.boundaries, split.reason))
        if table.ownership(row).state is OwnershipState.FREE:
            self._lookups.ask(rows)
        elif scene.rules.unload_split_bundles:
            self._work.extendleft(lambda row=row: self._place(row) for row in reversed(rows))  # type: ignore[misc]
        return True

    def _place(self, row: int) -> bool:
        """Move a part to where placement would put it; False when that has to be waited for."""
        table = self._scene.table
        current = table.ownership(row)
        if current.state is not OwnershipState.OWNED or current.owner is None:
            return True
        name = table.names[row]
        destination, verdict = self._leader.choose(name)
        if destination is None or destination == current.owner:
            reason = SplitReason.SPLIT_PART_STAYS if destination is not None else verdict.verdict
            self._judge(Verdict(name, reason, acted=False))
            return True
        step = Unload(name, current.owner, destination, SplitReason.SPLIT_PART_PLACED)
        self._executor.execute_all([step], self._go_on)
        return False

    def _judge(self, verdict: Verdict) -> None:
        self._scene.judged("split", [verdict])
