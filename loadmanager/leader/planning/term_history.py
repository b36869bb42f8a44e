"""History of a term: a checkpoint at its begin, and further ones at intervals."""

from __future__ import annotations

import asyncio

from loadmanager.leader.audit.move_records import MoveRecorder
from loadmanager.leader.audit.recorded_model import RecordedModel
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import MINUTE_S, PlannerService


class TermHistory:
    """Records the terms of one node."""

    def __init__(
        self, node_id: str, view: ClusterMirror, desk: PlannerService, moves: MoveRecorder, live: LiveSettings
    ) -> None:
        self._node_id = node_id
        self._view = view
        self._desk = desk
        self._moves = moves
        self._live = live

    def begin(self, epoch: int) -> None:
        """Begin the term of the planner service, and record it if the node records."""
        self._moves.forget()
        self._desk.begin_term()
        model = self._view.model
        if isinstance(model, RecordedModel):
            self._desk.recorder.begin_term(epoch, self._node_id, model, self._desk)

    async def keep_checkpoints(self) -> None:
        """Record a checkpoint at every interval: a replay can begin at each."""
        model = self._view.model
        while isinstance(model, RecordedModel):
            await asyncio.sleep(self._live.current.history_checkpoint_interval_minutes * MINUTE_S)
            await self._desk.checkpoint(model)
