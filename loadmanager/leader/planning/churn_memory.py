"""Churn memory of the leader: past moves, which limit shedding, and the thrash breaker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import Ownership
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import ChurnReason, Reason
from loadmanager.core.model.fleet_load import share_of
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn
from loadmanager.core.planning.churn import OPERATOR_REASONS, MoveMemory, State
from loadmanager.core.planning.plan_effect import MoveEffect
from loadmanager.history.entry_rows import HistoryEvent
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.leader.audit.move_records import MoveRecorder
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ChurnFigures:
    """Shares of all load that shedding moved: within the hour, again within two hours, back within four
    (`core.planning.repeated_moves`); and what the breaker has stopped. Times are seconds left.
    """

    moved_within_hour: float
    moved_again: float
    moved_back: float
    shedding_stopped_for_s: float
    frozen_for_s: dict[str, float]


class Churn:
    """Churn limits while this node leads; `state` is the memory of `core.planning.churn`.

    `memory_changed` is set when the memory should be written: the breaker trips or is reset, or a round has moved
    something. `snapshot` may return an older snapshot.
    """

    def __init__(
        self,
        mirror: ClusterMirror,
        live: LiveSettings,
        decision_log: DecisionLog,
        snapshot: Callable[[], Snapshot],
        recorder: HistoryRecorder,
        moves: MoveRecorder,
    ) -> None:
        self.state: State = {}
        self.memory_changed = asyncio.Event()
        self._mirror = mirror
        self._live = live
        self._decision_log = decision_log
        self._snapshot = snapshot
        self._recorder = recorder
        self._moves = moves
        self._in_progress: dict[tuple[str, int], float] = {}

    def began(self, name: BundleName, released: Ownership) -> MoveEffect:
        """Record the start of an unload; return its predicted effect."""
        snapshot = self._snapshot()
        effect = self._moves.began(str(name), released, snapshot)
        if released.reason not in OPERATOR_REASONS:
            self._in_progress[str(name), released.version] = share_of(snapshot, str(name))
        return effect

    def ended(self, name: BundleName, released: Ownership) -> None:
        """Record that an unload is no longer in flight here, whatever its outcome."""
        self._in_progress.pop((str(name), released.version), None)

    @property
    def share_in_progress(self) -> float:
        """Share of all load in flight: shedding has begun to move it, and it has not arrived."""
        return sum(self._in_progress.values())

    def kept(self, name: BundleName, released: Ownership, reason: Reason, error: str) -> None:
        """Record an abandoned unload: the owner keeps the bundle."""
        self._moves.kept(str(name), released, reason.value, error)

    def moved(self, name: BundleName, released: Ownership, done: Ownership) -> MoveEffect | None:
        """Record a completed unload; return its effect, None if another leader began it."""
        if released.owner is None:
            return None
        snapshot, at_s, settings = self._snapshot(), time.time(), self._live.planner
        share = share_of(snapshot, str(name))
        is_own = released.reason not in OPERATOR_REASONS
        self.state, verdicts = churn.noted(
            self.state,
            str(name),
            released.owner,
            done.owner,
            share,
            settings,
            at_s=at_s,
            is_own=is_own,
        )
        noted: dict[str, Any] = {"atS": at_s, "isOwn": is_own, "share": share, "snapshot": self._recorder.last_snapshot}
        tripped = [[verdict.subject, verdict.verdict.value] for verdict in verdicts]
        noted |= {"settingsId": self._recorder.settings_id, "tripped": tripped}
        effect = self._moves.done(str(name), released, done, noted)
        for verdict in verdicts:
            self._on_breaker_tripped(verdict)
        return effect

    def _on_breaker_tripped(self, verdict: Verdict) -> None:
        self.memory_changed.set()
        self._decision_log.judged("breaker", verdict, epoch=self._mirror.epoch)
        log.warning("breaker_tripped", subject=verdict.subject, sentence=verdict.sentence(), **verdict.why)

    def lift(self, bundle: str | None = None) -> None:
        """Reset the breaker for an operator, for one bundle or entirely."""
        self.state = churn.lifted(self.state, bundle)
        self._recorder.put(HistoryEvent("breaker_lifted", bundle or ""))
        self.memory_changed.set()
        verdict = Verdict(bundle or "cluster", ChurnReason.BREAKER_LIFTED, acted=True)
        self._decision_log.judged("breaker", verdict, epoch=self._mirror.epoch)
        log.info("breaker_lifted", subject=verdict.subject)

    def figures(self) -> ChurnFigures:
        now_s = time.time()
        memory = MoveMemory.of(self.state).at(now_s, self._live.planner)
        return ChurnFigures(
            memory.moved_share(self._snapshot(), now_s),
            memory.moved_again(now_s),
            memory.moved_back(now_s),
            max(0.0, memory.stopped_until_s - now_s),
            {bundle: until_s - now_s for bundle, until_s in sorted(memory.frozen_until_s.items())},
        )
