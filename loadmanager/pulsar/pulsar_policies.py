"""What a cluster's admins laid down about who may own what: isolation policies and failure domains.

They are few, so all of them are read when anything about them changes. What cannot be read leaves the last good one in
force.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.errors import InvalidRecordError
from loadmanager.lab.decide.pulsar_dump import clusters_in
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.znode_faults import ZnodeFaults
from loadmanager.pulsar.pulsar_znodes import decode_domain, decode_isolation
from loadmanager.pulsar.read_only_store import ReadOnlyStore
from loadmanager.store.metadata_store import Znode
from loadmanager.store.pulsar_paths import CLUSTERS, failure_domains, isolation_policies
from loadmanager.wire.policy_records import FailureDomain, policies_of


class ClusterPolicies:
    """Those of `cluster`, or of the only one there is."""

    def __init__(self, store: ReadOnlyStore, view: ClusterMirror, faults: ZnodeFaults, cluster: str | None) -> None:
        self._store = store
        self._view = view
        self._faults = faults
        self._cluster = cluster
        self._has_changed = False

    async def read(self) -> None:
        """Read all of them again; raises `StoreError`."""
        clusters = await clusters_in(self._store)
        with self._faults.of(CLUSTERS):
            cluster = self._find_cluster(clusters)
            domains = failure_domains(cluster)
            names = await self._store.children(domains)
            isolation, *found = await self._store.get_many(
                [isolation_policies(cluster), *(f"{domains}/{name}" for name in names)]
            )
            self._put_isolation(isolation_policies(cluster), isolation)
            self._put_domains(domains, dict(zip(names, found, strict=True)))

    def lay_down(self, groups: Mapping[str, str]) -> None:
        """Have decisions go by them, and by these anti-affinity groups of namespaces."""
        operator_config = self._view.operator_config
        if self._has_changed or groups != operator_config.anti_affinity:
            operator_config.anti_affinity = groups
            self._view.model.set_policies(
                policies_of(operator_config.isolation, operator_config.failure_domains, groups)
            )
            self._has_changed = False

    def _find_cluster(self, clusters: list[str]) -> str:
        named = [self._cluster] if self._cluster else clusters
        if len(named) == 1 and named[0] in clusters:
            return named[0]
        if not clusters:
            raise InvalidRecordError(
                f"{CLUSTERS}: no cluster is there: policies that a Pulsar keeps in a configuration store are not read"
            )
        wanted = f"no cluster {self._cluster!r}" if self._cluster else "which cluster is it?"
        raise InvalidRecordError(f"{CLUSTERS}: {wanted}: clusterName is one of: {', '.join(clusters)}")

    def _put_isolation(self, path: str, znode: Znode | None) -> None:
        with self._faults.of(path):
            isolation = {} if znode is None else decode_isolation(znode.data, path)
            if isolation != self._view.operator_config.isolation:
                self._view.operator_config.isolation = isolation
                self._has_changed = True

    def _put_domains(self, root: str, read: Mapping[str, Znode | None]) -> None:
        before = self._view.operator_config.failure_domains
        domains: dict[str, FailureDomain] = {}
        for name, znode in read.items():
            if znode is None:
                continue
            if name in before:
                domains[name] = before[name]
            with self._faults.of(znode.path):
                domains[name] = decode_domain(znode.data, znode.path)
        gone = {path for path in self._view.faults if path.startswith(f"{root}/")} - {f"{root}/{name}" for name in read}
        for path in gone:
            del self._view.faults[path]
        if domains != before:
            self._view.operator_config.failure_domains = domains
            self._has_changed = True
