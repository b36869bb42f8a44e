"""Complete load reports, read from the store on request: a node does not keep them."""

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
    """Reads load reports; `get` reads a znode."""

    def __init__(self, get: Callable[[str], Awaitable[Znode | None]], mirror: ClusterMirror) -> None:
        self._get = get
        self._mirror = mirror

    async def read(self, broker_id: BrokerId) -> LocalBrokerData:
        """Return the last report of a registered broker; see `node_port.ReportPort`."""
        self._mirror.get_registration(broker_id)
        where = paths.broker(broker_id)
        znode = await self._get(where)
        if znode is None:
            raise BrokerNotFoundError(f"broker {broker_id!r} has just gone")
        return await asyncio.to_thread(lambda: decode_broker_record(decode(znode.data, where), where))
