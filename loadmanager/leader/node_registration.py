"""Registration of a node: the folders of the store, and the node's own ephemeral record."""

from __future__ import annotations

import asyncio

import structlog

from loadmanager.errors import StoreError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Delete, MetadataStore
from loadmanager.wire.store_records import NodeRecord

log = structlog.get_logger(__name__)

_TRY_AGAIN_S = 0.5


class NodeRegistrar:
    """Registers this node; `run` returns once it is registered in the current session."""

    def __init__(self, store: MetadataStore, record: NodeRecord) -> None:
        self._store = store
        self._record = record

    async def make_folders(self) -> None:
        for path in paths.PERSISTENT_PARENTS:
            await self._store.ensure_path(path)

    async def _register(self) -> None:
        """Register in the current session, and create folders that the store has lost."""
        path = paths.node(self._record.node_id)
        known = await self._store.get(path)
        if known is not None and known.ephemeral_owner == self._store.session_id:
            return
        await self.make_folders()
        left_over = [Delete(path)] if known is not None else []
        await self._store.commit([*left_over, Create(path, self._record.to_json(), ephemeral=True)])

    async def run(self) -> None:
        """Register, and retry while a leftover of a former process or a lost connection is in the way."""
        while True:
            try:
                await self._register()
            except StoreError as error:
                log.info("not_registered_yet", error=str(error))
                await asyncio.sleep(_TRY_AGAIN_S)
            else:
                return
