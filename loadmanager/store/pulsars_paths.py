"""Where a Pulsar keeps what is its own: trees of its metadata store that are none of ours, and never written here."""

from __future__ import annotations

from loadmanager.store import paths

CLUSTERS = "/admin/clusters"
NAMESPACE_POLICIES = "/admin/policies"
LOCAL_POLICIES = "/admin/local-policies"
DYNAMIC_CONFIGURATION = "/admin/configuration"
OWNERSHIP = "/namespace"
RESOURCE_QUOTAS = f"{paths.ROOT}/resource-quota"
