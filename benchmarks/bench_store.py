"""Cost of the metadata store on ZooKeeper: reads of many znodes, transactions, single requests, and the loop's lag.

Run `python -m benchmarks.bench_store [znodes]`; it starts its own ZooKeeper.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store.metadata_store import Check, Create, Op, Put
from loadmanager.store.zookeeper_store import ZooKeeperStore

OPS_PER_TRANSACTION = 200
SINGLE_REQUESTS = 3000
DATA = b"x" * 100


@contextlib.asynccontextmanager
async def measured(what: str, count: int) -> AsyncIterator[None]:
    """Print the duration of the block, and the longest stall of the event loop in it."""
    longest_s = 0.0

    async def watch_the_loop() -> None:
        nonlocal longest_s
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(0.001)
            longest_s = max(longest_s, time.perf_counter() - before_s - 0.001)

    watching = asyncio.create_task(watch_the_loop())
    began_s = time.perf_counter()
    yield
    took_s = time.perf_counter() - began_s
    watching.cancel()
    print(f"{what:<45} {took_s:7.3f} s  {count / took_s:10,.0f} /s  loop held up {longest_s * 1000:5.1f} ms")


async def bench(connect_string: str, znodes: int) -> None:
    store = ZooKeeperStore(connect_string, session_timeout_s=15, chroot="/bench")
    await store.start()
    await store.commit([Create("/epoch", b"")])
    paths = [f"/n{number:06}" for number in range(znodes)]
    batches = [paths[begin : begin + OPS_PER_TRANSACTION] for begin in range(0, znodes, OPS_PER_TRANSACTION)]
    async with measured(f"create {znodes} in transactions of {OPS_PER_TRANSACTION}", znodes):
        for batch in batches:
            await store.commit([Create(path, DATA) for path in batch])
    async with measured(f"check epoch + put {znodes}, likewise", znodes):
        for batch in batches:
            ops: list[Op] = [Check("/epoch", 0), *(Put(path, DATA) for path in batch)]
            await store.commit(ops)
    async with measured(f"get_many of {znodes}", znodes):
        await store.get_many(paths)
    async with measured(f"children: {znodes} names", znodes):
        await store.children("/")
    async with measured(f"get x {SINGLE_REQUESTS}, one after another", SINGLE_REQUESTS):
        for path in paths[:SINGLE_REQUESTS]:
            await store.get(path)
    async with measured(f"get x {SINGLE_REQUESTS}, all at once", SINGLE_REQUESTS):
        await asyncio.gather(*(store.get(path) for path in paths[:SINGLE_REQUESTS]))
    await store.close()


def main() -> None:
    znodes = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with EmbeddedZooKeeper() as server:
        asyncio.run(bench(server.connect_string, znodes))


if __name__ == "__main__":
    main()
