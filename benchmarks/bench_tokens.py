"""Cost of a token check for a lookup: a node that requires tokens compared with one that does not.

Both belong to one cluster and get the same lookups in turn. A request with a token also has a longer head. To separate
that cost, the node without the check gets such requests too. The result is the CPU time per request.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

from bench_lookup import CONNECTIONS, ROUNDS, TOPIC_PATHS, Server, a_server, give_owner
from http_load import fetch
from measure import Measured, show

from loadmanager.cli.service_runner import install_fast_loop
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.net.auth.token_keys import create_secret, create_token
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.util.logging import configure_logging

MOST_MORE_PERCENT = 5.0


async def compare(folder: Path, zookeeper: EmbeddedZooKeeper) -> None:
    secret = create_secret("HS256")
    (folder / "secret.key").write_bytes(secret)
    common = (
        f"metadataStoreUrl: zk:{zookeeper.connect_string}\nwebServicePort: 0\n"
        "bindAddress: 127.0.0.1\nadvertisedAddress: 127.0.0.1\n"
    )
    (folder / "open.yaml").write_text(common)
    (folder / "closed.yaml").write_text(
        f"{common}authenticationEnabled: true\ntokenSecretKey: file://{folder}/secret.key\n"
    )
    store = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=30.0)
    await store.start()
    commands = [
        ["-m", "loadmanager", "serve", "--config", str(folder / f"{name}.yaml"), "--ready-file"]
        for name in ("open", "closed")
    ]
    with a_server(folder, "open", commands[0]) as open_to_all:
        body = await give_owner(store, open_to_all.url)
        with a_server(folder, "closed", commands[1]) as closed:
            more = f"Authorization: Bearer {create_token(secret, 'HS256', {'sub': 'client'})}\r\n"
            same, _ = await fetch(closed.url, TOPIC_PATHS[0], more)
            assert same == body
            longer = Server(open_to_all.url, open_to_all.process, more)
            await in_turn(open_to_all, longer, Server(closed.url, closed.process, more))
    await store.close()


async def in_turn(open_to_all: Server, longer: Server, closed: Server) -> None:
    for number in range(ROUNDS + 1):
        for server in (open_to_all, longer, closed):
            await server.measure(TOPIC_PATHS)
            if not number:
                server.forget()
    show(
        f"Lookups with a token: {CONNECTIONS} connections, {len(TOPIC_PATHS):,} topics, {ROUNDS} rounds in turn",
        [
            Measured("open node, processor time per request", statistics.median(open_to_all.cpu_s) * 1e6, "us"),
            Measured("closed node, processor time per request", statistics.median(closed.cpu_s) * 1e6, "us"),
            Measured("more processor time, median", more_percent(open_to_all, closed), "%", MOST_MORE_PERCENT),
            Measured("of that, reading the longer head", more_percent(open_to_all, longer), "%"),
            Measured("open node, median", statistics.median(open_to_all.requests_per_s), "requests/s"),
            Measured("closed node, median", statistics.median(closed.requests_per_s), "requests/s"),
        ],
    )


def more_percent(one: Server, other: Server) -> float:
    """Return the additional cost of the other server in per cent, the median of the rounds."""
    return (statistics.median(b / a for a, b in zip(one.cpu_s, other.cpu_s, strict=True)) - 1) * 100


def main() -> None:
    configure_logging(json_lines=False, level="warning")
    install_fast_loop()
    with tempfile.TemporaryDirectory() as folder, EmbeddedZooKeeper() as zookeeper:
        asyncio.run(compare(Path(folder), zookeeper))


if __name__ == "__main__":
    main()
