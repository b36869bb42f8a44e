"""How long lookups wait while the same process plans: 16 connections, planning cycles back to back, and without any.

The server is a real node over 1,000 brokers and 100,000 bundles in a metadata store in memory. Without cycles and with
them in turn; all latencies of all rounds count.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

import aiohttp
from bench_lookup import a_server
from http_load import load
from measure import Measured, percentile, show

from loadmanager.cli.running import install_fast_loop

CONNECTIONS = 16
ROUNDS = 3
ROUND_S = 8.0
TARGET_P99_MS = 10.0
TOPIC_PATHS = [
    f"/lookup/v2/topic/persistent/tenant/namespace-{number % 1000:04d}/topic-{number:05d}" for number in range(10_000)
]


async def measure(url: str) -> None:
    quiet, busy = list[float](), list[float]()
    rates: dict[str, list[float]] = {"quiet": [], "busy": []}
    rounds: list[dict[str, float]] = []
    async with aiohttp.ClientSession(url) as http:
        for _ in range(ROUNDS):
            rate, latencies_s = await load(url, TOPIC_PATHS, CONNECTIONS, ROUND_S)
            quiet += latencies_s
            rates["quiet"].append(rate)
            await http.post("/bench/start")
            rate, latencies_s = await load(url, TOPIC_PATHS, CONNECTIONS, ROUND_S)
            busy += latencies_s
            rates["busy"].append(rate)
            async with http.post("/bench/stop") as response:
                rounds.append(await response.json())
    quiet.sort()
    busy.sort()
    show(
        f"Lookups during planning: 1,000 brokers, 100,000 bundles, {CONNECTIONS} connections",
        [
            Measured("99th percentile without planning", percentile(quiet, 99) * 1e3, "ms"),
            Measured("99th percentile, cycles back to back", percentile(busy, 99) * 1e3, "ms", TARGET_P99_MS),
            Measured("with / without", percentile(busy, 99) / percentile(quiet, 99), ""),
            Measured("median without planning", percentile(quiet, 50) * 1e3, "ms"),
            Measured("median, cycles back to back", percentile(busy, 50) * 1e3, "ms"),
            Measured("longest, cycles back to back", busy[-1] * 1e3, "ms"),
            Measured("lookups without planning", statistics.median(rates["quiet"]), "/s"),
            Measured("lookups, cycles back to back", statistics.median(rates["busy"]), "/s"),
            Measured("cycles planned in a round", statistics.median(each["cycles"] for each in rounds), ""),
            Measured("moves in a plan", statistics.median(each["steps"] for each in rounds), ""),
            Measured("one cycle beside lookups", statistics.median(each["cycle_s"] for each in rounds) * 1e3, "ms"),
        ],
    )


def main() -> None:
    install_fast_loop()
    command = [str(Path(__file__).with_name("stall_server.py"))]
    with tempfile.TemporaryDirectory() as folder, a_server(Path(folder), "node", command) as server:
        asyncio.run(measure(server.url))


if __name__ == "__main__":
    main()
