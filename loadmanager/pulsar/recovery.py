"""Recovery: ends the in-flight moves of an earlier term, after a crash, a pause or a lost session.

    owner of the bundle           meaning
    -------------------           -------
    the destination               the move has landed
    the source, another broker    the move is over: the unload never began, or Pulsar placed the bundle elsewhere
    nobody                        look the bundle up, so that Pulsar places it

Guardrails stop all moves until recovery has ended. A paused process may still send one unload afterwards: Pulsar then
places that bundle again.
"""

from __future__ import annotations

import structlog

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import GuardrailReason
from loadmanager.core.protocol.pulsar_moves import PendingMove
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.pulsar.move_log import MoveLog
from loadmanager.pulsar.owner_finder import OwnerFinder

log = structlog.get_logger(__name__)


class Recovery:
    """Recovery of one process. `run` returns when no earlier move is open; `healed` counts the moves that it ended."""

    def __init__(self, move_log: MoveLog, owned: OwnerFinder, decision_log: DecisionLog) -> None:
        self._move_log = move_log
        self._owned = owned
        self._decision_log = decision_log
        self.healed = 0

    async def run(self, epoch: int) -> None:
        """End the open moves, after the move log was read. Raises `NotLeaderError` after the term."""
        in_progress = dict(self._move_log.history.in_progress)
        for bundle, move in in_progress.items():
            owner = await self._owned.find(BundleName.parse(bundle), move.source, move.destination)
            self._log(bundle, move, owner, epoch)  # before the write, during which the term may end
            await self._move_log.end(bundle, None if owner is None else owner.broker, is_cancelled=True)
        if in_progress:
            self._move_log.note_recovered()

    def _log(self, bundle: str, move: PendingMove, owner: Registration | None, epoch: int) -> None:
        self.healed += 1
        why: dict[str, Figure] = {"source": move.source}
        if move.destination is not None:
            why["destination"] = move.destination
        if owner is not None:
            why["owner"] = owner.broker
        self._decision_log.judged(
            "heal", Verdict(bundle, GuardrailReason.MOVE_INTERRUPTED, acted=True, why=why), epoch=epoch
        )
        log.info("move_recovered", bundle=bundle, **why)
