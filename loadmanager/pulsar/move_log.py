"""Move log: the in-flight moves at a Pulsar, kept in our own store for the next leader, which ends them.

It is one znode, fenced by the epoch. The leader writes it before it asks Pulsar for a move, and after the move has
ended. Changes during a write are batched into the next one. A new leader reads the log before it moves anything.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import GuardrailReason
from loadmanager.core.protocol.guardrails import MoveHistory, PendingMove
from loadmanager.errors import InvalidRecordError, OutcomeUnknownError, StoreError
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.pulsar.fenced_znode import FencedRecord
from loadmanager.pulsar.pulsar_owners import OwnerFinder
from loadmanager.store.znode_codec import decode, pack
from loadmanager.wire.pulsar_records import decode_move_history, encode_move_history

log = structlog.get_logger(__name__)

_AGAIN_S = 1.0
_UNREAD = "the moves of an earlier term are being read"


class MoveLog:
    """Moves and failures, in `history`. `open_moves` is the reason why nothing may move yet: moves of earlier terms are
    unknown or have not ended. It is empty after they have ended.
    """

    def __init__(self, record: FencedRecord) -> None:
        self._record = record
        self._writing = asyncio.Lock()
        self._written: MoveHistory | None = None
        self.history = MoveHistory()
        self.open_moves = _UNREAD
        self.misses = 0
        """Number of moves since the process started that ended at another broker than planned, or at the source."""

    async def take_over(self) -> None:
        """Read the log of the last term; retries until the store answers. If the record is unreadable, `open_moves`
        stays set until an operator calls `resume`.
        """
        self.history, self._written, self.open_moves = MoveHistory(), None, _UNREAD
        data = await self._read()
        try:
            if data is not None:
                self.history = decode_move_history(decode(data, self._record.path), self._record.path).at(time.time())
        except InvalidRecordError as error:
            log.error("move_record_unreadable", error=str(error))  # noqa: TRY400 - a state of the store, not of the code
            self.open_moves = str(error)
        else:
            left = len(self.history.in_progress)
            self.open_moves = f"{left} of an earlier term have not ended yet" if left else ""

    async def _read(self) -> bytes | None:
        while True:
            self._record.must_lead()
            try:
                return await self._record.read()
            except StoreError as error:
                log.warning("move_record_not_read", error=str(error))
            await asyncio.sleep(_AGAIN_S)

    async def begin(self, bundle: str, move: PendingMove) -> None:
        """Record that a move begins. On `NotLeaderError` or a `StoreError` the move must not begin: a possibly written
        entry is removed before the error is raised.
        """
        self.history = self.history.begun(bundle, move)
        try:
            await self._write()
        except OutcomeUnknownError:
            await self.withdraw(bundle)
            raise
        except BaseException:
            self.history = self.history.not_begun(bundle)
            raise

    async def withdraw(self, bundle: str) -> None:
        """Remove the entry of a move that does not begin; retries as `end` does."""
        self.history = self.history.not_begun(bundle)
        await self._write_with_retries()

    async def end(self, bundle: str, owner: BrokerId | None, *, is_cancelled: bool, was_released: bool = False) -> None:
        """Record that a move has ended with the bundle at `owner`. Retries until the store accepts it; raises
        `NotLeaderError` after the term.
        """
        has_missed = self.history.in_progress[bundle].has_missed(owner, was_released=was_released)
        self.misses += has_missed and not is_cancelled
        self.history = self.history.ended(bundle, owner, time.time(), is_excused=is_cancelled or has_missed)
        await self._write_with_retries()

    async def split(self, owner: BrokerId) -> None:
        """Record a split at this owner; retries as `end`. Raises `NotLeaderError`."""
        self.history = self.history.split(owner, time.time())
        await self._write_with_retries()

    async def not_split(self) -> None:
        """Record a failed split; retries as `end`."""
        self.history = self.history.not_split()
        await self._write_with_retries()

    async def resume(self) -> None:
        """Reset the failures and drop an unreadable record, on an operator's command. Raises `NotLeaderError` or a
        `StoreError`.
        """
        failures = self.history.failures
        self.history = self.history.with_failures_reset()
        try:
            await self._write()
        except BaseException:
            self.history = replace(self.history, failures=failures)
            raise
        if not self.history.in_progress:
            self.open_moves = ""

    def note_recovered(self) -> None:
        """Record that no move of an earlier term is open."""
        self.open_moves = ""

    async def _write_with_retries(self) -> None:
        while True:
            try:
                return await self._write()
            except StoreError as error:
                log.warning("move_record_not_written", error=str(error))
            await asyncio.sleep(_AGAIN_S)

    async def _write(self) -> None:
        async with self._writing:
            history = self.history
            if history is self._written:  # a concurrent call wrote it
                return
            await self._record.write(pack(encode_move_history(history)))
            self._written = history


class Recovery:
    """Ends the in-flight moves of an earlier term, after a crash, a pause or a lost session.

        owner of the bundle           meaning
        -------------------           -------
        the destination               the move has landed
        the source, another broker    the move is over: the unload never began, or Pulsar placed the bundle elsewhere
        nobody                        look the bundle up, so that Pulsar places it

    Guardrails stop all moves until recovery has ended. A paused process may still send one unload afterwards: Pulsar
    then places that bundle again.
    """

    def __init__(self, move_log: MoveLog, owned: OwnerFinder, decision_log: DecisionLog) -> None:
        self._move_log = move_log
        self._owned = owned
        self._decision_log = decision_log

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
        why: dict[str, Figure] = {"source": move.source}
        if move.destination is not None:
            why["destination"] = move.destination
        if owner is not None:
            why["owner"] = owner.broker
        self._decision_log.judged(
            "repair", Verdict(bundle, GuardrailReason.MOVE_INTERRUPTED, acted=True, why=why), epoch=epoch
        )
        log.info("move_recovered", bundle=bundle, **why)
