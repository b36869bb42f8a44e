"""Which brokers share the host of this one: those that are registered under ids with the same host."""

from __future__ import annotations

import structlog

from loadmanager.core.names import BrokerId, broker_host
from loadmanager.errors import StoreError
from loadmanager.store import paths
from loadmanager.store.base import MetadataStore

log = structlog.get_logger(__name__)


class Neighbours:
    """`count`: how many brokers are on the host, this one included, as was read last."""

    def __init__(self, store: MetadataStore, broker: BrokerId) -> None:
        self._store = store
        self._broker = broker
        self.count = 1

    async def look(self) -> int:
        """The `count` now; as it was while the store does not answer."""
        try:
            ids = {*map(BrokerId, await self._store.children(paths.BROKERS)), self._broker}
        except StoreError as error:
            log.info("neighbours_not_read", error=str(error))
            return self.count
        host = broker_host(self._broker)
        self.count = sum(broker_host(each) == host for each in ids)
        return self.count
