"""Where a Pulsar keeps what is its own: trees of its metadata store that are none of ours, and never written here.

A namespace is `tenant/namespace` or, in Pulsar's first form, `tenant/cluster/namespace`, in the same trees. So it is
with those by which brokers test themselves: `pulsar/<broker>` and `pulsar/<cluster>/<broker>`. A znode above those of
others is empty, and stays when they go.
"""

from __future__ import annotations

from loadmanager.store import paths

CLUSTERS = "/admin/clusters"
NAMESPACE_POLICIES = "/admin/policies"
LOCAL_POLICIES = "/admin/local-policies"
DYNAMIC_CONFIGURATION = "/admin/configuration"
OWNERSHIP = "/namespace"
RESOURCE_QUOTAS = f"{paths.ROOT}/resource-quota"
FLAGS = "/admin/flags"
READ_ONLY = f"{FLAGS}/policies-readonly"
"""There while nobody may change policies."""


def owner(bundle: str) -> str:
    """Who owns a bundle, by the bundle's name."""
    return f"{OWNERSHIP}/{bundle}"


def local_policies(namespace: str) -> str:
    return f"{LOCAL_POLICIES}/{namespace}"


def isolation_policies(cluster: str) -> str:
    return f"{CLUSTERS}/{cluster}/namespaceIsolationPolicies"


def failure_domains(cluster: str) -> str:
    """What the failure domains of a cluster are below, a znode each."""
    return f"{CLUSTERS}/{cluster}/failureDomain"
