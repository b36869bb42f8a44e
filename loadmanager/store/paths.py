"""Paths of all znodes. All are below an optional chroot that the store adds."""

from __future__ import annotations

ROOT = "/loadbalance"
BROKERS = f"{ROOT}/brokers"
NODES = f"{ROOT}/nodes"
LEADER = f"{ROOT}/leader"
EPOCH = f"{ROOT}/epoch"
SUSPICION = f"{ROOT}/suspicion"
"""Exists while a standby that cannot reach the leader asks whether it is alive."""

NAMESPACES = f"{ROOT}/namespaces"
BUNDLE_DATA = f"{ROOT}/bundle-data"
BROKER_TIME_AVERAGE = f"{ROOT}/broker-time-average"
STRATEGY_STATE = f"{ROOT}/strategy-state"

DELETED = f"{ROOT}/deleted"
"""Versions of deleted namespaces; created with the first deletion."""

POLICIES = f"{ROOT}/policies"
ISOLATION = f"{POLICIES}/isolation"
FAILURE_DOMAINS = f"{POLICIES}/failure-domains"
ANTI_AFFINITY = f"{POLICIES}/anti-affinity"
CONTROLS = f"{POLICIES}/controls"
CONFIGURATION = f"{ROOT}/configuration"
LEARNED = f"{ROOT}/learned"
PULSAR = f"{ROOT}/pulsar"
"""Data of processes beside a Pulsar; only in their own store."""

PULSAR_MOVES = f"{PULSAR}/moves"
"""Moves in progress of the process that acts."""

TAKEN_OVER = f"{PULSAR}/taken-over"
"""Pulsar's settings to restore."""

OPERATOR_CONFIG = (ISOLATION, FAILURE_DOMAINS, ANTI_AFFINITY, CONTROLS, LEARNED, CONFIGURATION)
"""Operator config and published data; each exists once it was written."""

PERSISTENT_PARENTS = (BROKERS, NODES, EPOCH, NAMESPACES, BUNDLE_DATA, BROKER_TIME_AVERAGE, POLICIES)
"""Created by every node at its start, so that writers find all parents."""


def broker(broker_id: str) -> str:
    return f"{BROKERS}/{broker_id}"


def node(node_id: str) -> str:
    return f"{NODES}/{node_id}"


def namespace(name: str) -> str:
    """Return the path of a namespace's record; `name` is `tenant/namespace`."""
    return f"{NAMESPACES}/{name}"


def bundle_data(name: str) -> str:
    """Return the path of a namespace's bundle averages; `name` is `tenant/namespace`."""
    return f"{BUNDLE_DATA}/{name}"


def broker_time_average(broker_id: str) -> str:
    return f"{BROKER_TIME_AVERAGE}/{broker_id}"
