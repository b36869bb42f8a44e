"""Effect of attacks without a token on lookups: the 99th percentile of a node's lookups during an attack, compared with
the one just before it; and the memory of the node.

The attacker is a process on the same machine, so it also uses one of its cores. The baseline for that is a busy process
that does not connect to the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from bench_lookup import TOPIC_PATHS, Server, a_server, give_owner
from http_load import load
from measure import Measured, percentile, show

from loadmanager.cli.service_runner import install_fast_loop
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.net.auth.token_keys import create_secret, create_token
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.util.logging import configure_logging

CONNECTIONS = 16
ROUND_S = 4.0
IDLE = 10_000
SLOW = 500
LARGE = 4
LARGE_BYTES = 100_000_000
MOST_MEMORY_MIB = 512
_WARM_UP_S = 3.0
_FILES = 20_000

Attack = Callable[[str, int, asyncio.Event], Awaitable[None]]


async def idle(host: str, port: int, stop: asyncio.Event) -> None:
    """Connect and send nothing."""
    writers = []
    for _ in range(IDLE):
        if stop.is_set():
            break
        writers.append((await asyncio.open_connection(host, port))[1])
    await stop.wait()
    for writer in writers:
        writer.transport.abort()


async def slow_bodies(host: str, port: int, stop: asyncio.Event) -> None:
    """Announce a body, and send one byte of it per second."""

    async def one() -> None:
        while not stop.is_set():
            _, writer = await asyncio.open_connection(host, port)
            with contextlib.suppress(OSError):
                writer.write(_head("PUT /loadbalance/v1/learned", 1_000_000))
                while not stop.is_set() and not writer.transport.is_closing():
                    writer.write(b"{")
                    await asyncio.sleep(1.0)
            writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(SLOW)))


def _bodies(request: str, size: int, chunk: bytes) -> Attack:
    async def one(host: str, port: int, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(_head(request, size))
                    for _ in range(size // len(chunk)):
                        writer.write(chunk)
                        await writer.drain()
                    await asyncio.wait_for(reader.readline(), 5.0)
                finally:
                    writer.transport.abort()

    async def attack(host: str, port: int, stop: asyncio.Event) -> None:
        await asyncio.gather(*(one(host, port, stop) for _ in range(LARGE)))

    return attack


async def pipelined(host: str, port: int, stop: asyncio.Event) -> None:
    """Send many requests, read no answer, and end with an invalid request."""
    asked = b"GET /loadbalance/v1/controls HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000

    async def one() -> None:
        while not stop.is_set():
            _, writer = await asyncio.open_connection(host, port)
            with contextlib.suppress(OSError, TimeoutError):
                for _ in range(20):
                    writer.write(asked)
                    await asyncio.wait_for(writer.drain(), 0.5)
                writer.write(b"\x00" * 10_000)
            writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(LARGE)))


async def busy(host: str, port: int, stop: asyncio.Event) -> None:
    """Use a core without connecting to the node."""
    del host, port
    while not stop.is_set():
        sum(range(100_000))
        await asyncio.sleep(0)


def _head(request: str, length: int) -> bytes:
    return (
        f"{request} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n".encode()
    )


ATTACKS: dict[str, Attack] = {
    "a busy process beside it": busy,
    f"{IDLE:,} idle connections": idle,
    f"{SLOW} slow bodies": slow_bodies,
    f"{LARGE} times 100 MB": _bodies("POST /loadbalance/v1/plans", LARGE_BYTES, b"x" * 1_000_000),
    f"{LARGE} times deep JSON": _bodies("POST /loadbalance/v1/plans", 1_000_000, b"[" * 1_000_000),
    f"{LARGE} times pipelined garbage": pipelined,
}


@contextlib.contextmanager
def strangers(name: str, url: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, __file__, name, url])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def attack(name: str, url: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES, most), most))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    parts = urlsplit(url)
    task = asyncio.ensure_future(ATTACKS[name](parts.hostname or "", parts.port or 0, stop))
    await stop.wait()
    await asyncio.wait({task}, timeout=2.0)


async def measure(folder: Path, zookeeper: EmbeddedZooKeeper) -> None:
    secret = create_secret("HS256")
    (folder / "secret.key").write_bytes(secret)
    (folder / "node.yaml").write_text(
        f"metadataStoreUrl: zk:{zookeeper.connect_string}\nwebServicePort: 0\nbindAddress: 127.0.0.1\n"
        "advertisedAddress: 127.0.0.1\nauthenticationEnabled: true\nsuperUserRoles: [root]\n"
        f"tokenSecretKey: file://{folder}/secret.key\n"
    )
    token = create_token(secret, "HS256", {"sub": "root"})
    store = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=30.0)
    await store.start()
    command = ["-m", "loadmanager", "serve", "--config", str(folder / "node.yaml"), "--ready-file"]
    with a_server(folder, "node", command) as node:
        await give_owner(store, node.url, {"Authorization": f"Bearer {token}"})
        more = f"Authorization: Bearer {token}\r\n"
        rows = []
        for name in ATTACKS:
            quiet_s = await p99_of(node, more)
            with strangers(name, node.url):
                await asyncio.sleep(_WARM_UP_S)
                disturbed_s = await p99_of(node, more)
            rows.append(Measured(f"{name}: undisturbed", quiet_s * 1e3, "ms"))
            rows.append(Measured(f"{name}: disturbed", disturbed_s * 1e3, "ms"))
        memory_mib = node.process.memory_info().rss / 2**20
        rows.append(Measured("memory of the node afterwards", memory_mib, "MiB", MOST_MEMORY_MIB))
    await store.close()
    show(f"99th percentile of lookups over {CONNECTIONS} connections, beside strangers without a token", rows)


async def p99_of(node: Server, more: str) -> float:
    _, latencies_s = await load(node.url, TOPIC_PATHS[:100], CONNECTIONS, ROUND_S, more)
    return percentile(latencies_s, 99)


def main() -> None:
    configure_logging(json_lines=False, level="warning")
    install_fast_loop()
    if len(sys.argv) > 1:
        asyncio.run(attack(sys.argv[1], sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedZooKeeper() as zookeeper:
        asyncio.run(measure(Path(folder), zookeeper))


if __name__ == "__main__":
    main()
