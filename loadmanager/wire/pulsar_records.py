"""Pulsar's own znodes, as far as decisions depend on them; formats that we share have files of their own.

Fields that are not known here are left out, as Pulsar leaves them out. Source: Pulsar's NamespaceEphemeralData,
LeaderBroker, LocalPolicies, NamespaceIsolationDataImpl and BrokerLookupData as its brokers write them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from loadmanager.errors import InvalidRecordError
from loadmanager.wire.policy_records import FailoverPolicy, IsolationData

HASH_FUNCTION = "crc32"
"""By which Pulsar places topics in bundles."""

NO_LOAD = "publishes no load in ZooKeeper"
_EXTENSIBLE = "ExtensibleLoadManagerImpl"


def parse_record(data: bytes, where: str) -> dict[str, Any]:
    """Parse the JSON object in a znode; raises `InvalidRecordError`."""
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRecordError(f"{where}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise InvalidRecordError(f"{where}: expected a JSON object")
    return record


def only(record: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return the known fields of a record."""
    return {key: record[key] for key in keys if key in record}


def owner_in(record: Mapping[str, Any]) -> str:
    """Return the broker that owns a bundle, empty without one."""
    return _broker_in(record, "httpUrl", "httpUrlTls")


def leader_in(record: Mapping[str, Any]) -> str:
    """Return the broker that leads, empty without one."""
    return _broker_in(record, "serviceUrl")


def _broker_in(record: Mapping[str, Any], *addresses: str) -> str:
    """Return the broker's id or, as Pulsar 4.0 omits it, the id by its first address."""
    named, given = record.get("brokerId"), next((record[key] for key in addresses if record.get(key)), "")
    if isinstance(named, str) and named:
        return named
    return urlsplit(given).netloc if isinstance(given, str) else ""


def boundaries_in(local_policies: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as it was written, whatever that is
    """Return the bundle boundaries in a namespace's local policies, None without them."""
    bundles = local_policies.get("bundles")
    return (bundles.get("boundaries") or None) if isinstance(bundles, dict) else None


def anti_affinity_group_in(local_policies: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
    """Return the anti-affinity group of a namespace, None without one."""
    return local_policies.get("namespaceAntiAffinityGroup") or None


def isolation_in(policy: object) -> dict[str, Any]:
    """Return the known parts of an isolation policy; empty for anything else."""
    content = only(policy, IsolationData.__annotations__) if isinstance(policy, dict) else {}
    failover = content.get("auto_failover_policy")
    if isinstance(failover, dict):
        content["auto_failover_policy"] = only(failover, FailoverPolicy.__annotations__)
    return content


def publishes_no_load(broker: Mapping[str, Any]) -> bool:
    """Return True for a broker whose load is elsewhere: ExtensibleLoadManagerImpl keeps it in topics."""
    return str(broker.get("loadManagerClassName", "")).endswith(_EXTENSIBLE) and "cpu" not in broker
