"""Pulsar's znodes in the terms of our core: what lies at a path, and what is in it. Nothing is read here.

path                                           what it says                                   read by
----                                           ------------                                   -------
/loadbalance/brokers/<broker>                  who a broker is, and its load                  `BrokerRecords`
/loadbalance/leader                            which broker leads                             `decode_leader`
/loadbalance/bundle-data/<namespace>/<range>   the averages that Pulsar's leader has          `decode_averages`
/namespace/<namespace>/<range>                 who owns a bundle                              `decode_owner`
/admin/local-policies/<namespace>              how a namespace is cut; anti-affinity          `decode_cut`
/admin/clusters/<cluster>/
    namespaceIsolationPolicies                 who may own what                               `decode_isolation`
    failureDomain/<domain>                     which brokers fail together                    `decode_domain`
/admin/configuration                           settings that operators have changed           `decode_texts`
/admin/flags/policies-readonly                 that no policy may be changed, by being there

What cannot be used raises `InvalidRecordError`, which names the path. Namespaces in which brokers test themselves are
not read: each belongs to its broker, and nobody moves them. What their bundles carry is in the brokers' reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import orjson

from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.hashing import HashFunction
from loadmanager.core.domain.names import (
    HASH_SPACE_END,
    BrokerId,
    InvalidNameError,
    NamespaceName,
    is_self_test_namespace,
    parse_broker_id,
)
from loadmanager.core.model.load import BundleAverages
from loadmanager.errors import InvalidRecordError
from loadmanager.lab.decide.dump_validation import is_range
from loadmanager.store import paths
from loadmanager.store.pulsar_paths import DYNAMIC_CONFIGURATION, LOCAL_POLICIES, OWNERSHIP, READ_ONLY
from loadmanager.store.znode_codec import decode
from loadmanager.wire import policy_records
from loadmanager.wire.average_records import BundleData, averages_of
from loadmanager.wire.policy_records import FAILURE_DOMAIN, FailureDomain, IsolationData
from loadmanager.wire.pulsar_records import (
    HASH_FUNCTION,
    anti_affinity_group_in,
    boundaries_in,
    isolation_in,
    leader_in,
    only,
    owner_in,
    parse_record,
)
from loadmanager.wire.store_records import parse_boundaries
from loadmanager.wire.validation import parse_json, parse_model


@dataclass(frozen=True, slots=True)
class Cut:
    """How a namespace is cut into bundles, and the anti-affinity group that it is in."""

    bundles: NamespaceBundles
    group: str | None = None


WHOLE = Cut(NamespaceBundles((0, HASH_SPACE_END), HashFunction(HASH_FUNCTION)))
"""A namespace without local policies is one bundle, to Pulsar."""


def record_at(path: str) -> tuple[str, str] | None:
    """The tree that the record at a path is in, and what it is about; None for folders, and for what is none of ours.

    Of a znode that is the only one of its kind both are its path.
    """
    if path in _SINGLE:
        return path, path
    for root, is_name in _NAMED.items():
        if path.startswith(f"{root}/"):
            name = path[len(root) + 1 :]
            return (root, name) if is_name(name) else None
    return None


def path_of(root: str, name: str) -> str:
    """Where the record of a tree is that is about this."""
    return name if name.startswith("/") else f"{root}/{name}"


def decode_owner(data: bytes, where: str) -> BrokerId:
    """The broker that owns a bundle: a broker writes the same of all its bundles."""
    return _find_owner(data) or _owner(data, where)


def decode_leader(data: bytes, where: str) -> BrokerId:
    """The broker that leads."""
    return _broker(leader_in(parse_record(decode(data, where), where)), where)


def decode_cut(data: bytes, where: str) -> Cut:
    """What the local policies of a namespace say."""
    record = parse_record(decode(data, where), where)
    boundaries, group = boundaries_in(record), anti_affinity_group_in(record)
    if group is not None and not isinstance(group, str):
        raise InvalidRecordError(f"{where}: namespaceAntiAffinityGroup: expected a name")
    if boundaries is None:
        return Cut(WHOLE.bundles, group)
    if not isinstance(boundaries, list) or not all(isinstance(each, str) for each in boundaries):
        raise InvalidRecordError(f"{where}: bundles.boundaries: expected a list of 0x and hexadecimal digits")
    try:
        return Cut(NamespaceBundles(parse_boundaries(boundaries), HashFunction(HASH_FUNCTION)), group)
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: {error}") from None


def decode_isolation(data: bytes, where: str) -> dict[str, IsolationData]:
    """The isolation policies of a cluster, by name."""
    record = parse_record(decode(data, where), where)
    known = {name: isolation_in(policy) for name, policy in record.items()}
    return policy_records.decode_isolation(orjson.dumps(known), where)


def decode_domain(data: bytes, where: str) -> FailureDomain:
    """The brokers of a failure domain."""
    record = parse_record(decode(data, where), where)
    return parse_json(FAILURE_DOMAIN, orjson.dumps(only(record, FailureDomain.__annotations__)), where)


def decode_texts(data: bytes, where: str) -> dict[str, str]:
    """Settings by key; Pulsar stores any text."""
    record = parse_record(decode(data, where), where)
    return {key: value for key, value in record.items() if isinstance(value, str)}


def decode_averages(data: bytes, where: str) -> BundleAverages:
    """The averages of one bundle."""
    return averages_of(parse_model(BundleData, decode(data, where), where))


@lru_cache(maxsize=1 << 14)
def _find_owner(data: bytes) -> BrokerId | None:
    try:
        return _owner(data, "")
    except InvalidRecordError:
        return None


def _owner(data: bytes, where: str) -> BrokerId:
    return _broker(owner_in(parse_record(decode(data, where), where)), where)


def _broker(named: str, where: str) -> BrokerId:
    try:
        return parse_broker_id(named)
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: {error}") from None


def _is_broker(name: str) -> bool:
    return "/" not in name


def _is_bundle(name: str) -> bool:
    namespace, _, text = name.rpartition("/")
    return is_range(text) and _is_namespace(namespace)


@lru_cache(maxsize=1 << 16)
def _is_namespace(name: str) -> bool:
    try:
        return bool(NamespaceName.parse_any(name)) and not is_self_test_namespace(name)
    except InvalidNameError:
        return False


_SINGLE = {DYNAMIC_CONFIGURATION, paths.LEADER, READ_ONLY}
_NAMED: dict[str, Callable[[str], bool]] = {
    paths.BROKERS: _is_broker,
    OWNERSHIP: _is_bundle,
    LOCAL_POLICIES: _is_namespace,
}
