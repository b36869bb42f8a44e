"""Move log: the moves under way at a Pulsar, kept in our own store for the next leader.

One znode, fenced by the epoch. It is written before Pulsar is asked for a move, and when the move has ended. Changes
that arrive during a write share the next one. A new leader reads it before it moves anything.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import structlog

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.protocol.pulsar_moves import MoveHistory, PendingMove
from loadmanager.errors import InvalidRecordError, OutcomeUnknownError, StoreError
from loadmanager.pulsar.fenced_znode import FencedRecord
from loadmanager.store.znode_codec import decode, pack
from loadmanager.wire.pulsar_records import decode_move_history, encode_move_history

log = structlog.get_logger(__name__)

_AGAIN_S = 1.0
_UNREAD = "the moves of an earlier term are being read"


class MoveLog:
    """`history` holds the moves. `open_moves` is the reason why nothing may be moved yet: moves of earlier terms are
    unknown, or have not ended. It is empty once they have.
    """

    def __init__(self, record: FencedRecord, failures_until_stop: int) -> None:
        self._record = record
        self._failures_until_stop = failures_until_stop
        self._writing = asyncio.Lock()
        self._written: MoveHistory | None = None
        self.history = MoveHistory()
        self.open_moves = _UNREAD
        self.misses = 0
        """Moves that landed on another broker, or back on their source, since this process started."""
        self._returned: set[str] = set()

    async def take_over(self) -> None:
        """Read the log of the last term; waits while the store does not answer. After an unreadable record
        `open_moves` stays set until an operator calls `go_on`.
        """
        self.history, self._written, self.open_moves = MoveHistory(), None, _UNREAD
        self._returned.clear()
        data = await self._read()
        try:
            if data is not None:
                self.history = decode_move_history(decode(data, self._record.path), self._record.path).at(time.time())
        except InvalidRecordError as error:
            log.error("moves_unreadable", error=str(error))  # noqa: TRY400 - a state of the store, not of the code
            self.open_moves = str(error)
        else:
            left = len(self.history.under_way)
            self.open_moves = f"{left} of an earlier term have not ended yet" if left else ""

    async def _read(self) -> bytes | None:
        while True:
            self._record.must_lead()
            try:
                return await self._record.read()
            except StoreError as error:
                log.warning("moves_not_read", error=str(error))
            await asyncio.sleep(_AGAIN_S)

    async def begin(self, bundle: str, move: PendingMove) -> None:
        """Record that a move begins. After `NotLeaderError` or a `StoreError` it has not begun: an entry that may have
        been written is removed first.
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
        """Remove the entry of a move that does not begin; waits as `end` does."""
        self.history = self.history.not_begun(bundle)
        await self._write_patiently()

    async def end(self, bundle: str, owner: BrokerId | None, *, is_cancelled: bool) -> None:
        """Record that a move has ended with the bundle at `owner`. Retries until the store accepts it; raises
        `NotLeaderError` when the term is over.
        """
        move = self.history.under_way[bundle]
        has_missed = move.has_missed(owner) or (bundle in self._returned and owner == move.source)
        self._returned.discard(bundle)
        self.misses += has_missed and not is_cancelled
        self.history = self.history.ended(
            bundle,
            owner,
            time.time(),
            is_excused=is_cancelled or has_missed,
            failures_until_stop=self._failures_until_stop,
        )
        await self._write_patiently()

    def note_return(self, bundle: str) -> None:
        """Count the move of a bundle as a miss when it ends: Pulsar has placed it back at its source."""
        self._returned.add(bundle)

    async def split(self, owner: BrokerId) -> None:
        """Record a split at this owner; retries as `end`. Raises `NotLeaderError`."""
        self.history = self.history.split(owner, time.time(), failures_until_stop=self._failures_until_stop)
        await self._write_patiently()

    async def not_split(self) -> None:
        """Record a failed split; retries as `end`."""
        self.history = self.history.not_split()
        await self._write_patiently()

    async def go_on(self) -> None:
        """Reset the failures, and forget an unreadable record, by an operator's order. Raises `NotLeaderError` or a
        `StoreError`.
        """
        failures = self.history.failures
        self.history = self.history.with_failures_reset()
        try:
            await self._write()
        except BaseException:
            self.history = replace(self.history, failures=failures)
            raise
        if not self.history.under_way:
            self.open_moves = ""

    def seen_through(self) -> None:
        """Note that no move of an earlier term is open."""
        self.open_moves = ""

    async def _write_patiently(self) -> None:
        while True:
            try:
                return await self._write()
            except StoreError as error:
                log.warning("moves_not_written", error=str(error))
            await asyncio.sleep(_AGAIN_S)

    async def _write(self) -> None:
        async with self._writing:
            history = self.history
            if history is self._written:  # by an earlier call
                return
            await self._record.write(pack(encode_move_history(history)))
            self._written = history
