"""The folders that every node needs, and its own record, which is there for as long as its session."""

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
    """`run` returns once the node is registered in the current session."""

    def __init__(self, store: MetadataStore, record: NodeRecord) -> None:
        self._store = store
        self._record = record

    async def make_folders(self) -> None:
        for path in paths.PERSISTENT_PARENTS:
            await self._store.ensure_path(path)

    async def _register(self) -> None:
        """Register in the current session, with the folders that a store may have lost since the last one."""
        path = paths.node(self._record.node_id)
        known = await self._store.get(path)
        if known is not None and known.ephemeral_owner == self._store.session_id:
            return
        await self.make_folders()
        left_over = [Delete(path)] if known is not None else []
        await self._store.commit([*left_over, Create(path, self._record.to_json(), ephemeral=True)])

    async def run(self) -> None:
        """Register, whatever is in the way for a moment: a left-over of a former life, or no connection."""
        while True:
            try:
                await self._register()
            except StoreError as error:
                log.info("not_registered_yet", error=str(error))
                await asyncio.sleep(_TRY_AGAIN_S)
            else:
                return
