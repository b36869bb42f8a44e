"""Processes beside a fake Pulsar, inside the test's process: they act, and plan only when a test has them do so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.fake_pulsar import FakePulsar, PulsarBroker
from support.nodes import Connect, Reply, in_memory
from support.servers import end_app, listen, serve_app
from support.stores import MemoryWorld
from support.waiting import eventually, patience
from yarl import URL

from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.domain.reasons import OwnershipReason, Reason
from loadmanager.core.protocol.guardrails import MoveHistory
from loadmanager.http.pulsar_routes import make_pulsar_app
from loadmanager.pulsar.broker_settings import PulsarSettings
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.pulsar_service import PulsarService
from loadmanager.store import paths
from loadmanager.store.metadata_store import Delete, MetadataStore
from loadmanager.store.znode_codec import decode
from loadmanager.wire.pulsar_records import decode_move_history

NAMESPACE = "lm/bench"
BUNDLES = [
    f"{NAMESPACE}/{each}" for each in ("0x00000000_0x40000000", "0x40000000_0x80000000", "0x80000000_0xc0000000")
]
BUNDLE = BUNDLES[0]
ON_BOTH = pytest.mark.parametrize("harness", ["modular", "extensible"], indirect=True)
"""For tests that hold under either load manager."""
NEVER = {"loadBalancerSheddingIntervalMinutes": "100000", "loadBalancerSheddingGracePeriodMinutes": "0"}


@dataclass(slots=True)
class Harness:
    """A Pulsar whose own shedding and splits are off, a store of ours, and the processes that were started."""

    pulsar: FakePulsar
    connect: Connect
    store: MetadataStore
    folder: Path
    nodes: list[PulsarService] = field(default_factory=list)
    apps: list[web.Application] = field(default_factory=list)
    """Web application of each process."""
    admin_timeout_s: float = field(default_factory=patience)
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def start(self, **changes: Any) -> PulsarService:  # noqa: ANN401 - whatever a setting may be
        """One more process, which has read everything and asked all brokers."""
        folder = self.folder / str(len(self.nodes))
        settings = PulsarServiceSettings(
            **{**_SETTINGS, "admin_urls": tuple(self.pulsar.urls), "folder": folder, **changes}
        )
        admin = PulsarAdmin(self.pulsar.urls, timeout_s=self.admin_timeout_s)
        self._stack.push_async_callback(admin.close)
        live = PulsarSettings(await admin.settings(self.pulsar.urls[0]), settings)
        listener = listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        node = PulsarService(settings, live, await self.connect(), admin, f"pulsar-{len(self.nodes)}", url, 1)
        self.nodes.append(node)
        self.apps.append(make_pulsar_app(node))
        self._stack.push_async_callback(end_app, await serve_app(self.apps[-1], listener))
        self._stack.push_async_callback(node.stop)
        await node.start()
        await eventually(lambda: not node.brokers.unknown())
        return node

    async def leader(self, **changes: Any) -> PulsarService:  # noqa: ANN401 - whatever a setting may be
        """A process that leads, has seen through what there was, and has had its first round, however it went."""
        node = await self.start(**changes)
        await eventually(lambda: node.is_leading and not node.actuator.move_log.open_moves)
        await eventually(lambda: node.shedding.rounds or node.shedding.rounds_failed)
        return node

    async def ask(self, node: PulsarService, method: str, path: str, **options: Any) -> Reply:  # noqa: ANN401 - aiohttp's
        """One request to a process over HTTP; the path goes out as it is given."""
        url = URL(f"{node.service_url}{path}", encoded=True)
        async with (
            aiohttp.ClientSession() as http,
            http.request(method, url, timeout=aiohttp.ClientTimeout(total=patience()), **options) as answer,
        ):
            return Reply(answer.status, dict(answer.headers), await answer.read())

    async def move_history(self) -> MoveHistory:
        """Return the stored history of moves."""
        znode = await self.store.get(paths.PULSAR_MOVES)
        return MoveHistory() if znode is None else decode_move_history(decode(znode.data, znode.path), znode.path)

    async def close(self) -> None:
        await self._stack.aclose()


_SETTINGS: dict[str, Any] = {
    "poll_interval_seconds": 0.05,
    "mode": "act",
    "state_store_url": "zk:127.0.0.1:1/ours",
    "settling_seconds": 0.0,
    "move_timeout_ms": 20_000,
    "overrides": NEVER,
}


@contextlib.asynccontextmanager
async def pulsar_harness(
    folder: Path, brokers: int = 3, bundles: int = 4, *, extensible: bool = False
) -> AsyncIterator[Harness]:
    """The first broker leads, and owns all bundles of `lm/bench`."""
    world = MemoryWorld()
    connect = in_memory()
    async with FakePulsar(world, brokers) as pulsar:
        pulsar.extensible = extensible
        await pulsar.set_dynamic(
            {"loadBalancerSheddingEnabled": "false", "loadBalancerAutoBundleSplitEnabled": "false"}
        )
        await pulsar.add_namespace(NAMESPACE, bundles, [pulsar.brokers[0].broker_id])
        harness = Harness(pulsar, connect, await connect(), folder)
        try:
            yield harness
        finally:
            await harness.close()
    await world.close()


def ownership(node: PulsarService, bundle: str) -> Ownership:
    return node.mirror.get_ownership(BundleName.parse(bundle))


async def load(harness: Harness, node: PulsarService) -> None:
    """All bundles are as busy as each other, and all brokers have reported."""
    for bundle in list(node.intake.owners):
        harness.pulsar.load(bundle, 200.0, bytes_each=100 * 1024.0)
    await report(harness, node)


async def report(harness: Harness, node: PulsarService) -> None:
    """Have all brokers report, and wait until the node has read it. Figures of the extensible manager have no date."""
    if harness.pulsar.extensible:
        await node.intake.settled()
        return
    brokers = [broker.broker_id for broker in harness.pulsar.brokers if broker.reporting]
    before_s = {broker: node.intake.reports_at_s(broker) or 0.0 for broker in brokers}
    await asyncio.sleep(0.002)  # reports are told apart by milliseconds
    await harness.pulsar.report()
    await eventually(lambda: all((node.intake.reports_at_s(each) or 0.0) > before_s[each] for each in brokers))


async def counts(harness: Harness) -> list[int]:
    """Count the bundles of each broker."""
    return [len(await broker.owned()) for broker in harness.pulsar.brokers]


def life(node: PulsarService, broker: PulsarBroker) -> Registration:
    return node.mirror.registrations[broker.broker_id]


async def move(
    node: PulsarService,
    to: PulsarBroker | None,
    bundle: str = BUNDLE,
    reason: Reason = OwnershipReason.ADMIN_UNLOAD,
) -> Ownership:
    """Move the bundle; by default as an operator."""
    destination = None if to is None else life(node, to)
    return await node.executor.unload(BundleName.parse(bundle), destination, reason)


def asked(pulsar: FakePulsar, what: str) -> list[str]:
    """The requests of the kind, as they came to whichever broker."""
    return [each.path for each in pulsar.asked if what in each.path]


async def knows_owners(harness: Harness, node: PulsarService) -> bool:
    """Return True if a process knows all owners, to the last move."""
    owners = {bundle: owner and owner.broker for bundle, owner in node.intake.owners.items()}
    return owners == {bundle: await harness.pulsar.owner(bundle) for bundle in owners}


async def is_settled(harness: Harness, node: PulsarService) -> None:
    """Nothing is under way, and the view is as Pulsar's metadata are."""
    for bundle in list(node.intake.owners):
        owner, seen = await harness.pulsar.owner(bundle), ownership(node, bundle)
        assert (seen.owner.broker if seen.owner else None) == owner
        assert seen.state is (OwnershipState.FREE if owner is None else OwnershipState.OWNED)
    assert (await harness.move_history()).in_progress == {}


def said(node: PulsarService, kind: str) -> list[dict[str, Any]]:
    return [each for each in node.decision_log.recent(500) if each["kind"] == kind]


def reasons(node: PulsarService) -> list[Reason]:
    return [stop.verdict for stop in node.actuator.guardrails.check_round()]


async def change_load_manager(pulsar: FakePulsar) -> None:
    """Have the third broker run another load manager than the others."""
    pulsar.brokers[2].settings["loadManagerClassName"] = "com.example.OwnLoadManager"


async def delete_leader(pulsar: FakePulsar) -> None:
    await pulsar.operator.commit([Delete("/loadbalance/leader")])
