"""Pulsar's znodes in the metadata store: their paths, and detection of a Pulsar cluster, where nothing is written.

A Pulsar that finds our leader in place of its own stops shedding, and its brokers take our records below `/loadbalance`
for theirs. Source: the znodes written by Pulsar's brokers and its `initialize-cluster-metadata`.

A namespace is `tenant/namespace` or, in Pulsar's V1 form, `tenant/cluster/namespace`, in the same trees. Namespaces of
brokers' health checks also have both forms: `pulsar/<broker>` and `pulsar/<cluster>/<broker>`. Parent znodes are empty,
and remain when their children are deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from loadmanager.errors import ForeignStoreError, InvalidRecordError
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore, Znode
from loadmanager.store.znode_codec import decode
from loadmanager.wire.broker_data import AGENT_PROTOCOL

CLUSTERS = "/admin/clusters"
LOCAL_POLICIES = "/admin/local-policies"
DYNAMIC_CONFIGURATION = "/admin/configuration"
OWNERSHIP = "/namespace"


def isolation_policies(cluster: str) -> str:
    return f"{CLUSTERS}/{cluster}/namespaceIsolationPolicies"


def failure_domains(cluster: str) -> str:
    """Return the parent path of a cluster's failure domains."""
    return f"{CLUSTERS}/{cluster}/failureDomain"


_PULSARS = (CLUSTERS, LOCAL_POLICIES, "/admin/policies")
_OF_PULSAR = "org.apache.pulsar."


async def refuse_pulsar(store: MetadataStore) -> None:
    """Raise `ForeignStoreError` if a Pulsar cluster uses this store, or the `StoreError` that prevents the check."""
    znode = await find_pulsar(store)
    if znode is not None:
        raise ForeignStoreError(
            f"this is a Pulsar's metadata ({znode}), and writing here would disturb it: give loadmanager a chroot of"
            " its own, such as zk:host:2181/loadmanager, or look at the Pulsar with `loadmanager pulsar observe`, which"
            " writes nothing"
        )


async def find_pulsar(store: MetadataStore) -> str | None:
    """Return the evidence of a Pulsar cluster, a path with or without contents; None if there is none."""
    read = await store.get_many([*_PULSARS, paths.LEADER])
    for path, znode in zip(_PULSARS, read, strict=False):
        if znode is not None:
            return path
    if _is_pulsars_leader(read[-1]):
        return f"{paths.LEADER} names a leader without an epoch"
    brokers = await store.children(paths.BROKERS)
    return _find_broker(zip(brokers, await store.get_many([paths.broker(name) for name in brokers]), strict=True))


def _is_pulsars_leader(znode: Znode | None) -> bool:
    record = _content(znode, paths.LEADER)
    return bool(record) and "serviceUrl" in record and "epoch" not in record


def _find_broker(records: Iterable[tuple[str, Znode | None]]) -> str | None:
    for name, znode in records:
        path = paths.broker(name)
        record = _content(znode, path)
        of_pulsar = str(record.get("loadManagerClassName", "")).startswith(_OF_PULSAR)
        if of_pulsar and AGENT_PROTOCOL not in (record.get("protocols") or {}):
            return f"{path} is a broker without an agent of loadmanager's"
    return None


def _content(znode: Znode | None, path: str) -> Mapping[str, Any]:
    """Return the JSON object in a znode; empty if unreadable, which is no evidence."""
    if znode is None:
        return {}
    try:
        content = orjson.loads(decode(znode.data, path))
    except (InvalidRecordError, orjson.JSONDecodeError):
        return {}
    return content if isinstance(content, dict) else {}
