"""Keeps what is remembered of moves that are made beside a Pulsar in the store of the processes that may make them.

One znode, written under the epoch: before Pulsar is asked for a move, and when the move has ended. Changes that arrive
while a write is under way share the next one. Who is elected reads it before anything is moved.
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
from loadmanager.wire.pulsar_records import decode_acts, encode_acts

log = structlog.get_logger(__name__)

_AGAIN_S = 1.0
_UNREAD = "what an earlier term left is being read"


class ActsMemory:
    """`acts` is what is remembered. `open_moves` says why nothing may be moved yet: what earlier terms left is not
    known, or not seen through; nothing once it is.
    """

    def __init__(self, record: FencedRecord, failures_until_stop: int) -> None:
        self._record = record
        self._failures_until_stop = failures_until_stop
        self._writing = asyncio.Lock()
        self._written: MoveHistory | None = None
        self.acts = MoveHistory()
        self.open_moves = _UNREAD
        self.misses = 0
        """Moves that landed on another broker, or back on their source, since this process started."""
        self._returned: set[str] = set()

    async def take_over(self) -> None:
        """Begin with what the last term left; waits while the store does not say it. One that cannot be read leaves
        `open_moves` said, until an operator says go on.
        """
        self.acts, self._written, self.open_moves = MoveHistory(), None, _UNREAD
        self._returned.clear()
        data = await self._read()
        try:
            if data is not None:
                self.acts = decode_acts(decode(data, self._record.path), self._record.path).at(time.time())
        except InvalidRecordError as error:
            log.error("moves_unreadable", error=str(error))  # noqa: TRY400 - a state of the store, not of the code
            self.open_moves = str(error)
        else:
            left = len(self.acts.under_way)
            self.open_moves = f"{left} of an earlier term are being seen through" if left else ""

    async def _read(self) -> bytes | None:
        while True:
            self._record.must_lead()
            try:
                return await self._record.read()
            except StoreError as error:
                log.warning("moves_not_read", error=str(error))
            await asyncio.sleep(_AGAIN_S)

    async def begin(self, bundle: str, move: PendingMove) -> None:
        """Write down that a move begins. Raises `NotLeaderError` or a `StoreError`, and then it has not begun: what may
        have been written all the same is taken back first.
        """
        self.acts = self.acts.begun(bundle, move)
        try:
            await self._write()
        except OutcomeUnknownError:
            await self.withdraw(bundle)
            raise
        except BaseException:
            self.acts = self.acts.not_begun(bundle)
            raise

    async def withdraw(self, bundle: str) -> None:
        """A move that was written down does not begin after all; waits as `end` does."""
        self.acts = self.acts.not_begun(bundle)
        await self._write_patiently()

    async def end(self, bundle: str, owner: BrokerId | None, *, is_cancelled: bool) -> None:
        """A move under way has ended with the bundle at `owner`. Waits while the store does not take that, for as long
        as the term lasts: `NotLeaderError` when it is over.
        """
        move = self.acts.under_way[bundle]
        has_missed = move.has_missed(owner) or (bundle in self._returned and owner == move.source)
        self._returned.discard(bundle)
        self.misses += has_missed and not is_cancelled
        self.acts = self.acts.ended(
            bundle,
            owner,
            time.time(),
            is_excused=is_cancelled or has_missed,
            failures_until_stop=self._failures_until_stop,
        )
        await self._write_patiently()

    def note_return(self, bundle: str) -> None:
        """Have the move of a bundle end as a miss: Pulsar has placed it back at its source."""
        self._returned.add(bundle)

    async def split(self, owner: BrokerId) -> None:
        """A bundle of this owner was split; written as the end of a move is. Raises `NotLeaderError`."""
        self.acts = self.acts.split(owner, time.time(), failures_until_stop=self._failures_until_stop)
        await self._write_patiently()

    async def not_split(self) -> None:
        """A split has failed; as above."""
        self.acts = self.acts.not_split()
        await self._write_patiently()

    async def go_on(self) -> None:
        """An operator wants moves to be made again, whatever failed, or cannot be read. Raises `NotLeaderError` or a
        `StoreError`.
        """
        failures = self.acts.failures
        self.acts = self.acts.with_failures_reset()
        try:
            await self._write()
        except BaseException:
            self.acts = replace(self.acts, failures=failures)
            raise
        if not self.acts.under_way:
            self.open_moves = ""

    def seen_through(self) -> None:
        """No move of an earlier term is open any more."""
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
            acts = self.acts
            if acts is self._written:  # by whoever wrote last
                return
            await self._record.write(pack(encode_acts(acts)))
            self._written = acts
