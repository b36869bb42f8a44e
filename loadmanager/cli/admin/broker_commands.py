"""`loadmanager admin brokers` and `broker-stats`: pulsar-admin's commands, and our own operator controls of brokers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from loadmanager.cli.admin.answer_text import drain_lines
from loadmanager.cli.admin.drain_commands import drain, rolling_restart
from loadmanager.cli.admin.node_requests import AdminRequest, delete, get, post, put
from loadmanager.cli.admin.request_command import MATCHES, AnyCluster, Broker, Cluster, command, group
from loadmanager.cli.text.numbers import read_duration
from loadmanager.core.domain.settings import NAMING_NAMESPACES

APP = group("List, drain and restart brokers, and change the dynamic configuration.")
STATS = group("Show the reports of brokers.")
_BASE = "/admin/v2/brokers"
_STATS = "/admin/v2/broker-stats"
_OWN = "/loadbalance/v1/brokers"

_Key = Annotated[str, typer.Option("-c", "--config", help="The key.")]


@command(APP, "list")
def list_brokers(cluster: AnyCluster = "standalone") -> AdminRequest:
    """List the registered brokers."""
    return get(_BASE, cluster)


@command(APP, "leader-broker")
def leader_broker() -> AdminRequest:
    """Show which node leads."""
    return get(_BASE, "leaderBroker")


@command(APP, "namespaces")
def namespaces(
    cluster: Cluster, broker: Annotated[str, typer.Option("-u", "--broker", help="The broker's id, host:port.")]
) -> AdminRequest:
    """List the bundles that a broker owns."""
    return get(_BASE, cluster, broker, "ownedNamespaces")


@command(APP, "healthcheck")
def healthcheck(
    broker: Annotated[
        str | None, typer.Option("--broker-id", help="Check this broker; default: the node itself.")
    ] = None,
) -> AdminRequest:
    """Print ok if the node, or the broker, is healthy."""
    return get(_BASE, "health", brokerId=broker)


@command(APP, "version")
def version() -> AdminRequest:
    """Show the node's version."""
    return get(_BASE, "version")


@command(APP, "update-dynamic-config")
def update_dynamic_config(
    key: _Key, value: Annotated[str, typer.Option("-v", "--value", help="The new value.")]
) -> AdminRequest:
    """Change a key on all nodes; if its value names namespaces, show which of them exist."""
    change = post(_BASE, "configuration", key, value)
    return replace(change, then=lambda _: get(MATCHES, setting=key)) if key in NAMING_NAMESPACES else change


@command(APP, "delete-dynamic-config")
def delete_dynamic_config(key: _Key) -> AdminRequest:
    """Remove a change: nodes return to the value of their own file."""
    return delete(_BASE, "configuration", key)


@command(APP, "list-dynamic-config")
def list_dynamic_config() -> AdminRequest:
    """List the keys that can be changed."""
    return get(_BASE, "configuration")


@command(APP, "get-all-dynamic-config")
def get_all_dynamic_config() -> AdminRequest:
    """Show the changed keys."""
    return get(_BASE, "configuration", "values")


@command(APP, "get-runtime-config")
def get_runtime_config() -> AdminRequest:
    """Show every key with the value in force."""
    return get(_BASE, "configuration", "runtime")


command(APP, "drain", lines=drain_lines)(drain)
command(APP, "rolling-restart")(rolling_restart)


@command(APP, "drain-status", lines=drain_lines)
def drain_status(broker: Broker) -> AdminRequest:
    """Show the progress of a drain, and its expected end."""
    return get(_OWN, broker, "drain")


@command(APP, "stop-drain")
def stop_drain(broker: Broker) -> AdminRequest:
    """End a drain; the broker may get bundles again."""
    return delete(_OWN, broker, "drain")


@command(APP, "exclude")
def exclude(broker: Broker) -> AdminRequest:
    """Give a broker no new bundles; those it has stay."""
    return put(_OWN, broker, "exclusion")


@command(APP, "include")
def include(broker: Broker) -> AdminRequest:
    """End an exclusion."""
    return delete(_OWN, broker, "exclusion")


@command(APP, "hold-off")
def hold_off(
    broker: Broker,
    for_: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="Duration in seconds, or as 90s or 2m; 0 ends it.")
    ] = "120",
) -> AdminRequest:
    """Keep a restarting broker's bundles for it, until it is back or the time has passed."""
    seconds = read_duration("--for", for_)
    if not seconds:
        return delete(_OWN, broker, "hold-off")
    return put(_OWN, broker, "hold-off", body={"forS": seconds})


@command(STATS, "load-report")
def load_report(broker: Broker) -> AdminRequest:
    """Show what a broker has reported."""
    return get(_STATS, "load-report", brokerId=broker)


@command(STATS, "monitoring-metrics")
def monitoring_metrics(
    indent: Annotated[bool, typer.Option("-i", "--indent", help="Ignored; --json is always indented.")] = False,  # noqa: FBT002 - a flag
) -> AdminRequest:
    """Show the brokers' usage as metrics."""
    del indent
    return get(_STATS, "metrics")
