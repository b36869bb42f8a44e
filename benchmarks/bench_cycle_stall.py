"""Latency of lookups over 16 connections while a node plans without a pause, and while it does not plan.

The server is a real node with 1,000 brokers and 100,000 bundles in a metadata store in memory. Rounds alternate between
no planning, planning in a thread of the node, and planning in a worker process. All latencies of all rounds count.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
from bench_lookup import Server, a_server
from http_load import load
from measure import Measured, percentile, show

from loadmanager.cli.service_runner import install_fast_loop

CONNECTIONS = 16
ROUNDS = 3
ROUND_S = 8.0
TARGET_RATIO = 1.2
TOPIC_PATHS = [
    f"/lookup/v2/topic/persistent/tenant/namespace-{number % 1000:04d}/topic-{number:05d}" for number in range(10_000)
]


@dataclass(slots=True)
class Lookups:
    """All latencies in seconds; by round, lookups/s and the node's CPU time per lookup in seconds."""

    latencies_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    async def measure(self, server: Server) -> None:
        before_s = sum(server.process.cpu_times()[:2])
        rate, latencies_s = await load(server.url, TOPIC_PATHS, CONNECTIONS, ROUND_S)
        self.latencies_s += latencies_s
        self.rates.append(rate)
        self.cpu_s.append((sum(server.process.cpu_times()[:2]) - before_s) / len(latencies_s))

    def latency_ms(self, percent: float) -> float:
        return percentile(sorted(self.latencies_s), percent) * 1e3

    def figures(self, when: str) -> list[Measured]:
        return [
            Measured(f"median {when}", self.latency_ms(50), "ms"),
            Measured(f"99th percentile {when}", self.latency_ms(99), "ms"),
            Measured(f"longest {when}", max(self.latencies_s) * 1e3, "ms"),
            Measured(f"lookups {when}", statistics.median(self.rates), "/s"),
            Measured(f"processor time of the node a lookup {when}", statistics.median(self.cpu_s) * 1e6, "us"),
        ]


@dataclass(slots=True)
class Cycles:
    """Planning cycles of the server by round, and the lookups at the same time."""

    where: str
    lookups: Lookups = field(default_factory=Lookups)
    said: list[dict[str, float]] = field(default_factory=list)

    async def measure(self, server: Server, http: aiohttp.ClientSession) -> None:
        await http.post("/bench/start", params={"in": self.where})
        await self.lookups.measure(server)
        async with http.post("/bench/stop") as response:
            self.said.append(await response.json())

    def figures(self, quiet: Lookups, target: float | None = None) -> list[Measured]:
        when = f"beside cycles in a {self.where}"
        ratio = self.lookups.latency_ms(99) / quiet.latency_ms(99)
        return [
            *self.lookups.figures(when),
            Measured(f"99th percentile {when} / without", ratio, "", target),
            Measured(f"one cycle in a {self.where}", self._median("cycle_s") * 1e3, "ms"),
            Measured(f"cycles planned in a {self.where} in a round", self._median("cycles"), ""),
            Measured(f"moves in a plan of a {self.where}", self._median("steps"), ""),
        ]

    def _median(self, key: str) -> float:
        return statistics.median(each[key] for each in self.said)


def memory_mib(processes: Sequence[psutil.Process]) -> float:
    return sum(process.memory_info().rss for process in processes) / 2**20


async def measure(server: Server) -> None:
    quiet, thread, process = Lookups(), Cycles("thread"), Cycles("process")
    async with aiohttp.ClientSession(server.url) as http:
        for _ in range(ROUNDS):
            await quiet.measure(server)
            await thread.measure(server, http)
            await process.measure(server, http)
    show(
        f"Lookups during planning: 1,000 brokers, 100,000 bundles, {CONNECTIONS} connections",
        [
            *quiet.figures("without planning"),
            *thread.figures(quiet),
            *process.figures(quiet, TARGET_RATIO),
            Measured("memory of the node", memory_mib([server.process]), "MiB"),
            Measured("memory of the process that plans", memory_mib(server.process.children()), "MiB"),
        ],
    )


def main() -> None:
    install_fast_loop()
    command = [str(Path(__file__).with_name("stall_server.py"))]
    with tempfile.TemporaryDirectory() as folder, a_server(Path(folder), "node", command) as server:
        asyncio.run(measure(server))


if __name__ == "__main__":
    main()
