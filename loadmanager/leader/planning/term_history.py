"""History of a term: a checkpoint at its begin, and further ones at intervals."""

from __future__ import annotations

import asyncio

from loadmanager.leader.audit.move_records import MoveRecorder
from loadmanager.leader.audit.recorded_model import RecordedModel
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.planning.planner_service import PlannerService

_CHECKPOINT_INTERVAL_S = 3_600.0
"""A replay begins at a checkpoint, so it reads at most one hour of history before the time that is asked for."""


class TermHistory:
    """Records the terms of one node."""

    def __init__(self, node_id: str, mirror: ClusterMirror, planner: PlannerService, moves: MoveRecorder) -> None:
        self._node_id = node_id
        self._mirror = mirror
        self._planner = planner
        self._moves = moves

    def begin(self, epoch: int) -> None:
        """Begin the term of the planner service, and record it if the node records."""
        self._moves.forget()
        self._planner.begin_term()
        model = self._mirror.model
        if isinstance(model, RecordedModel):
            self._planner.recorder.begin_term(epoch, self._node_id, model, self._planner)

    async def keep_checkpoints(self) -> None:
        """Record a checkpoint at every interval: a replay can begin at each."""
        model = self._mirror.model
        while isinstance(model, RecordedModel):
            await asyncio.sleep(_CHECKPOINT_INTERVAL_S)
            await self._planner.checkpoint(model)
