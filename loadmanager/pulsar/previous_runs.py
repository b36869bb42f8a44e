"""History of earlier processes in the same folder, and the epochs of the state store.

The files of a history are named by epoch, so epochs must only grow. But a store in memory starts at epoch 0 in each
process, and an operator may configure another store:

    our store                                action
    ---------                                ------
    in memory                                continue the epochs after the last one of the history
    at the last epoch of the history, or     continue the history
    beyond it
    behind the history                       rename the history: it belongs to another store
"""

from __future__ import annotations

from pathlib import Path

from loadmanager.history.gaps import last_epoch, move_aside_if_ahead
from loadmanager.history.reader import History
from loadmanager.pulsar.planning_settings import HISTORY
from loadmanager.store import paths
from loadmanager.store.local_store import LocalStore
from loadmanager.store.metadata_store import MetadataStore, Znode


def memory_after(folder: Path, session_timeout_s: float = 10.0) -> LocalStore:
    """Return a store in memory whose epochs follow those recorded in `folder`; raises `HistoryError`."""
    versions = {paths.ROOT: 0, paths.EPOCH: last_epoch(History(str(folder / HISTORY)))}
    znodes = [Znode(path, b"", version, 0, 0, 0) for path, version in versions.items()]
    return LocalStore(znodes, session_timeout_s=session_timeout_s)


async def put_history_of_another_store_aside(folder: Path, store: MetadataStore) -> None:
    """Move the history aside if its last epoch is above the store's. Raises `HistoryError` or a `StoreError`."""
    znode = await store.get(paths.EPOCH)
    move_aside_if_ahead(folder / HISTORY, 0 if znode is None else znode.version, "stateStoreUrl")
