"""Cost of recording for a leader: minutes with and without a history alternate in one process.

1,000 brokers with 100,000 bundles all report, and a shedding round is planned. The leader is a real one over a metadata
store in memory. The result is the time of the event loop's thread and of the planning thread, for which lookups wait.
The writing thread is shown separately.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from measure import Measured, show
from stall_server import BROKERS, BUNDLES_PER_NAMESPACE, NAMESPACES, NEVER_MINUTES, broker_id, fill
from support.memory_store import MemoryCluster, MemoryStore

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BUNDLE_REPORTS
from loadmanager.leader.audit.recorded_model import RecordedModel
from loadmanager.leader.node import Node
from loadmanager.store import paths
from loadmanager.store.metadata_store import Put
from loadmanager.util.logging import configure_logging

ROUNDS = 5
TARGET_PERCENT = 5.0
TARGET_BYTES = 20.0


@dataclass(slots=True)
class Leader:
    """A leader, its store, and the reports of its brokers."""

    node: Node
    store: MemoryStore
    records: list[bytes]
    history: str

    @classmethod
    async def started(cls, history: str) -> Leader:
        store = MemoryStore(MemoryCluster(time.monotonic))
        await store.start()
        records = await fill(store)
        intervals = ("SheddingInterval", "ResourceQuotaUpdateInterval", "SplitInterval")
        never = {f"loadBalancer{each}Minutes": NEVER_MINUTES for each in intervals}
        settings = settings_of({**never, "historyUrl": history, "historyFlushIntervalS": 3_600}, "benchmark")
        node = Node(settings, store, "127.0.0.1:1", "http://127.0.0.1:1", 1)
        await node.start()
        await node.leading.wait()
        return cls(node, store, records, history)

    async def minute(self, number: int) -> tuple[float, float]:
        """Return the CPU seconds of the event loop's thread, and the wall time, for all reports and a round."""
        changed = [with_load(record, number) for record in self.records]
        loop_s, started_s = time.thread_time(), time.perf_counter()
        for broker, record in enumerate(changed):
            await self.store.commit([Put(paths.broker(broker_id(broker)), record)])
        await self.node.intake.settled()
        await self.node.planner.shed()
        return time.thread_time() - loop_s, time.perf_counter() - started_s

    async def checkpoint_s(self) -> float:
        model = self.node.mirror.model
        if not isinstance(model, RecordedModel):
            return 0.0
        started_s = time.perf_counter()
        await self.node.planner.checkpoint(model)
        return time.perf_counter() - started_s


def with_load(record: bytes, number: int) -> bytes:
    """Return the record of another minute, with slightly different loads."""
    content = orjson.loads(record)
    factors = np.random.default_rng(number).uniform(0.9, 1.1, len(content["lastStats"])).tolist()
    for stats, factor in zip(content["lastStats"].values(), factors, strict=True):
        for key in ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut"):
            stats[key] *= factor
    for key in ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut"):
        content[key] = sum(stats[key] for stats in content["lastStats"].values())
    content["lastUpdate"] = round(time.time() * 1000)
    return orjson.dumps(content)


async def measure(folder: Path) -> None:
    plain, recording = await Leader.started(""), await Leader.started(str(folder))
    loop: dict[bool, list[float]] = {False: [], True: []}
    clock: dict[bool, list[float]] = {False: [], True: []}
    writing: list[float] = []
    for number in range(ROUNDS):
        for leader in (plain, recording):
            loop_s, clock_s = await leader.minute(number)
            loop[leader is recording].append(loop_s)
            clock[leader is recording].append(clock_s)
        started_s = time.process_time()
        assert await asyncio.to_thread(recording.node.recorder.flush, 60.0)
        writing.append(time.process_time() - started_s)
    checkpoint_s = await recording.checkpoint_s()
    for leader in (plain, recording):
        await leader.node.stop()
    table = History(str(folder)).info(BUNDLE_REPORTS)
    without, with_it = (statistics.median(loop[each]) for each in (False, True))
    show(
        f"Recording: {BROKERS:,} reports with {NAMESPACES * BUNDLES_PER_NAMESPACE:,} bundles, and a round of shedding",
        [
            Measured("leader's thread without recording", without * 1e3, "ms"),
            Measured("leader's thread with recording", with_it * 1e3, "ms"),
            Measured("more with recording", 100 * (with_it / without - 1), "%", TARGET_PERCENT),
            Measured("by the clock, without", statistics.median(clock[False]) * 1e3, "ms"),
            Measured("by the clock, with", statistics.median(clock[True]) * 1e3, "ms"),
            Measured("writing it, in a thread of its own", statistics.median(writing) * 1e3, "ms"),
            Measured("bytes a bundle row", table.size_bytes / max(table.rows, 1), "", TARGET_BYTES),
            Measured("a checkpoint, on the event loop", checkpoint_s * 1e3, "ms"),
        ],
    )


def main() -> None:
    configure_logging(json_lines=True, level="error")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
