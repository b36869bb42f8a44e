"""`loadmanager admin ns-isolation-policy` and `clusters`: who may own what, and what fails together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from loadmanager.cli.admin.arguments import MATCHES, Cluster, Force, pairs, words
from loadmanager.cli.admin.node_requests import AdminRequest, delete, get, post
from loadmanager.cli.admin.request_command import command, group
from loadmanager.core.domain.policies import MIN_AVAILABLE, UnloadScope

if TYPE_CHECKING:  # models take their time to load
    from loadmanager.wire.policy_records import FailureDomain, IsolationData

APP = group("Which brokers serve which namespaces.")
CLUSTERS = group("Failure domains.")
_BASE = "/admin/v2/clusters"
_ISOLATION = "namespaceIsolationPolicies"
_DOMAINS = "failureDomains"

_Policy = Annotated[str, typer.Argument(metavar="POLICY", help="The policy's name.")]
_Domain = Annotated[str, typer.Option("--domain-name", help="The failure domain.")]
_Brokers = Annotated[str, typer.Option("--broker-list", help="Its brokers, host:port, separated by commas.")]


@command(APP, "set")
def set_policy(
    cluster: Cluster,
    policy: _Policy,
    namespaces: Annotated[str, typer.Option("--namespaces", help="Patterns of tenant/namespace, with commas.")],
    primary: Annotated[str, typer.Option("--primary", help="Patterns of hosts that serve them, with commas.")],
    secondary: Annotated[str, typer.Option("--secondary", help="Patterns of hosts that stand in, with commas.")] = "",
    failover_type: Annotated[
        str, typer.Option("--auto-failover-policy-type", help=f"{MIN_AVAILABLE}.")
    ] = MIN_AVAILABLE,
    failover_params: Annotated[
        str, typer.Option("--auto-failover-policy-params", help="min_limit=1,usage_threshold=80")
    ] = "min_limit=1,usage_threshold=100",
    unload_scope: Annotated[UnloadScope | None, typer.Option("--unload-scope", help="What moves at once.")] = None,
    *,
    force: Force = False,
) -> AdminRequest:
    """Create or replace a policy, and show what it matches now."""
    data: IsolationData = {
        "namespaces": words(namespaces),
        "primary": words(primary),
        "secondary": words(secondary),
        "auto_failover_policy": {"policy_type": failover_type, "parameters": pairs(failover_params)},
    }
    if unload_scope is not None:
        data["unload_scope"] = unload_scope.value
    return replace(
        post(_BASE, cluster, _ISOLATION, policy, body=data, force=force), then=lambda _: get(MATCHES, policy=policy)
    )


@command(APP, "get")
def get_policy(cluster: Cluster, policy: _Policy) -> AdminRequest:
    """Show a policy."""
    return get(_BASE, cluster, _ISOLATION, policy)


@command(APP, "list")
def list_policies(cluster: Cluster) -> AdminRequest:
    """Show all policies."""
    return get(_BASE, cluster, _ISOLATION)


@command(APP, "delete")
def delete_policy(cluster: Cluster, policy: _Policy) -> AdminRequest:
    """Delete a policy."""
    return delete(_BASE, cluster, _ISOLATION, policy)


@command(APP, "brokers")
def policy_brokers(cluster: Cluster) -> AdminRequest:
    """Show what each broker is by the policies."""
    return get(_BASE, cluster, _ISOLATION, "brokers")


@command(APP, "broker")
def policy_broker(
    cluster: Cluster, broker: Annotated[str, typer.Option("--broker", help="The broker's id, host:port.")]
) -> AdminRequest:
    """Show what one broker is by the policies."""
    return get(_BASE, cluster, _ISOLATION, "brokers", broker)


def _put_domain(cluster: Cluster, domain: _Domain, brokers: _Brokers) -> AdminRequest:
    data: FailureDomain = {"brokers": words(brokers)}
    return replace(post(_BASE, cluster, _DOMAINS, domain, body=data), then=lambda _: get(MATCHES, failureDomain=domain))


@command(CLUSTERS, "create-failure-domain")
def create_failure_domain(cluster: Cluster, domain: _Domain, brokers: _Brokers) -> AdminRequest:
    """Create a failure domain, and show which of its brokers are registered."""
    return _put_domain(cluster, domain, brokers)


@command(CLUSTERS, "update-failure-domain")
def update_failure_domain(cluster: Cluster, domain: _Domain, brokers: _Brokers) -> AdminRequest:
    """Replace the brokers of a failure domain."""
    return _put_domain(cluster, domain, brokers)


@command(CLUSTERS, "get-failure-domain")
def get_failure_domain(cluster: Cluster, domain: _Domain) -> AdminRequest:
    """Show a failure domain."""
    return get(_BASE, cluster, _DOMAINS, domain)


@command(CLUSTERS, "list-failure-domains")
def list_failure_domains(cluster: Cluster) -> AdminRequest:
    """Show all failure domains."""
    return get(_BASE, cluster, _DOMAINS)


@command(CLUSTERS, "delete-failure-domain")
def delete_failure_domain(cluster: Cluster, domain: _Domain) -> AdminRequest:
    """Delete a failure domain."""
    return delete(_BASE, cluster, _DOMAINS, domain)
