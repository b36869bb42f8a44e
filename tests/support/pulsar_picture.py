"""A picture of a Pulsar at work, over the znodes that its brokers write."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.pulsar_znodes import LOWER, UPPER, ZNODES
from support.registrations import a_record, load_of, write
from support.stores import StoreWorld

from loadmanager.config import BesideSettings
from loadmanager.core.diagnosis.pulsar_comparison import Sighted
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership
from loadmanager.lab.decide.broker_settings import BrokerSettings
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.pulsar.planning_settings import PulsarSettings
from loadmanager.pulsar.pulsar_intake import PulsarIntake
from loadmanager.pulsar.read_only_store import ReadOnlyStore
from loadmanager.store import paths, pulsar_paths
from loadmanager.store.metadata_store import Delete, MetadataStore

B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
NAMESPACE = "public/default"
BUNDLE, OTHER = f"{NAMESPACE}/{LOWER}", f"{NAMESPACE}/{UPPER}"
POLICIES = pulsar_paths.local_policies(NAMESPACE)
ISOLATION = "/admin/clusters/c1/namespaceIsolationPolicies"
DOMAIN = "/admin/clusters/c1/failureDomain/d1"
MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"


def broker(broker_id: str, bundles: Mapping[str, float] | None = None) -> dict[str, Any]:
    """What a broker says of itself that carries so many MiB/s of each bundle."""
    stats = {name: load_of(mib_per_s) for name, mib_per_s in (bundles or {}).items()}
    return {**a_record(broker_id, stats), "loadManagerClassName": MODULAR, "startTimestamp": 1}


PULSAR = {path: content for path, content in ZNODES.items() if not path.startswith(paths.BROKERS)} | {
    paths.broker(B1): broker(B1, {BUNDLE: 3.0, OTHER: 1.0}),
    paths.broker(B2): broker(B2),
    paths.LEADER: {"serviceUrl": "http://b1:8080", "brokerId": "b1:8080"},
}


def a_live() -> PulsarSettings:
    ours = BesideSettings(pulsar_metadata_store_url="zk:localhost:2181", admin_urls=("http://b1:8080",))
    return PulsarSettings(BrokerSettings("http://b1:8080", "c1", {}), ours)


@dataclass
class Beside:
    """An intake at work, and another session that changes what it reads."""

    own: MetadataStore
    store: MetadataStore
    view: ClusterMirror
    intake: PulsarIntake
    sighted: list[Sighted] = field(default_factory=list)

    async def read(self) -> None:
        """Return once everything written so far has been taken in."""
        await self.own.sync()
        await asyncio.sleep(0)  # the watches speak first
        await self.intake.settled()

    async def put(self, path: str, content: object) -> None:
        await write(self.store, path, content if isinstance(content, bytes) else json.dumps(content).encode())
        await self.read()

    async def delete(self, *found: str) -> None:
        await self.store.commit([Delete(path) for path in found])
        await self.read()

    async def own_by(self, bundle: str, owner: str) -> None:
        await self.put(pulsar_paths.owner(bundle), {"httpUrl": f"http://{owner}", "disabled": False})

    def ownership(self, bundle: str) -> Ownership:
        ownership = self.view.find_ownership(bundle)
        assert ownership is not None
        return ownership

    def owner(self, bundle: str) -> BrokerId | None:
        owner = self.ownership(bundle).owner
        return None if owner is None else owner.broker


@contextlib.asynccontextmanager
async def beside(
    world: StoreWorld, znodes: Mapping[str, object] = PULSAR, cluster: str | None = None
) -> AsyncIterator[Beside]:
    """An intake that has read these znodes, which are written before it looks; those that are there already stay."""
    own, other = await world.connect(), await world.connect()
    for path, content in znodes.items():
        await write(other, path, content if isinstance(content, bytes) else json.dumps(content).encode())
    async with looking(ReadOnlyStore(own), cluster) as (view, intake, sighted):
        yield Beside(own, other, view, intake, sighted)


@contextlib.asynccontextmanager
async def looking(
    store: ReadOnlyStore, cluster: str | None = None, *, awaited: bool = True
) -> AsyncIterator[tuple[ClusterMirror, PulsarIntake, list[Sighted]]]:
    """An intake at work, its view, and what it tells; when `awaited`, it has taken its first look."""
    view, sighted = ClusterMirror(), list[Sighted]()
    intake = PulsarIntake(store, view, a_live(), cluster, lambda: None, sighted.append)
    task = asyncio.create_task(intake.run())
    if awaited:
        await intake.settled()
    yield view, intake, sighted
    task.cancel()
    await asyncio.wait({task})


def state_of(view: ClusterMirror, intake: PulsarIntake) -> dict[str, object]:
    """All that the view and the intake say, but for how often something changed."""
    policies = view.model.snapshot(0.0, 0.0).policies
    return {
        "registrations": dict(view.registrations),
        "brokers": {name: (each.registration, each.record) for name, each in view.brokers.items()},
        "namespaces": {
            name: (each.state.bundles, [(own.state, own.owner) for own in each.state.ownerships])
            for name, each in view.namespaces.items()
        },
        "owners": dict(intake.owners),
        "laid down": (
            view.operator_config.isolation,
            view.operator_config.failure_domains,
            view.operator_config.anti_affinity,
        ),
        "policies": (policies.isolation, policies.anti_affinity_groups, policies.failure_domains),
        "others": (intake.pulsars_leader, intake.dynamic, intake.is_read_only, intake.load_managers),
    }
