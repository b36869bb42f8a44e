from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from support.certificates import Authority
from support.events import Events
from support.registrations import a_record
from support.servers import LIMITS, end_app, listen
from support.waiting import eventually

from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, Registration, Stamp, assign
from loadmanager.http.metrics_text import WatchMetrics
from loadmanager.http.watch_hub import WatchHandlers
from loadmanager.http.watch_sheet import Sheet
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry
from loadmanager.net.auth.gate import AuthGate
from loadmanager.net.http_server import listen_on, serve_within
from loadmanager.net.tls_contexts import RenewedTls, ServerTls, TlsOptions, TlsServerOptions

BROKER = Registration(BrokerId("b1:8080"), 7)
MOST_WAITING = 2 * 16_384
STAMP = Stamp(1, 0, "test")


@dataclass
class Watched:
    """A view of two namespaces, and a server of nothing but watching."""

    mirror: ClusterMirror
    handlers: WatchHandlers
    metrics: WatchMetrics
    url: str
    tls: SSLContext | None
    runner: web.AppRunner

    def assign(self, name: str) -> None:
        """Give the next bundle that nobody owns to the broker."""
        before = self.mirror.namespaces[name]
        state, index = before.state, before.version
        changed = state.with_ownerships({index: assign(state.ownerships[index], BROKER, STAMP)})
        self.mirror.put_namespace(NamespaceEntry(changed, before.version + 1, czxid=1, digest=0))

    @property
    def waiting(self) -> int:
        """The most bytes that wait for anybody."""
        connections = self.runner.server.connections if self.runner.server else []
        return max(each.transport.get_write_buffer_size() for each in connections if each.transport)

    @asynccontextmanager
    async def watching(self, name: str) -> AsyncIterator[Events]:
        url = f"{self.url}/loadbalance/v1/watch?namespace={name}"
        async with aiohttp.ClientSession() as http, http.get(url, ssl=self.tls or True) as answer:
            assert answer.status == 200
            yield Events(answer)


@pytest.fixture(params=["plain", "tls"])
async def watched(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Watched]:
    authority, settings, mirror = Authority(tmp_path), Settings(history_url=""), ClusterMirror(is_fresh=True)
    mirror.put_broker(BROKER, 0, a_record(BROKER.broker))
    for name, bundles in (("t/small", 64), ("t/large", 8_192)):
        state = NamespaceState.unowned(NamespaceName.parse(name), NamespaceBundles(equal_boundaries(bundles)))
        mirror.put_namespace(NamespaceEntry(state, 0, czxid=1, digest=0))
    metrics = WatchMetrics(CollectorRegistry(), "test")
    handlers = WatchHandlers("n1", mirror, AuthGate(settings), metrics)
    [operation] = handlers.operations()
    app, listener, by_tls = web.Application(), listen(), request.param == "tls"
    app.router.add_get(operation.path, operation.handler)
    runner = await serve_within(app, LIMITS, 0.01)
    signed = authority.sign("node")
    await listen_on(
        runner,
        listener,
        ServerTls(TlsServerOptions(None, signed.certificate, signed.key)) if by_tls else None,
    )
    tls = RenewedTls(TlsOptions(trust_certs=authority.certificate)).context() if by_tls else None
    url = f"http{'s' if by_tls else ''}://127.0.0.1:{listener.getsockname()[1]}"
    yield Watched(mirror, handlers, metrics, url, tls, runner)
    handlers.close()
    await end_app(runner)


@asynccontextmanager
async def a_silent_reader(watched: Watched) -> AsyncIterator[None]:
    """One who watches `t/large`, and takes not even the whole of its snapshot."""
    host, _, port = watched.url.rpartition("//")[2].partition(":")
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        silent.settimeout(0)
        await asyncio.get_running_loop().sock_connect(silent, (host, int(port)))
        name = host if watched.tls else None
        _, writer = await asyncio.open_connection(sock=silent, ssl=watched.tls, server_hostname=name, limit=4_096)
        if watched.tls:  # or else it takes a quarter of a megabyte before it pauses
            writer.transport.set_read_buffer_limits(4_096)  # type: ignore[attr-defined]  # a transport of TLS
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport that reads
        writer.write(b"GET /loadbalance/v1/watch?namespace=t/large HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: watched.metrics.events == 1)
        yield
        writer.transport.abort()


async def test_large_snapshot_is_complete_and_followed_by_changes(watched: Watched) -> None:
    async with watched.watching("t/large") as events, watched.watching("t/small") as others:
        await others.next("snapshot")
        for _ in range(10):
            watched.assign("t/large")
            watched.assign("t/small")
            await others.next("change")
        known = (await events.data("snapshot"))["bundles"]
        assert len(known) == 8_192
        while sum(each["state"] == "Owned" for each in known.values()) < 10:
            known |= (await events.data("change"))["bundles"]
        watched.assign("t/large")
        assert len((await events.data("change"))["bundles"]) == 1


async def test_slow_watcher_has_a_small_buffer_and_delays_nobody(watched: Watched) -> None:
    async with a_silent_reader(watched), watched.watching("t/large") as events:
        await events.next("snapshot")
        for _ in range(15):
            watched.assign("t/large")
            await events.next("change")
        assert watched.metrics.watchers == 2
        assert watched.waiting <= MOST_WAITING


async def test_no_encoding_for_a_blocked_watcher(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, since = list[int | None](), Sheet.since

    def noted(sheet: Sheet, place: int | None) -> bytes:
        encoded.append(place)
        return since(sheet, place)

    async with a_silent_reader(watched), watched.watching("t/large") as events:
        await events.next("snapshot")
        monkeypatch.setattr(Sheet, "since", noted)
        for _ in range(5):
            watched.assign("t/large")
            await events.next("change")
    assert len(encoded) == 5


async def test_watcher_at_a_stopping_node_is_503(watched: Watched) -> None:
    watched.handlers.close()
    url = f"{watched.url}/loadbalance/v1/watch?namespace=t/small"
    async with aiohttp.ClientSession() as http, http.get(url, ssl=watched.tls or True) as answer:
        assert answer.status == 503
        assert await answer.json() == {"reason": "this node is stopping: ask another node"}


async def test_failing_namespace_blocks_no_other(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Sheet.look

    def fail(sheet: Sheet, *what: object) -> bool:
        if sheet.name == "t/large":
            raise ZeroDivisionError
        return look(sheet, *what)  # type: ignore[arg-type]

    async with watched.watching("t/large") as large, watched.watching("t/small") as small:
        await large.next("snapshot")
        await small.next("snapshot")
        with monkeypatch.context() as failing, capture_logs() as logs:
            failing.setattr(Sheet, "look", fail)
            watched.assign("t/large")
            watched.assign("t/small")
            await small.next("change")
        assert [(each["event"], each["namespace"]) for each in logs] == [("watch_failed", "t/large")]
        watched.assign("t/large")
        assert len((await large.data("change"))["bundles"]) == 2
