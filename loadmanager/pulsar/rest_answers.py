"""Records from the answers of Pulsar's REST API, for the modular and the extensible load manager. Pure.

answer                                            record
------                                            ------
broker-stats/load-report (modular)                `modular_report`: the broker's LocalBrokerData
broker-stats/metrics, .../topics (extensible)     `extensible_report`: usage in percent, load of the owned bundles
brokers/{cluster}/{broker}/ownedNamespaces        `owned_bundles`
namespaces/{namespace}/bundles                    `bundles_in`
namespaces/{namespace}/antiAffinity               `group_in`: an empty body means no group
clusters/{cluster}/failureDomains                 `domains_in`
clusters/{cluster}/namespaceIsolationPolicies     `isolation_in`

Source: answers of Pulsar 4.0.1, 4.2.4 and 5.0.0-M1, recorded in `tests/unit/pulsar/answers`. The extensible manager
keeps topics of its own in bundles of `pulsar/system` that no broker lists as owned. So only owned bundles count as
load. Each function raises `InvalidRecordError`, which names `where`, for an unexpected answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles
from loadmanager.core.domain.names import BrokerId, InvalidNameError, is_self_test_namespace, namespace_of
from loadmanager.errors import InvalidRecordError
from loadmanager.wire import policy_records, pulsar_records
from loadmanager.wire.policy_records import FAILURE_DOMAIN, FailureDomain, IsolationData
from loadmanager.wire.pulsar_records import HASH_FUNCTION, only, parse_record
from loadmanager.wire.store_records import parse_boundaries
from loadmanager.wire.validation import parse_json

Record = dict[str, Any]

EXTENSIBLE = "ExtensibleLoadManagerImpl"
RATES = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")
_RESOURCES = {
    "cpu": "brk_lb_cpu_usage",
    "memory": "brk_lb_memory_usage",
    "directMemory": "brk_lb_directMemory_usage",
    "bandwidthIn": "brk_lb_bandwidth_in_usage",
    "bandwidthOut": "brk_lb_bandwidth_out_usage",
}


def is_extensible(load_manager: str) -> bool:
    return load_manager.endswith(EXTENSIBLE)


def modular_report(body: bytes, where: str) -> Record:
    """Return the broker's own report; `reported` is the time at which the broker published it."""
    record = parse_record(body, where)
    return {**record, "reported": record.get("lastUpdate")}


def extensible_report(
    metrics: bytes, owned: Iterable[str], loads: Mapping[str, Record], load_manager: str, url: str
) -> Record:
    """Compose the report that a modular broker would have published. `loads` has the load of bundles by name."""
    where = f"{url}: broker-stats/metrics"
    stats = {name: loads[name] for name in owned if name in loads}
    sums = {f"num{key[0].upper()}{key[1:]}s": _sum(stats, f"{key}Count") for key in ("consumer", "producer")}
    return {
        "webServiceUrl": url,
        "loadManagerClassName": load_manager,
        **_usage(metrics, where),
        **{key: float(_sum(stats, key)) for key in RATES},
        **sums,
        "numTopics": _sum(stats, "topics"),
        "numBundles": len(stats),
        "bundles": sorted(stats),
        "lastStats": stats,
    }


def bundle_loads(topics: bytes, where: str) -> dict[str, Record]:
    """Sum the load of topics by bundle."""
    found = parse_record(topics, where)
    try:
        return {
            f"{namespace}/{bundle}": _load([topic for domain in domains.values() for topic in domain.values()])
            for namespace, bundles in found.items()
            for bundle, domains in bundles.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidRecordError(f"{where}: not topics by namespace and bundle: {error!r}") from None


def owned_bundles(body: bytes, where: str) -> list[str]:
    """Return the bundles that a broker owns, without those of its health checks."""
    return sorted(name for name in parse_record(body, where) if not is_self_test_namespace(namespace_of(name)))


def bundles_in(body: bytes, where: str) -> NamespaceBundles:
    boundaries = parse_record(body, where).get("boundaries")
    if not isinstance(boundaries, list) or not all(isinstance(each, str) for each in boundaries):
        raise InvalidRecordError(f"{where}: boundaries: expected a list of 0x and hexadecimal digits")
    try:
        return NamespaceBundles(parse_boundaries(boundaries), HashFunction(HASH_FUNCTION))
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: {error}") from None


def group_in(body: bytes, where: str) -> str | None:
    group = _json(body, where) if body.strip() else None
    if not isinstance(group, str | None):
        raise InvalidRecordError(f"{where}: expected the name of an anti-affinity group")
    return group or None


def isolation_in(body: bytes, where: str) -> dict[str, IsolationData]:
    known = {name: pulsar_records.isolation_in(policy) for name, policy in parse_record(body, where).items()}
    return policy_records.decode_isolation(orjson.dumps(known), where)


def domains_in(body: bytes, where: str) -> dict[str, FailureDomain]:
    return {
        name: parse_json(FAILURE_DOMAIN, orjson.dumps(only(domain, FailureDomain.__annotations__)), f"{where}: {name}")
        for name, domain in parse_record(body, where).items()
    }


def names_in(body: bytes, where: str) -> list[str]:
    found = _json(body, where)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidRecordError(f"{where}: expected a list of names")
    return sorted(found)


def settle_owners(
    before: Mapping[str, BrokerId], listed: Mapping[BrokerId, Iterable[str]]
) -> tuple[dict[str, BrokerId], set[BrokerId]]:
    """Return the owner of each bundle, and the brokers to ask again because a bundle has two owners or lost its own.

    `listed` are the bundles of the brokers that answered. Other brokers keep the bundles that they owned `before`.
    """
    owners = {bundle: broker for bundle, broker in before.items() if broker not in listed}
    disputed: set[BrokerId] = set()
    for broker, bundles in listed.items():
        for bundle in bundles:
            other = owners.get(bundle)
            if other is None or before.get(bundle) == broker:
                owners[bundle] = broker
            if other is not None:
                disputed |= {broker, other}
    lost = [bundle for bundle in before if bundle not in owners]
    return owners, disputed | (set(listed) if lost else set())


def _usage(metrics: bytes, where: str) -> Record:
    found = _json(metrics, where)
    balancing = list(_balancing(found)) if isinstance(found, list) else []
    if not balancing:
        raise InvalidRecordError(f"{where}: no metrics of load balancing: is loadBalancerEnabled on?")
    return {name: {"usage": float(balancing[0].get(key, 0.0)), "limit": 100.0} for name, key in _RESOURCES.items()}


def _balancing(found: list[Any]) -> Iterator[Mapping[str, Any]]:
    for each in found:
        metrics = each.get("metrics") if isinstance(each, dict) else None
        if isinstance(metrics, dict) and _RESOURCES["cpu"] in metrics:
            yield metrics


def _load(topics: list[Mapping[str, Any]]) -> Record:
    subscriptions = [each for topic in topics for each in topic["subscriptions"].values()]
    return {
        **{key: sum(float(topic[key]) for topic in topics) for key in RATES},
        "consumerCount": sum(len(each.get("consumers", ())) for each in subscriptions),
        "producerCount": sum(int(topic["producerCount"]) for topic in topics),
        "topics": len(topics),
        "cacheSize": 0,
    }


def _sum(stats: Mapping[str, Record], key: str) -> Any:  # noqa: ANN401 - a whole number, or not
    return sum(each[key] for each in stats.values())


def _json(body: bytes, where: str) -> Any:  # noqa: ANN401 - whatever came
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRecordError(f"{where}: not JSON: {error}") from None
