"""Detection of a store rollback: older data in the metadata store while the session lived on.

A leader is elected before it asks for anything, and a bundle's release is written before its unload is asked for. So
what the store says after a `sync` is never less than what an unload has told the agent, unless writes were lost:

    what an unload told             what the store says                           then
    -------------------             -------------------                           ----
    its leader's epoch              an older epoch                                writes were lost
    the version of the release      the bundle is Owned by this very              writes were lost
                                    registration, at that version or an older one
    anything                        anything else, or nothing for certain         nothing is known to be lost

Fences and epochs of before would then stand against what is true now, for ever: nothing would be opened that the record
gives to the broker, and no leader could take anything away. So the registration is taken back, and with a new one all
that was remembered is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from loadmanager.agent.grants import Grants
from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.errors import InvalidRecordError, StoreError
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.store.znode_codec import decode
from loadmanager.wire.store_records import decode_namespace

log = structlog.get_logger(__name__)


class StoreRollback:
    """Looks when something contradicts what an unload told; `withdraw` takes the registration back."""

    def __init__(self, store: MetadataStore, grants: Grants, withdraw: Callable[[str], object]) -> None:
        self._store = store
        self._grants = grants
        self._withdraw = withdraw

    async def look(self, bundle: BundleName) -> None:
        """Compare what was told of the bundle by now with what the store says."""
        registration, epoch = self._grants.registration, self._grants.highest_epoch
        fence = self._grants.highest_fence(bundle)
        try:
            were_lost = await self.read_epoch() < epoch or await self._is_owned_up_to(fence, bundle)
        except (StoreError, InvalidRecordError) as error:
            log.warning("store_not_compared", error=str(error))
            return
        if were_lost and registration == self._grants.registration:
            log.warning("store_was_set_back", bundle=str(bundle), version=fence, epoch=epoch)
            self._withdraw("store_set_back")

    async def read_epoch(self) -> int:
        """The current epoch; `StoreError` when it cannot be read."""
        await self._store.sync()
        znode = await self._store.get(paths.EPOCH)
        return znode.version if znode else 0

    async def _is_owned_up_to(self, version: int, bundle: BundleName) -> bool:
        path = paths.namespace(str(bundle.namespace))
        znode = await self._store.get(path)
        if znode is None:
            return False
        state = decode_namespace(bundle.namespace, decode(znode.data, path), path)
        index = state.bundles.find_index(bundle.range)
        if index is None:
            return False
        ownership = state.ownerships[index]
        is_ours = ownership.state is OwnershipState.OWNED and ownership.owner == self._grants.registration
        return is_ours and ownership.version <= version
