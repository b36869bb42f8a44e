"""Server of bench_cycle_stall: a real node with a large cluster in memory, which plans cycles on request."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import measure  # noqa: F401 - finds `support`
import numpy as np
from aiohttp import web
from support.memory_store import MemoryCluster, MemoryStore

from loadmanager.cli.service_runner import install_fast_loop, reading_cluster
from loadmanager.config.dynamic_settings import settings_of
from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.core.domain.plan import Unload, Verdict
from loadmanager.http.app import make_app
from loadmanager.leader.execution.executor import Batch, Executor
from loadmanager.leader.loops.shedding_loop import SheddingLoop
from loadmanager.leader.node import Node
from loadmanager.net.http_server import ServerLimits, serve_within
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Put
from loadmanager.util.atomic_write import write_ready_file
from loadmanager.util.logging import configure_logging
from loadmanager.wire.broker_data import LocalBrokerData, encode_local_broker_data
from loadmanager.wire.store_records import encode_namespace

BROKERS = 1_000
NAMESPACES = 1_000
BUNDLES_PER_NAMESPACE = 100
ONE_IN_HOT = 10
NEVER_MINUTES = 100_000


class PlansOnly(Executor):
    """Executor that only counts the steps of a plan, so that each cycle has the same cluster."""

    steps = 0

    async def execute_all(
        self,
        steps: Iterable[tuple[Unload, Sequence[Verdict]]],
        batch: Batch | None = None,  # noqa: ARG002 - nothing waits that could be cancelled
    ) -> None:
        self.steps += len(list(steps))


class Cycles:
    """Planning cycles without a pause. A broker reports before each cycle, so each takes a new snapshot."""

    def __init__(self, node: Node, store: MemoryStore, records: list[bytes]) -> None:
        self._executor = PlansOnly(
            node.mirror, node.ledger, node.agents, node.decision_log, node.live, node.planner.churn
        )
        self._loop = SheddingLoop(
            node.planner, self._executor, node.election, node.decision_log, node.mirror, node.live
        )
        self._node = node
        self._store = store
        self._records = records
        self._task: asyncio.Task[None] | None = None
        self._started_s = 0.0

    async def start(self, request: web.Request) -> web.Response:
        """Start cycles in a `thread` or in a `process`, as the query says."""
        self._node.planner.planning.least_bundles = int(request.query["in"] == "process")
        self._executor.steps, self._loop.rounds = 0, 0
        self._started_s = time.perf_counter()
        self._task = asyncio.create_task(self._run())
        return web.json_response({})

    async def stop(self, _request: web.Request) -> web.Response:
        """Return the number of cycles, their steps, and the duration of one in seconds."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        cycles = max(1, self._loop.rounds)
        took_s = (time.perf_counter() - self._started_s) / cycles
        return web.json_response({"cycles": cycles, "steps": self._executor.steps / cycles, "cycle_s": took_s})

    async def _run(self) -> None:
        number = 0
        while True:
            await self._store.commit([Put(paths.broker(broker_id(number % BROKERS)), self._records[number % BROKERS])])
            number += 1
            await asyncio.sleep(0.01)  # for the intake of the report
            await self._loop.run_round()


def broker_id(number: int) -> BrokerId:
    return BrokerId(f"broker-{number:04d}.example.com:8080")


async def fill(store: MemoryStore) -> list[bytes]:
    """Write all reports and all namespace records; return the reports by broker number."""
    rng = np.random.default_rng(1)
    bundles = NamespaceBundles(equal_boundaries(BUNDLES_PER_NAMESPACE), HashFunction.MURMUR3_32)
    names = [NamespaceName.of("tenant", f"namespace-{number:04d}") for number in range(NAMESPACES)]
    owners = rng.integers(0, BROKERS, (NAMESPACES, BUNDLES_PER_NAMESPACE))
    owned: list[list[str]] = [[] for _ in range(BROKERS)]
    for name, row in zip(names, owners.tolist(), strict=True):
        for index, owner in enumerate(row):
            owned[owner].append(f"{name}/{bundles.range_at(index)}")
    records = [a_record(number, owned[number], rng) for number in range(BROKERS)]
    for path in paths.PERSISTENT_PARENTS:
        await store.ensure_path(path)
    registrations = []
    for number, record in enumerate(records):
        path = paths.broker(broker_id(number))
        await store.commit([Create(path, record, ephemeral=True)])
        znode = await store.get(path)
        assert znode is not None
        registrations.append(Registration(broker_id(number), znode.czxid))
    await store.ensure_path(f"{paths.NAMESPACES}/tenant")
    for name, row in zip(names, owners.tolist(), strict=True):
        entries = tuple(Ownership(OwnershipState.OWNED, registrations[owner], None, 1) for owner in row)
        record = encode_namespace(NamespaceState(name, bundles, entries))
        await store.commit([Create(paths.namespace(str(name)), record)])
    return records


def a_record(number: int, names: list[str], rng: np.random.Generator) -> bytes:
    """Return a report. One broker in ten is far above the average, so that rounds have moves."""
    rates = rng.uniform(0, 2 * 2**20, (len(names), 4)) * np.array([1e-4, 1e-4, 1, 1])
    keys = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
    sums = dict(zip(keys, rates.sum(axis=0).tolist(), strict=True))
    record = LocalBrokerData(
        pulsarServiceUrl=f"pulsar://{broker_id(number)}",
        cpu={"usage": 95.0 if number % ONE_IN_HOT == 0 else 40.0, "limit": 100.0},
        lastStats={
            name: {
                "msgRateIn": row[0],
                "msgRateOut": row[1],
                "msgThroughputIn": row[2],
                "msgThroughputOut": row[3],
                "topics": 10,
            }
            for name, row in zip(names, rates.tolist(), strict=True)
        },
        numBundles=len(names),
        numTopics=10 * len(names),
        msgRateIn=sums["msgRateIn"],
        msgRateOut=sums["msgRateOut"],
        msgThroughputIn=sums["msgThroughputIn"],
        msgThroughputOut=sums["msgThroughputOut"],
    )
    return encode_local_broker_data(record)


async def serve(ready_file: Path) -> None:
    configure_logging(json_lines=True, level="warning")
    store = MemoryStore(MemoryCluster(time.monotonic))
    await store.start()
    records = await fill(store)
    intervals = ("loadBalancerSheddingIntervalMinutes", "loadBalancerResourceQuotaUpdateIntervalMinutes")
    settings = settings_of(dict.fromkeys(intervals, NEVER_MINUTES), "benchmark")
    node = Node(settings, store, "127.0.0.1:1", "http://127.0.0.1:1", 1)
    app = make_app(node)
    with reading_cluster():
        await node.start()
    await node.leading.wait()
    cycles = Cycles(node, store, records)
    app.router.add_post("/bench/start", cycles.start)
    app.router.add_post("/bench/stop", cycles.stop)
    runner = await serve_within(app, ServerLimits.of(settings), 1.0)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    write_ready_file(ready_file, {"url": f"http://127.0.0.1:{runner.addresses[0][1]}"})
    await asyncio.Event().wait()


if __name__ == "__main__":
    install_fast_loop()
    asyncio.run(serve(Path(sys.argv[1])))
