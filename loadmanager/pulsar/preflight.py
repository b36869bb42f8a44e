"""Checks at the start: the configured brokers must answer, and the history must belong to the state store.

| answer | outcome |
|---|---|
| not from a Pulsar, or the token is refused | `ConfigurationError` |
| none, or a temporary failure | `PulsarUnreachableError`, `PulsarRefusedError`: start again later |
| from a broker of another cluster | `ConfigurationError` |
| an untested version | a warning |

The files of a history are named by epoch, so epochs must only grow. But a store in memory starts at epoch 0 in each
process, and an operator may configure another store:

| our store | action |
|---|---|
| in memory | continue the epochs after the last one of the history |
| at the last epoch of the history, or beyond it | continue the history |
| behind the history | rename the history: it belongs to another store |
"""

from __future__ import annotations

from pathlib import Path

from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.errors import ConfigurationError
from loadmanager.history.gaps import last_epoch, move_aside_if_ahead
from loadmanager.history.reader import History
from loadmanager.pulsar.broker_settings import HISTORY, BrokerSettings
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.rest_call import FAULTS_OF_ITS_OWN, PulsarRefusedError, PulsarUnreachableError
from loadmanager.store import paths
from loadmanager.store.local_store import LocalStore
from loadmanager.store.metadata_store import MetadataStore, Znode

_TRIED = ("4.0.1", "4.2.4", "5.0.0-M1")
_BUSY = 429


async def ask_settings(admin: PulsarAdmin, settings: PulsarServiceSettings) -> BrokerSettings:
    """Return the settings of the first broker that answers; raises as the table says."""
    answers = [await _ask(admin, url) for url in settings.admin_urls]
    answered = [each for each in answers if isinstance(each, BrokerSettings)]
    errors = [each for each in answers if not isinstance(each, BrokerSettings)]
    wanted = settings.cluster_name or next((each.cluster for each in answered), "")
    for each in answered:
        if each.cluster != wanted:
            raise ConfigurationError(
                f"adminUrls {each.url}: a broker of the cluster {each.cluster!r}, and not of {wanted!r}: give brokers"
                " of one cluster, or leave clusterName out"
            )
    if not answered:
        raise errors[0]
    return answered[0]


async def find_warning(admin: PulsarAdmin, broker: BrokerSettings) -> str | None:
    """Return the warning for an untested version, None for a tested one."""
    version = await admin.version(broker.url)
    if version in _TRIED:
        return None
    return f"the brokers have version {version}; tried versions are {', '.join(_TRIED)}: observe before you act"


async def _ask(admin: PulsarAdmin, url: str) -> BrokerSettings | PulsarRefusedError | PulsarUnreachableError:
    """Return the settings of a broker, or a temporary error. Raises `ConfigurationError` for a permanent error."""
    try:
        return await admin.settings(url)
    except PulsarUnreachableError as error:
        return error
    except PulsarRefusedError as error:
        if error.status == _BUSY or error.status >= FAULTS_OF_ITS_OWN:
            return error
        raise ConfigurationError(f"adminUrls: {error}") from None


def memory_after(folder: Path, session_timeout_s: float = 10.0) -> LocalStore:
    """Return a store in memory whose epochs follow those recorded in `folder`; raises `HistoryError`."""
    versions = {paths.ROOT: 0, paths.EPOCH: last_epoch(History(str(folder / HISTORY)))}
    znodes = [Znode(path, b"", version, 0, 0, 0) for path, version in versions.items()]
    return LocalStore(znodes, session_timeout_s=session_timeout_s)


async def put_history_of_another_store_aside(folder: Path, store: MetadataStore) -> None:
    """Move the history aside if its last epoch is above the store's. Raises `HistoryError` or a `StoreError`."""
    znode = await store.get(paths.EPOCH)
    move_aside_if_ahead(folder / HISTORY, 0 if znode is None else znode.version, "stateStoreUrl")
