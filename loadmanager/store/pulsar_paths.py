"""Paths of a Pulsar cluster's own znodes, which are never written here.

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


def owner(bundle: str) -> str:
    """Return the path of a bundle's owner, by the bundle's name."""
    return f"{OWNERSHIP}/{bundle}"


def local_policies(namespace: str) -> str:
    return f"{LOCAL_POLICIES}/{namespace}"


def isolation_policies(cluster: str) -> str:
    return f"{CLUSTERS}/{cluster}/namespaceIsolationPolicies"


def failure_domains(cluster: str) -> str:
    """Return the parent path of a cluster's failure domains."""
    return f"{CLUSTERS}/{cluster}/failureDomain"
