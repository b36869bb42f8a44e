"""History of earlier processes in the same folder, and the epochs of the state store.

A history has one place for each epoch. A store in memory begins anew with each process, and an operator may have given
another store than the day before:

    epochs of our store       then
    ---------------------     ----------------------------------------------------
    are in memory             they go on from the last one of the history
    have reached the last     the history goes on
    are behind it             it is put aside, as the history of another store
"""

from __future__ import annotations

from pathlib import Path

from loadmanager.history.gaps import last_epoch, put_aside_if_ahead
from loadmanager.history.reader import History
from loadmanager.pulsar.planning_settings import HISTORY
from loadmanager.store import paths
from loadmanager.store.local_store import LocalStore
from loadmanager.store.metadata_store import MetadataStore, Znode


def memory_after(folder: Path, session_timeout_s: float = 10.0) -> LocalStore:
    """A store in memory whose epochs come after those that are recorded in the `folder`; raises `HistoryError`."""
    versions = {paths.ROOT: 0, paths.EPOCH: last_epoch(History(str(folder / HISTORY)))}
    znodes = [Znode(path, b"", version, 0, 0, 0) for path, version in versions.items()]
    return LocalStore(znodes, session_timeout_s=session_timeout_s)


async def put_history_of_another_store_aside(folder: Path, store: MetadataStore) -> None:
    """Once the `store` has said how far its epochs are; raises `HistoryError` or a `StoreError`."""
    znode = await store.get(paths.EPOCH)
    put_aside_if_ahead(folder / HISTORY, 0 if znode is None else znode.version, "stateStoreUrl")
