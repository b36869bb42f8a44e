"""Sees through what an earlier term had under way when it was cut short: by a crash, a pause, or a lost session.

    who owns the bundle of such a move    then
    ----------------------------------    ----
    its destination                       it has landed
    its source, or another broker         it is over: its unload never began, or Pulsar placed the bundle elsewhere
    nobody                                it is looked up, and Pulsar places it

Until all were looked at, rails stop everything. The unload of a process that was paused may still come after that:
then it is one bundle that Pulsar places anew.
"""

from __future__ import annotations

import structlog

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import GuardrailReason
from loadmanager.core.protocol.pulsar_moves import PendingMove
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.pulsar.move_verification import PulsarOwnership
from loadmanager.pulsar.pending_moves import ActsMemory

log = structlog.get_logger(__name__)


class Recovery:
    """`run` ends once nothing of an earlier term is open; `healed` counts the moves that it has seen through."""

    def __init__(self, memory: ActsMemory, owned: PulsarOwnership, decision_log: DecisionLog) -> None:
        self._memory = memory
        self._owned = owned
        self._decision_log = decision_log
        self.healed = 0

    async def run(self, epoch: int) -> None:
        """For a term that has taken over the memory; raises `NotLeaderError` when it is over."""
        under_way = dict(self._memory.acts.under_way)
        for bundle, move in under_way.items():
            owner = await self._owned.find(BundleName.parse(bundle), move.source, move.destination)
            self._say(bundle, move, owner, epoch)  # first: a term may end in the middle of the write that forgets it
            await self._memory.end(bundle, None if owner is None else owner.broker, is_cancelled=True)
        if under_way:
            self._memory.seen_through()

    def _say(self, bundle: str, move: PendingMove, owner: Registration | None, epoch: int) -> None:
        self.healed += 1
        why: dict[str, Figure] = {"source": move.source}
        if move.destination is not None:
            why["destination"] = move.destination
        if owner is not None:
            why["owner"] = owner.broker
        self._decision_log.judged(
            "heal", Verdict(bundle, GuardrailReason.MOVE_CUT_SHORT, acted=True, why=why), epoch=epoch
        )
        log.info("move_seen_through", bundle=bundle, **why)
