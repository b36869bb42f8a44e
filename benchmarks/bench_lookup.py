"""Lookups of owned bundles from a real node, against a bare aiohttp handler that returns the same bytes.

Each server is a process. Both get the same requests over 64 connections, in alternating rounds; the ratio is the median
of the rounds. The CPU time per request is shown too: it hardly depends on other load of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
import psutil
from http_load import fetch, load
from measure import Measured, percentile, show

from loadmanager.cli.service_runner import install_fast_loop
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.util.logging import configure_logging
from loadmanager.wire.broker_data import LocalBrokerData, encode_local_broker_data

CONNECTIONS = 64
ROUNDS = 9
ROUND_S = 2.0
TOPICS = 10_000
TARGET_RATIO = 2.0
TARGET_PER_CORE_S = 100_000
NAMESPACE = "public/default"
BROKER = "broker-1.example.com:8080"
TOPIC_PATHS = [f"/lookup/v2/topic/persistent/{NAMESPACE}/orders-{number:05d}" for number in range(TOPICS)]

_READY_S = 60.0


@dataclass(slots=True)
class Server:
    """A running server, and per round the requests/s and the CPU time per request in seconds. `more` are additional
    header lines of each request.
    """

    url: str
    process: psutil.Process
    more: str = ""
    requests_per_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    async def measure(self, topic_paths: list[str]) -> list[float]:
        """Run one round and return its latencies in seconds."""
        before_s = sum(self.process.cpu_times()[:2])
        rate, latencies_s = await load(self.url, topic_paths, CONNECTIONS, ROUND_S, self.more)
        self.requests_per_s.append(rate)
        self.cpu_s.append((sum(self.process.cpu_times()[:2]) - before_s) / len(latencies_s))
        return latencies_s

    def forget(self) -> None:
        """Drop the figures of the warm-up rounds."""
        self.requests_per_s.clear()
        self.cpu_s.clear()


@contextlib.contextmanager
def a_server(folder: Path, name: str, command: list[str]) -> Iterator[Server]:
    """Run a server process. It writes its URL to the ready file, the last argument of `command`."""
    ready_file = folder / f"{name}.ready"
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *command, str(ready_file)], stdout=log, stderr=log)
        try:
            deadline_s = time.monotonic() + _READY_S
            while not ready_file.exists():
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError(f"{name} did not start: {(folder / f'{name}.log').read_text()}")
                time.sleep(0.05)
            yield Server(orjson.loads(ready_file.read_bytes())["url"], psutil.Process(process.pid))
        finally:
            process.terminate()
            process.wait()


async def give_owner(store: ZooKeeperStore, url: str, headers: Mapping[str, str] | None = None) -> bytes:
    """Register a broker, create the namespace, and have all its bundles assigned. Return the answer to every lookup.

    `headers` are sent with each request.
    """
    web_url, service_url = "http://broker-1.example.com:8080", "pulsar://broker-1.example.com:6650"
    record = LocalBrokerData(webServiceUrl=web_url, pulsarServiceUrl=service_url, lastStats={})
    await store.commit([Create(paths.broker(BROKER), encode_local_broker_data(record), ephemeral=True)])
    async with aiohttp.ClientSession(headers=headers) as http:
        async with http.put(f"{url}/admin/v2/namespaces/{NAMESPACE}") as response:
            response.raise_for_status()
        bodies = set()
        for path in TOPIC_PATHS[:200]:
            async with http.get(f"{url}{path}") as response:
                response.raise_for_status()
                bodies.add(await response.read())
    [body] = bodies
    return body


async def compare(folder: Path, zookeeper: EmbeddedZooKeeper) -> None:
    config = folder / "node.yaml"
    config.write_text(
        f"metadataStoreUrl: zk:{zookeeper.connect_string}\nwebServicePort: 0\n"
        "bindAddress: 127.0.0.1\nadvertisedAddress: 127.0.0.1\n"
    )
    store = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=30.0)
    await store.start()
    node_command = ["-m", "loadmanager", "serve", "--config", str(config), "--ready-file"]
    with a_server(folder, "node", node_command) as node:
        body = await give_owner(store, node.url)
        (folder / "body.json").write_bytes(body)
        bare_command = [str(Path(__file__).with_name("bare_server.py")), str(folder / "body.json")]
        with a_server(folder, "bare", bare_command) as bare:
            same, _ = await fetch(bare.url, TOPIC_PATHS[0])
            assert same == body
            await in_turn(node, bare)
    await store.close()


async def in_turn(node: Server, bare: Server) -> None:
    latencies_s: list[float] = []
    before_s, requests = time.process_time(), 0
    for number in range(ROUNDS + 1):
        requests += len(await bare.measure(TOPIC_PATHS))
        of_round_s = await node.measure(TOPIC_PATHS)
        requests += len(of_round_s)
        if number:
            latencies_s += of_round_s
        else:
            bare.forget()
            node.forget()
    client_cpu_s = (time.process_time() - before_s) / requests
    ratios = [ours / theirs for ours, theirs in zip(node.requests_per_s, bare.requests_per_s, strict=True)]
    node_cpu_s, bare_cpu_s = statistics.median(node.cpu_s), statistics.median(bare.cpu_s)
    show(
        f"Lookups of owned bundles: {CONNECTIONS} connections, {TOPICS:,} topics, {ROUNDS} rounds in turn",
        [
            Measured("bare aiohttp handler, median", statistics.median(bare.requests_per_s), "requests/s"),
            Measured("load-manager node, median", statistics.median(node.requests_per_s), "requests/s"),
            Measured("node / bare, median of the rounds", statistics.median(ratios), "", TARGET_RATIO, at_least=True),
            Measured("node / bare, lowest round", min(ratios), ""),
            Measured("bare, processor time per request", bare_cpu_s * 1e6, "us"),
            Measured("node, processor time per request", node_cpu_s * 1e6, "us"),
            Measured("node, requests per second of one core", 1 / node_cpu_s, "", TARGET_PER_CORE_S, at_least=True),
            Measured("bare / node, processor time", bare_cpu_s / node_cpu_s, ""),
            Measured("client, processor time per request", client_cpu_s * 1e6, "us"),
            Measured("node, 99th percentile of the latency", percentile(sorted(latencies_s), 99) * 1e3, "ms"),
        ],
    )


def main() -> None:
    configure_logging(json_lines=False, level="warning")
    install_fast_loop()
    with tempfile.TemporaryDirectory() as folder, EmbeddedZooKeeper() as zookeeper:
        asyncio.run(compare(Path(folder), zookeeper))


if __name__ == "__main__":
    main()
