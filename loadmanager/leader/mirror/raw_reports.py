"""What brokers wrote of themselves, whole: read from the store for whoever asks, since a node does not keep it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loadmanager.core.domain.names import BrokerId
from loadmanager.errors import BrokerNotFoundError
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.store import paths
from loadmanager.store.metadata_store import Znode
from loadmanager.store.znode_codec import decode
from loadmanager.wire.broker_data import LocalBrokerData
from loadmanager.wire.load_report import decode_broker_record


class RawReports:
    """`get` reads a znode."""

    def __init__(self, get: Callable[[str], Awaitable[Znode | None]], view: ClusterMirror) -> None:
        self._get = get
        self._view = view

    async def read(self, broker_id: BrokerId) -> LocalBrokerData:
        """As the port says."""
        self._view.get_registration(broker_id)
        where = paths.broker(broker_id)
        znode = await self._get(where)
        if znode is None:
            raise BrokerNotFoundError(f"broker {broker_id!r} has just gone")
        return await asyncio.to_thread(lambda: decode_broker_record(decode(znode.data, where), where))
