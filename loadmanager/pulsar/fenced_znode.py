"""One znode of our own store that only the leader can write: each write checks the epoch."""

from __future__ import annotations

from typing import Protocol

from loadmanager.core.protocol.leadership import Term
from loadmanager.errors import StaleEpochError, TransactionFailedError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Check, Create, MetadataStore, Op, Put


class ElectionPort(Protocol):
    """Term of this process."""

    def get_term(self) -> Term: ...
    def deposed(self) -> None: ...


class FencedRecord:
    """Reads and writes the znode at `path`; the first write creates it."""

    def __init__(self, store: MetadataStore, election: ElectionPort, path: str) -> None:
        self.path = path
        self._store = store
        self._election = election
        self._exists = False

    def must_lead(self) -> None:
        """Raise `NotLeaderError` unless this process leads. For actions that the epoch cannot fence."""
        self._election.get_term()

    async def read(self) -> bytes | None:
        """Return the record, None without one; raises a `StoreError`."""
        znode = await self._store.get(self.path)
        self._exists = znode is not None
        return None if znode is None else znode.data

    async def write(self, data: bytes) -> None:
        """Raises `NotLeaderError`, `StaleEpochError` or a `StoreError`."""
        term = self._election.get_term()
        if not self._exists:
            await self._store.ensure_path(self.path.rpartition("/")[0])
        op: Op = Put(self.path, data) if self._exists else Create(self.path, data)
        try:
            await self._store.commit([Check(paths.EPOCH, term.epoch), op], session_id=term.session_id)
        except TransactionFailedError as error:
            if error.index == 0:
                self._election.deposed()
                raise StaleEpochError("another process has taken over; this write had no effect") from None
            self._exists = error.cause == "node_exists"  # then the next write uses the right operation
            raise
        self._exists = True
