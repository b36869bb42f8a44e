"""What is looked at before anything else: whether there is a Pulsar, the same one at both addresses, of a kind we know.

| what is found | what comes of it |
|---|---|
| no Pulsar in the metadata store, or a loadmanager's own cluster | `ConfigurationError` |
| what answers is no Pulsar, or refuses the token | `ConfigurationError` |
| nobody answers, or Pulsar cannot answer now | `PulsarUnreachableError`, `PulsarRefusedError`: start it again later |
| a broker of another cluster, or with another metadata store, whatever its cluster is called | `ConfigurationError` |
| a metadata store that is no ZooKeeper | `ConfigurationError` |
| a broker under another load manager than ModularLoadManagerImpl | `ConfigurationError` |
| policies in a configuration store of their own | `ConfigurationError` where we act, a warning where we look |
| brokers of a version that was not tried | a warning |

Two addresses are the same Pulsar if its broker there knows brokers whose registrations are here: those end with their
sessions, so no copy and no other cluster has them. The names by which brokers reach their ZooKeeper say less: from
outside it often has others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from loadmanager.config import BesideSettings
from loadmanager.core.domain.settings import short_class_name
from loadmanager.errors import ConfigurationError
from loadmanager.lab.decide.broker_settings import BrokerSettings
from loadmanager.lab.decide.record_collector import Reader
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.refusals import PulsarRefusedError, PulsarUnreachableError
from loadmanager.store import paths
from loadmanager.store.pulsar_paths import CLUSTERS

_TRIED = ("4.0.1",)
_MODULAR = "ModularLoadManagerImpl"
_LOAD_MANAGER = "loadManagerClassName"
_ALL_CLUSTERS = "global"
_BUSY = 429
_FAULTS = 500
_NAMES_SHOWN = 5


async def refuse_unfit(pulsar: Reader, admin: PulsarAdmin, settings: BesideSettings) -> BrokerSettings:
    """What the first of the brokers goes by that answers; raises as the table says, in sentences."""
    answers = [await _ask(admin, url) for url in settings.admin_urls]
    told = [each for each in answers if isinstance(each, BrokerSettings)]
    for each in told:
        _refuse_other_store(each)
    where = f"pulsarMetadataStoreUrl {settings.pulsar_metadata_store_url}"
    clusters = await _find_clusters(pulsar, where)
    load_managers = await _read_of_brokers(pulsar, _LOAD_MANAGER)
    _refuse_other_load_managers(load_managers)
    for each in told:
        _refuse_other_cluster(each, clusters, settings.cluster_name, where)
        await _refuse_strangers(admin, each.url, list(load_managers), where)
        if settings.mode == "act" and (warning := _find_separate_store(each)):
            raise ConfigurationError(f"{warning}; to act on half a picture would be worse than not to")
    unanswered = next((each for each in answers if not isinstance(each, BrokerSettings)), None)
    if not told and unanswered is not None:
        raise unanswered
    return told[0]


async def find_warnings(pulsar: Reader, told: BrokerSettings) -> list[str]:
    """What an operator should know before believing what comes."""
    versions = set((await _read_of_brokers(pulsar, "brokerVersionString")).values()) - {"", *_TRIED}
    untried = (
        f"brokers are of version {', '.join(sorted(versions))}, and {', '.join(_TRIED)} was tried: watch it in mode"
        " shadow first"
    )
    warnings = [untried if versions else None, _find_separate_store(told)]
    return [warning for warning in warnings if warning is not None]


async def _find_clusters(pulsar: Reader, where: str) -> list[str]:
    """The Pulsar clusters that are known in the metadata store."""
    clusters = [name for name in await pulsar.children(CLUSTERS) if name != _ALL_CLUSTERS]
    if clusters:
        return clusters
    if await pulsar.get(paths.EPOCH) is not None:
        raise ConfigurationError(
            f"{where}: here is a cluster of loadmanager's own ({paths.EPOCH}) and no Pulsar: `loadmanager serve` is for"
            " that one; give the metadataStoreUrl of the Pulsar's brokers"
        )
    raise ConfigurationError(
        f"{where}: no Pulsar here, as there is nothing below {CLUSTERS}: give the metadataStoreUrl of its brokers, with"
        " its chroot if it has one, as zk:host:2181/pulsar; a Pulsar whose configurationMetadataStoreUrl is another"
        " store cannot be read"
    )


async def _read_of_brokers(pulsar: Reader, key: str) -> dict[str, str]:
    """A text of each registered broker's record, empty where it says nothing."""
    brokers = await pulsar.children(paths.BROKERS)
    znodes = await pulsar.get_many([paths.broker(name) for name in brokers])
    return {name: _text(znode.data, key) for name, znode in zip(brokers, znodes, strict=True) if znode is not None}


def _text(data: bytes, key: str) -> str:
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError:
        return ""
    return str(record.get(key) or "") if isinstance(record, dict) else ""


def _refuse_other_load_managers(load_managers: Mapping[str, str]) -> None:
    others = sorted(
        f"{broker} has {short_class_name(name) or 'none that it names'}"
        for broker, name in load_managers.items()
        if short_class_name(name) != _MODULAR
    )
    if others:
        raise ConfigurationError(
            f"{paths.BROKERS}: {_LOAD_MANAGER}: {_shown(others)}: every broker has to have {_MODULAR}, as under"
            " another one loads and owners are not in its metadata store, or not all of them; give all brokers that one"
        )


async def _ask(admin: PulsarAdmin, url: str) -> BrokerSettings | PulsarRefusedError | PulsarUnreachableError:
    """What the broker at `url` goes by, or why it is not known now; `ConfigurationError` if that will not change."""
    try:
        return await admin.settings(url)
    except PulsarUnreachableError as error:
        return error
    except PulsarRefusedError as error:
        if error.status == _BUSY or error.status >= _FAULTS:
            return error
        raise ConfigurationError(f"adminUrls: {error}") from None


def _refuse_other_cluster(told: BrokerSettings, clusters: Sequence[str], wanted: str, where: str) -> None:
    if told.cluster not in clusters:
        raise ConfigurationError(
            f"adminUrls {told.url}: a broker of the cluster {told.cluster!r}, and {where} has {', '.join(clusters)}:"
            " give brokers of the cluster in this metadata store"
        )
    if wanted and wanted != told.cluster:
        raise ConfigurationError(
            f"adminUrls {told.url}: a broker of the cluster {told.cluster!r}, and clusterName is {wanted!r}: give"
            " brokers of that one, or leave clusterName out"
        )


def _refuse_other_store(told: BrokerSettings) -> None:
    """Servers of ZooKeeper may stand without `zk:`, as in older configurations: a port follows the first name."""
    scheme, _, rest = told.metadata_store.partition(":")
    if told.metadata_store and scheme != "zk" and not rest[:1].isdigit():
        raise ConfigurationError(
            f"adminUrls {told.url}: its metadataStoreUrl is {told.metadata_store!r}: only a Pulsar whose metadata are"
            " in a ZooKeeper can be read"
        )


async def _refuse_strangers(admin: PulsarAdmin, url: str, registered: Sequence[str], where: str) -> None:
    known = await admin.brokers(url)
    if not set(known).intersection(registered):
        raise ConfigurationError(
            f"adminUrls {url}: it knows the brokers {_shown(known)}, and below {paths.BROKERS} of {where} are"
            f" {_shown(sorted(registered))}: give the metadata store of that Pulsar, or the brokers of this one"
        )


def _find_separate_store(told: BrokerSettings) -> str | None:
    if _servers(told.configuration_store) in (_servers(""), _servers(told.metadata_store)):
        return None
    return (
        f"adminUrls {told.url}: configurationMetadataStoreUrl is {told.configuration_store!r}, and metadataStoreUrl"
        f" {told.metadata_store!r}: isolation policies and failure domains are in the first one, which is not read"
    )


def _servers(url: str) -> tuple[frozenset[str], str]:
    servers, _, chroot = url.removeprefix("zk:").partition("/")
    return frozenset(servers.split(",")), chroot.rstrip("/")


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return (", ".join(names[:_NAMES_SHOWN]) or "none") + (f" and {more} more" if more > 0 else "")
