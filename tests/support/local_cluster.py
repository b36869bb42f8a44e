"""One node inside the test that leads, and scripted brokers, on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from support.history import History, recording
from support.lm_node import LocalNode, a_local_node, get_json
from support.scripted_broker import ScriptedBroker, asking, overlaps
from support.stores import ZooKeeperWorld
from support.waiting import eventually, patience

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import NamespaceName, TopicName
from loadmanager.core.domain.ownership import Ownership, OwnershipState
from loadmanager.leader.node import Node
from loadmanager.store.metadata_store import MetadataStore

NAMESPACE = NamespaceName.of("tenant", "ns")
TOPIC = "tenant/ns/t"
"""The topic whose bundle the tests are about."""


@dataclass(slots=True)
class LocalCluster:
    """`history` has every state of the namespace's record; while the cluster is there, brokers ask for `TOPIC`."""

    local: LocalNode
    brokers: list[ScriptedBroker]
    history: History
    http: aiohttp.ClientSession
    witness: MetadataStore

    @property
    def node(self) -> Node:
        return self.local.node

    @property
    def bundle(self) -> str:
        entry, index = self.node.mirror.bundle_of_topic(TopicName.parse(f"persistent://{TOPIC}"))
        return entry.state.bundle_name(index)

    @property
    def ownership(self) -> Ownership:
        entry, index = self.node.mirror.bundle_of_topic(TopicName.parse(f"persistent://{TOPIC}"))
        return entry.state.ownerships[index]

    async def story(self) -> list[tuple[str, str | None, str]]:
        """State, owner and reason of each version of the bundle that was seen, including the last one."""
        entry, index = self.node.mirror.bundle_of_topic(TopicName.parse(f"persistent://{TOPIC}"))
        await eventually(lambda: self.history.moments[-1].version >= entry.version)
        seen: dict[int, Ownership] = {}
        for moment in self.history.moments:
            seen.setdefault(moment.state.ownerships[index].version, moment.state.ownerships[index])
        return [(o.state.value, o.owner.broker if o.owner else None, o.reason) for o in seen.values() if o.version]

    async def lookup(self, topic: str = TOPIC) -> tuple[int, dict[str, Any]]:
        return await get_json(self.http, f"{self.local.url}/lookup/v2/topic/persistent/{topic}", 30.0)

    async def owner(self) -> ScriptedBroker:
        """Look the topic up, as a client does: again, as long as the broker it is sent to does not serve it."""
        found: list[ScriptedBroker] = []

        async def served() -> bool:
            status, answer = await self.lookup()
            assert status == 200, answer
            found[:] = [broker for broker in self.brokers if broker.broker_id == answer["brokerId"]]
            return found[0].serves(self.bundle)

        await eventually(served, what="the owner serves")
        return found[0]

    async def unload(self, destination: ScriptedBroker | None = None) -> int:
        namespace, _, bundle_range = self.bundle.rpartition("/")
        query = {"destinationBroker": destination.broker_id} if destination else {}
        url = f"{self.local.url}/admin/v2/namespaces/{namespace}/{bundle_range}/unload"
        async with self.http.put(url, params=query, timeout=aiohttp.ClientTimeout(total=patience())) as answer:
            return answer.status

    def other_than(self, *brokers: ScriptedBroker) -> ScriptedBroker:
        return next(broker for broker in self.brokers if broker not in brokers)

    async def reaches(self, state: OwnershipState, owner: ScriptedBroker | None = None) -> None:
        """Wait until the bundle has this state and owner."""
        wanted = owner.broker_id if owner else None

        def is_there() -> bool:
            now = self.ownership
            return now.state is state and (now.owner.broker if now.owner else None) == wanted

        await eventually(is_there, what=f"{state} by {wanted}")

    def incarnations(self) -> set[int]:
        return {entry.registration.incarnation for entry in self.node.mirror.brokers.values()}

    def journalled(self, kind: str) -> list[dict[str, Any]]:
        """The leader's journal about the bundle, oldest first."""
        return [e for e in reversed(self.node.decision_log.recent(100, self.bundle)) if e["kind"] == kind]


@asynccontextmanager
async def a_local_cluster(
    world: ZooKeeperWorld, settings: Mapping[str, Any], brokers: int = 3
) -> AsyncIterator[LocalCluster]:
    """Checked at the end: no bundle was ever served twice, and versions only grew."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(world.close)
        witness = await world.connect()
        local = await stack.enter_async_context(a_local_node(await world.connect(), settings))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        scripted = []
        for _ in range(brokers):
            broker = ScriptedBroker(store=await world.connect())
            await stack.enter_async_context(broker)
            await broker.register()
            scripted.append(broker)
        await eventually(lambda: local.node.leading.is_set() and len(local.node.mirror.brokers) == brokers)
        await local.node.bundles.create_namespace(NAMESPACE, NamespaceBundles(equal_boundaries(4)))
        history = await stack.enter_async_context(recording(witness, str(NAMESPACE)))
        cluster = LocalCluster(local, scripted, history, http, witness)
        await stack.enter_async_context(asking(http, scripted, [local.url], [TOPIC]))
        try:
            yield cluster
        finally:
            for broker in scripted:
                broker.may_obey.set()
                broker.may_answer.set()
    assert overlaps(cluster.brokers) == []
    assert cluster.history.versions_skipped() == []
