"""Server of bench_watch: a real standby with a metadata store in memory, whose records change on request, and the
baseline, bare streams of aiohttp.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path

import measure  # noqa: F401 - finds `support`
from aiohttp import web
from support.memory_store import MemoryCluster, MemoryStore

from loadmanager.cli.service_runner import install_fast_loop, reading_cluster
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, Registration, Stamp, assign, complete, release
from loadmanager.http.app import make_app
from loadmanager.http.messages import encode_event, event_stream
from loadmanager.leader.node import Node
from loadmanager.net.http_server import ServerLimits, listen_on, serve_within
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Put
from loadmanager.util.atomic_write import write_ready_file
from loadmanager.util.logging import configure_logging
from loadmanager.wire.broker_data import LocalBrokerData, encode_local_broker_data
from loadmanager.wire.store_records import LeaderRecord, encode_namespace

BROKERS = 16
BUNDLES = {"tenant/watched": 64, "tenant/large": 4_096}
CONNECTIONS = 100_000
_STAMP = Stamp(1, 0, "bench")
_AS_MUCH = b"x" * 450
"""About the size of a change."""


class Records:
    """Namespaces in the store, whose bundles can be moved."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._states: dict[str, NamespaceState] = {}
        self._brokers: list[Registration] = []
        self._moves = 0

    async def fill(self) -> None:
        for path in paths.PERSISTENT_PARENTS:
            await self._store.ensure_path(path)
        await self._store.ensure_path(f"{paths.NAMESPACES}/tenant")
        for number in range(BROKERS):
            broker = BrokerId(f"broker-{number:04d}.example.com:8080")
            record = LocalBrokerData(
                pulsarServiceUrl=f"pulsar://{broker}", webServiceUrl=f"http://{broker}", lastStats={}
            )
            await self._store.commit([Create(paths.broker(broker), encode_local_broker_data(record), ephemeral=True)])
            znode = await self._store.get(paths.broker(broker))
            assert znode is not None
            self._brokers.append(Registration(broker, znode.czxid))
        for name, bundles in BUNDLES.items():
            state = NamespaceState.unowned(NamespaceName.parse(name), NamespaceBundles(equal_boundaries(bundles)))
            owners = {index: assign(each, self._to(index), _STAMP) for index, each in enumerate(state.ownerships)}
            self._states[name] = state.with_ownerships(owners)
            await self._store.commit([Create(paths.namespace(name), encode_namespace(self._states[name]))])

    async def move(self, name: str) -> None:
        """Give one bundle to the next broker, in one write."""
        self._moves += 1
        state = self._states[name]
        index = self._moves % len(state.bundles)
        released = release(state.ownerships[index], self._to(self._moves), _STAMP)
        self._states[name] = state.with_ownerships({index: complete(released, _STAMP)})
        await self._store.commit([Put(paths.namespace(name), encode_namespace(self._states[name]))])

    def _to(self, number: int) -> Registration:
        return self._brokers[number % BROKERS]


class Bare:
    """Simplest implementation: each stream waits for the next frame, and writes it."""

    def __init__(self) -> None:
        self._next: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = event_stream()
        await response.prepare(request)
        await response.write(encode_event("snapshot", b"{}"))
        while True:
            await response.write(await self._next)

    async def tell(self, _request: web.Request) -> web.Response:
        at_s, told = time.monotonic(), self._next
        self._next = asyncio.get_running_loop().create_future()
        told.set_result(encode_event("change", _AS_MUCH, "tenant/watched@0123456789abcdef"))
        return web.json_response({"at": at_s})


async def a_node(store: MemoryStore, url: str) -> Node:
    """Start a node that follows the leader at this URL."""
    leader = LeaderRecord(broker_id="another", service_url=url, epoch=1)
    await store.commit([Create(paths.LEADER, leader.to_json())])
    return Node(Settings(history_url=""), store, "127.0.0.1:1", "http://127.0.0.1:1", 1)


async def serve(ready_file: Path) -> None:
    configure_logging(json_lines=True, level="warning")
    cluster = MemoryCluster(time.monotonic)
    store, writer = MemoryStore(cluster), MemoryStore(cluster)
    await store.start()
    await writer.start()
    records, bare = Records(writer), Bare()
    await records.fill()
    leader = await asyncio.start_server(lambda _, stream: stream.close(), "127.0.0.1", 0)
    node = await a_node(store, f"http://127.0.0.1:{leader.sockets[0].getsockname()[1]}")
    app = make_app(node)
    with reading_cluster():
        await node.start()

    async def move(request: web.Request) -> web.Response:
        at_s = time.monotonic()
        await records.move(request.query["namespace"])
        return web.json_response({"at": at_s})

    app.router.add_post("/bench/move", move)
    app.router.add_post("/bench/tell", bare.tell)
    app.router.add_get("/bench/bare", bare.stream)
    limits = ServerLimits(head_s=60.0, body_s=60.0, idle_s=600.0, connections=CONNECTIONS)
    runner = await serve_within(app, limits, 1.0)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    await listen_on(runner, listener)
    write_ready_file(ready_file, {"url": f"http://127.0.0.1:{listener.getsockname()[1]}"})
    await asyncio.Event().wait()


if __name__ == "__main__":
    install_fast_loop()
    asyncio.run(serve(Path(sys.argv[1])))
