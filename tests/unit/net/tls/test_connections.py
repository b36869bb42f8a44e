"""Servers and clients by TLS, over real sockets: who is believed, and that nobody holds up the others."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs
from support.certificates import ELSEWHERE, Authority, Signed
from support.servers import LIMITS, end_app, listen
from support.waiting import eventually, patience

from loadmanager.net import tls_listener
from loadmanager.net.http_client import Caller, HttpClient, PeerNotReachedError, PeerUnavailableError
from loadmanager.net.http_server import ServerLimits, listen_on, serve_within
from loadmanager.net.liveness import is_refused
from loadmanager.net.tls_contexts import RenewedTls, ServerTls, TlsOptions, TlsServerOptions, principal_of

SHORT_S = 0.2


@dataclass
class Served:
    """An application by TLS, which says whom the caller's certificate names."""

    tls: ServerTls
    port: int
    asked: int = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/who"

    async def ask(self, **options: object) -> str:
        """Ask with these `TlsOptions` on a connection of its own."""
        async with HttpClient(caller=Caller(tls=RenewedTls(TlsOptions(**options)))) as http:  # type: ignore[arg-type]
            return (await http.call("GET", self.url, patience())).body.decode()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect by TCP alone."""
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def serving(
    own: Signed,
    limits: ServerLimits = LIMITS,
    trust: Path | None = None,
    *,
    required: bool = False,
    listener: socket.socket | None = None,
) -> AsyncIterator[Served]:
    tls = ServerTls(TlsServerOptions(trust, own.certificate, own.key, require_client=required))
    app, listener = web.Application(), listener or listen()
    served = Served(tls, listener.getsockname()[1])

    async def who(request: web.Request) -> web.Response:
        served.asked += 1
        return web.Response(text=principal_of(request) or "nobody")

    app.router.add_get("/who", who)
    runner = await serve_within(app, limits, 0.01)
    await listen_on(runner, listener, tls)
    try:
        yield served
    finally:
        await end_app(runner)


async def closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the server has closed the connection without a word of HTTP."""
    try:
        return not (await reader.read()).startswith(b"HTTP")
    except ConnectionError:
        return True


async def test_clients_that_trust_the_authority_are_served_others_send_nothing(authority: Authority) -> None:
    other = Authority(authority.folder, "other")
    async with serving(authority.sign("node")) as served:
        assert await served.ask(trust_certs=authority.certificate) == "nobody"
        for trust in (other.certificate, None):
            with pytest.raises(PeerNotReachedError, match="certificate verify failed"):
                await served.ask(trust_certs=trust)
        assert served.asked == 1


async def test_certificate_of_another_host_is_accepted_only_when_configured(authority: Authority) -> None:
    async with serving(authority.sign("node", ELSEWHERE)) as served:
        with pytest.raises(PeerNotReachedError, match="IP address mismatch"):
            await served.ask(trust_certs=authority.certificate)
        assert await served.ask(trust_certs=authority.certificate, hostname_verification=False) == "nobody"


async def test_expired_certificate_is_refused(authority: Authority) -> None:
    ended = authority.sign("node", days=(-3, -1))
    async with serving(authority.sign("another")) as served:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(ended.certificate, ended.key)
        served.tls._context = context
        with pytest.raises(PeerNotReachedError, match="certificate has expired"):
            await served.ask(trust_certs=authority.certificate)


async def test_required_client_certificate(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "_SAID_EVERY_S", 3_600.0)
    clients = Authority(authority.folder, "clients")
    own, foreign = clients.sign("agent-1"), authority.sign("stranger")
    trusted = {"trust_certs": authority.certificate}
    async with serving(authority.sign("node"), trust=clients.certificate, required=True) as served:
        assert await served.ask(**trusted, certificate=own.certificate, key=own.key) == "agent-1"
        with capture_logs() as logs:
            for shown in ({}, {"certificate": foreign.certificate, "key": foreign.key}):
                with pytest.raises(PeerUnavailableError):
                    await served.ask(**trusted, **shown)
            await eventually(lambda: served.tls.handshakes["refused"] >= 2)
        assert [each["event"] for each in logs] == ["tls_handshake_refused"], "once in a while"
        assert served.asked == 1


async def test_optional_client_certificate_must_be_trusted(authority: Authority) -> None:
    clients = Authority(authority.folder, "clients")
    own, foreign = clients.sign("agent-1"), authority.sign("stranger")
    trusted = {"trust_certs": authority.certificate}
    async with serving(authority.sign("node"), trust=clients.certificate) as served:
        assert await served.ask(**trusted) == "nobody"
        assert await served.ask(**trusted, certificate=own.certificate, key=own.key) == "agent-1"
        with pytest.raises(PeerUnavailableError):
            await served.ask(**trusted, certificate=foreign.certificate, key=foreign.key)


async def test_renewed_certificate_is_used_for_new_connections_only(authority: Authority) -> None:
    own, next_authority = authority.sign("node"), Authority(authority.folder, "next")
    trust = authority.folder / "trusted.pem"
    trust.write_bytes(authority.certificate.read_bytes())
    async with serving(own) as served, HttpClient(caller=Caller(tls=RenewedTls(TlsOptions(trust)))) as http:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", served.port, ssl=TlsOptions(authority.certificate).context()
        )
        assert (await http.call("GET", served.url, patience())).status == 200
        next_authority.sign("node").put_in_place_of(own)
        writer.write(b"GET /who HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        with pytest.raises(PeerNotReachedError):
            await served.ask(trust_certs=authority.certificate)
        assert await served.ask(trust_certs=next_authority.certificate) == "nobody"
        trust.write_bytes(next_authority.certificate.read_bytes())
        assert (await http.call("GET", served.url, patience())).status == 200, "a client reads its files again, too"


async def test_client_certificate_of_a_removed_authority_is_refused(authority: Authority) -> None:
    clients = Authority(authority.folder, "clients")
    own, trust = clients.sign("agent-1"), authority.folder / "trusted.pem"
    trust.write_bytes(clients.certificate.read_bytes())
    shown = {"trust_certs": authority.certificate, "certificate": own.certificate, "key": own.key}
    async with serving(authority.sign("node"), trust=trust) as served:
        assert await served.ask(**shown) == "agent-1"
        trust.write_bytes(Authority(authority.folder, "next").certificate.read_bytes())
        with pytest.raises(PeerUnavailableError):
            await served.ask(**shown)


async def test_unfinished_handshake_times_out(authority: Authority) -> None:
    async with serving(authority.sign("node"), replace(LIMITS, head_s=SHORT_S)) as served:
        mute, half = await served.connect(), await served.connect()
        half[1].write(b"\x16\x03\x01\x02\x00\x01")
        for reader, writer in (mute, half):
            assert await closed(reader)
            writer.close()
        await eventually(lambda: served.tls.handshakes["broken_off"] == 2)


async def test_hundred_unfinished_handshakes_do_not_block_the_server(authority: Authority) -> None:
    async with serving(authority.sign("node"), replace(LIMITS, connections=10)) as served:
        begun = [await served.connect() for _ in range(100)]
        assert await served.ask(trust_certs=authority.certificate) == "nobody"
        assert await closed(begun[0][0]), "the oldest made room"
        for _, writer in begun:
            writer.close()


def made_for_tls() -> list[Any]:
    """TLS objects of the event loop that are not freed."""
    return [each for each in gc.get_objects() if type(each).__name__ == "SSLProtocol"]


@pytest.mark.parametrize("room", [5, 100], ids=["made room", "ended by themselves"])
async def test_handshake_objects_are_small_and_freed(authority: Authority, room: int) -> None:
    async with serving(authority.sign("node"), replace(LIMITS, connections=room)) as served:
        gc.collect()
        gc.disable()
        try:
            before = len(made_for_tls())
            begun = [await served.connect() for _ in range(20)]
            await eventually(lambda: len(made_for_tls()) >= before + min(room, 20))
            assert all(len(getattr(each, "_ssl_buffer", b"")) <= 32 * 1024 for each in made_for_tls())
            for _, writer in begun:
                writer.close()
            await eventually(lambda: len(made_for_tls()) == before)
        finally:
            gc.enable()


async def test_missing_file_is_retried(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    class Listener(socket.socket):
        lacks = 1

        def accept(self) -> tuple[socket.socket, Any]:
            if self.lacks:
                self.lacks -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    monkeypatch.setattr(tls_listener, "_TRY_AGAIN_S", 0.01)
    plain = listen()
    listener = Listener(fileno=plain.detach())
    with capture_logs() as logs:
        async with serving(authority.sign("node"), listener=listener) as served:
            assert await served.ask(trust_certs=authority.certificate) == "nobody"
    assert [(each["event"], each["error"]) for each in logs] == [
        ("not_accepting", f"[Errno {errno.EMFILE}] Too many open files")
    ]


async def test_connection_counts_once_before_and_after_its_handshake(authority: Authority) -> None:
    async with serving(authority.sign("node"), replace(LIMITS, connections=1)) as served:
        context = TlsOptions(authority.certificate).context()
        with capture_logs() as logs:
            _, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
            writer.close()
        assert logs == []


async def test_port_probe_is_no_failure_and_plain_http_is_refused(authority: Authority) -> None:
    async with serving(authority.sign("node")) as served:
        with capture_logs() as logs:
            _, writer = await served.connect()
            writer.close()
            assert not await is_refused(served.url)
            await eventually(lambda: served.tls.handshakes["broken_off"] == 2)
            assert logs == []
            reader, writer = await served.connect()
            writer.write(b"GET /who HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await closed(reader)
            writer.close()
            await eventually(lambda: served.tls.handshakes["refused"] == 1)


async def test_stopping_server_aborts_handshakes(authority: Authority) -> None:
    async with serving(authority.sign("node")) as served:
        reader, writer = await served.connect()
        await asyncio.sleep(0)
    assert await closed(reader)
    writer.close()
