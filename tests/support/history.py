"""Every state a namespace's record went through, as far as one watcher can see it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from loadmanager.core.domain.names import NamespaceName
from loadmanager.core.domain.ownership import NamespaceState
from loadmanager.errors import StoreUnavailableError
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.store.znode_codec import decode
from loadmanager.wire.store_records import decode_namespace


@dataclass(frozen=True, slots=True)
class Moment:
    """A record as it was from the transaction `mzxid` on."""

    mzxid: int
    version: int
    state: NamespaceState


@dataclass(slots=True)
class History:
    moments: list[Moment] = field(default_factory=list)

    def written_by_deposed_leaders(self, epoch: int, since_mzxid: int) -> list[str]:
        """Entries that appeared after `since_mzxid`, when `epoch` began, and carry an older epoch."""
        found = []
        for before, after in zip(self.moments, self.moments[1:], strict=False):
            if after.mzxid <= since_mzxid:
                continue
            pairs = zip(after.state.bundle_names(), before.state.ownerships, after.state.ownerships, strict=True)
            found += [f"{name}: {new}" for name, old, new in pairs if new != old and new.epoch < epoch]
        return found

    def versions_skipped(self) -> list[str]:
        """Bundles whose version did not grow by the transitions seen: it fell, or stayed while the entry changed."""
        found = []
        for before, after in zip(self.moments, self.moments[1:], strict=False):
            pairs = zip(after.state.bundle_names(), before.state.ownerships, after.state.ownerships, strict=True)
            found += [
                f"{name}: {old} -> {new}" for name, old, new in pairs if old != new and new.version <= old.version
            ]
        return found


@asynccontextmanager
async def recording(store: MetadataStore, namespace: str) -> AsyncIterator[History]:
    """Meanwhile keep what the record of `namespace` says, after every change that the watcher hears of."""
    history, path, changed = History(), paths.namespace(namespace), asyncio.Event()
    name = NamespaceName.parse(namespace)

    async def look() -> None:
        znode = await store.get(path)
        if znode is not None and (not history.moments or history.moments[-1].mzxid != znode.mzxid):
            state = decode_namespace(name, decode(znode.data, path), path)
            history.moments.append(Moment(znode.mzxid, znode.version, state))

    async def follow() -> None:
        while True:
            await changed.wait()
            changed.clear()
            with contextlib.suppress(StoreUnavailableError):  # the watch speaks again once the connection is back
                await look()

    unsubscribe = store.watch(path, lambda _: changed.set())
    await look()
    following = asyncio.create_task(follow())
    try:
        yield history
        await store.sync()
        await look()
    finally:
        unsubscribe()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
