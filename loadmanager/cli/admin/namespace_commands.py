"""`loadmanager admin namespaces`, `tenants`, `topics`, `ns-isolation-policy`, `clusters`: commands of pulsar-admin."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from loadmanager.cli.admin.node_requests import AdminRequest, delete, get, post, put
from loadmanager.cli.admin.request_command import (
    MATCHES,
    Cluster,
    Force,
    Namespace,
    NeededRange,
    Range,
    Topic,
    Yes,
    command,
    confirm,
    group,
    pairs,
    words,
)
from loadmanager.core.domain.policies import MIN_AVAILABLE, UnloadScope

if TYPE_CHECKING:
    from loadmanager.wire.policy_records import FailureDomain, IsolationData

APP = group("Manage namespaces and their bundles.")
TENANTS = group("List tenants: a tenant exists while it has namespaces.")
TOPICS = group("Look up the owners of topics.")
_BASE = "/admin/v2/namespaces"
_LOOKUP = "/lookup/v2/topic"

_Group = Annotated[str, typer.Option("-g", "--group", help="The anti-affinity group.")]


class BundleType(StrEnum):
    LARGEST = "LARGEST"
    HOT = "HOT"


@command(APP, "list")
def list_namespaces(tenant: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]) -> AdminRequest:
    """List the namespaces of a tenant."""
    return get(_BASE, tenant)


@command(APP, "create")
def create(
    namespace: Namespace,
    bundles: Annotated[int, typer.Option("-b", "--bundles", min=0, help="Number of bundles; 0: the default.")] = 0,
    clusters: Annotated[
        str, typer.Option("-c", "--clusters", help="Ignored; for compatibility with pulsar-admin.")
    ] = "",
) -> AdminRequest:
    """Create a namespace with equal bundles."""
    policies: dict[str, object] = {"bundles": {"numBundles": bundles}} if bundles else {}
    if clusters:
        policies["replication_clusters"] = words(clusters)
    return put(_BASE, namespace, body=policies)


@command(APP, "delete")
def delete_namespace(
    namespace: Namespace,
    *,
    force: Annotated[
        bool, typer.Option("-f", "--force", help="Delete even if topics are open; their owners close them.")
    ] = False,
    yes: Yes = False,
) -> AdminRequest:
    """Delete a namespace with its bundles; refused while topics are open."""
    confirm(f"Delete namespace {namespace}{', and close its topics' if force else ''}?", yes=yes)
    return delete(_BASE, namespace, force=force)


@command(APP, "policies")
def policies(namespace: Namespace) -> AdminRequest:
    """Show a namespace's policies."""
    return get(_BASE, namespace)


@command(APP, "bundles")
def bundles(namespace: Namespace) -> AdminRequest:
    """Show the boundaries of a namespace's bundles."""
    return get(_BASE, namespace, "bundles")


@command(APP, "unload")
def unload(
    namespace: Namespace,
    bundle: Range = None,
    destination: Annotated[
        str | None, typer.Option("-d", "--destinationBroker", help="The next owner of the bundle (with -b).")
    ] = None,
    *,
    force: Force = False,
) -> AdminRequest:
    """Have the owners release the bundles of a namespace, or one bundle."""
    if bundle is not None:
        return put(_BASE, namespace, bundle, "unload", destinationBroker=destination, force=force)
    if destination is not None:
        raise typer.BadParameter("only one bundle can be given to a broker: name it with -b", param_hint="-d")
    return put(_BASE, namespace, "unload", force=force)


@command(APP, "split-bundle")
def split_bundle(
    namespace: Namespace,
    bundle: Range = None,
    bundle_type: Annotated[
        BundleType | None, typer.Option("-bt", "--bundle-type", help="The bundle to split, instead of -b.")
    ] = None,
    unload: Annotated[bool, typer.Option("-u", "--unload", help="Unload the new bundles after the split.")] = False,  # noqa: FBT002 - a flag
    algorithm: Annotated[
        str | None, typer.Option("-san", "--split-algorithm-name", help="Algorithm that finds the boundaries.")
    ] = None,
    boundaries: Annotated[
        str,
        typer.Option("-sb", "--split-boundaries", help="For specified_positions_divide: hashes, separated by commas."),
    ] = "",
) -> AdminRequest:
    """Split a bundle."""
    if (bundle is None) == (bundle_type is None):
        raise typer.BadParameter("name the bundle with either -b or -bt")
    query = {"unload": unload, "splitAlgorithmName": algorithm}
    return put(_BASE, namespace, bundle or bundle_type, "split", body=_positions(boundaries), **query)


def _positions(text: str) -> list[int] | None:
    try:
        return [int(word, 0) for word in words(text)] or None
    except ValueError:
        raise typer.BadParameter(f"{text!r}: expected numbers separated by commas", param_hint="-sb") from None


@command(APP, "get-topic-positions")
def get_topic_positions(
    namespace: Namespace,
    bundle: NeededRange,
    topics: Annotated[str, typer.Option("-tl", "--topic-list", help="Only these topics, separated by commas.")] = "",
) -> AdminRequest:
    """Show where the topics of a bundle lie in its range."""
    return get(_BASE, namespace, bundle, "topicHashPositions", topics=words(topics) or None)


@command(APP, "set-anti-affinity-group")
def set_anti_affinity_group(namespace: Namespace, name: _Group) -> AdminRequest:
    """Put a namespace in an anti-affinity group."""
    return post(_BASE, namespace, "antiAffinity", body=name.encode())


@command(APP, "get-anti-affinity-group")
def get_anti_affinity_group(namespace: Namespace) -> AdminRequest:
    """Show the anti-affinity group of a namespace."""
    return get(_BASE, namespace, "antiAffinity")


@command(APP, "delete-anti-affinity-group")
def delete_anti_affinity_group(namespace: Namespace) -> AdminRequest:
    """Take a namespace out of its anti-affinity group."""
    return delete(_BASE, namespace, "antiAffinity")


@command(APP, "get-anti-affinity-namespaces")
def get_anti_affinity_namespaces(
    name: _Group,
    tenant: Annotated[str, typer.Option("-p", "--tenant", help="The tenant of the namespaces.")],
    cluster: Annotated[str, typer.Option("-c", "--cluster", help="The cluster.")] = "standalone",
) -> AdminRequest:
    """List the namespaces of an anti-affinity group."""
    return get(_BASE, cluster, "antiAffinity", name, tenant=tenant)


@command(TENANTS, "list")
def list_tenants() -> AdminRequest:
    """List the tenants that have namespaces."""
    return get("/admin/v2/tenants")


@command(TOPICS, "lookup")
def lookup(topic: Topic) -> AdminRequest:
    """Show the owner of a topic; one is assigned if there is none."""
    return get(_LOOKUP, topic)


@command(TOPICS, "bundle-range")
def bundle_range(topic: Topic) -> AdminRequest:
    """Show the range of a topic's bundle."""
    return get(_LOOKUP, topic, "bundle")


POLICIES = group("Manage isolation policies: the brokers that may serve a namespace.")
CLUSTERS = group("Manage failure domains.")
_CLUSTERS = "/admin/v2/clusters"
_ISOLATION = "namespaceIsolationPolicies"
_DOMAINS = "failureDomains"

_Policy = Annotated[str, typer.Argument(metavar="POLICY", help="The policy's name.")]
_Domain = Annotated[str, typer.Option("--domain-name", help="The failure domain.")]
_Brokers = Annotated[str, typer.Option("--broker-list", help="Its brokers, host:port, separated by commas.")]


@command(POLICIES, "set")
def set_policy(
    cluster: Cluster,
    policy: _Policy,
    namespaces: Annotated[str, typer.Option("--namespaces", help="Patterns of tenant/namespace, separated by commas.")],
    primary: Annotated[str, typer.Option("--primary", help="Patterns of primary hosts, separated by commas.")],
    secondary: Annotated[
        str, typer.Option("--secondary", help="Patterns of secondary hosts, separated by commas.")
    ] = "",
    failover_type: Annotated[
        str, typer.Option("--auto-failover-policy-type", help=f"{MIN_AVAILABLE}.")
    ] = MIN_AVAILABLE,
    failover_params: Annotated[
        str, typer.Option("--auto-failover-policy-params", help="min_limit=1,usage_threshold=80")
    ] = "min_limit=1,usage_threshold=100",
    unload_scope: Annotated[UnloadScope | None, typer.Option("--unload-scope", help="Bundles to move at once.")] = None,
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
        post(_CLUSTERS, cluster, _ISOLATION, policy, body=data, force=force),
        then=lambda _: get(MATCHES, policy=policy),
    )


@command(POLICIES, "get")
def get_policy(cluster: Cluster, policy: _Policy) -> AdminRequest:
    """Show a policy."""
    return get(_CLUSTERS, cluster, _ISOLATION, policy)


@command(POLICIES, "list")
def list_policies(cluster: Cluster) -> AdminRequest:
    """Show all policies."""
    return get(_CLUSTERS, cluster, _ISOLATION)


@command(POLICIES, "delete")
def delete_policy(cluster: Cluster, policy: _Policy) -> AdminRequest:
    """Delete a policy."""
    return delete(_CLUSTERS, cluster, _ISOLATION, policy)


@command(POLICIES, "brokers")
def policy_brokers(cluster: Cluster) -> AdminRequest:
    """Show the role of each broker by the policies."""
    return get(_CLUSTERS, cluster, _ISOLATION, "brokers")


@command(POLICIES, "broker")
def policy_broker(
    cluster: Cluster, broker: Annotated[str, typer.Option("--broker", help="The broker's id, host:port.")]
) -> AdminRequest:
    """Show the role of one broker by the policies."""
    return get(_CLUSTERS, cluster, _ISOLATION, "brokers", broker)


def _put_domain(cluster: Cluster, domain: _Domain, brokers: _Brokers) -> AdminRequest:
    data: FailureDomain = {"brokers": words(brokers)}
    return replace(
        post(_CLUSTERS, cluster, _DOMAINS, domain, body=data), then=lambda _: get(MATCHES, failureDomain=domain)
    )


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
    return get(_CLUSTERS, cluster, _DOMAINS, domain)


@command(CLUSTERS, "list-failure-domains")
def list_failure_domains(cluster: Cluster) -> AdminRequest:
    """Show all failure domains."""
    return get(_CLUSTERS, cluster, _DOMAINS)


@command(CLUSTERS, "delete-failure-domain")
def delete_failure_domain(cluster: Cluster, domain: _Domain) -> AdminRequest:
    """Delete a failure domain."""
    return delete(_CLUSTERS, cluster, _DOMAINS, domain)
