"""Pulsar behind TLS, with the keys of a Pulsar client: real certificates, made for the test."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from support.certificates import ELSEWHERE, Authority, Signed
from support.servers import listen
from support.waiting import patience

from loadmanager.net.tls_contexts import TlsOptions
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError


@dataclass(frozen=True)
class Certificates:
    authority: Path
    broker: Signed
    elsewhere: Signed
    """For another host than the broker's."""
    clients: Path
    client: Signed


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("tls")
    brokers, clients = Authority(folder, "brokers"), Authority(folder, "clients")
    return Certificates(
        brokers.certificate,
        brokers.sign("broker"),
        brokers.sign("elsewhere", ELSEWHERE),
        clients.certificate,
        clients.sign("client"),
    )


@dataclass
class TlsBroker:
    """Says who is registered; with `location` it sends there."""

    url: str = ""
    location: str = ""
    _runners: list[web.AppRunner] = field(default_factory=list)

    async def serve(self, own: Signed, clients: Path | None = None) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(own.certificate, own.key)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients)
        app = web.Application()
        app.add_routes([web.get("/{path:.*}", self._answer)])
        self._runners.append(web.AppRunner(app, access_log=None, shutdown_timeout=0.01))
        await self._runners[-1].setup()
        listener = listen()
        self.url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        await web.SockSite(self._runners[-1], listener, ssl_context=context).start()

    async def _answer(self, request: web.Request) -> web.Response:
        if self.location:
            return web.Response(status=307, headers={"Location": self.location + request.path})
        return web.json_response(["b1:8443"])

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@pytest.fixture
async def broker() -> AsyncIterator[TlsBroker]:
    broker = TlsBroker()
    yield broker
    await broker.close()


async def ask(broker: TlsBroker, tls: TlsOptions) -> list[str]:
    async with PulsarAdmin([broker.url], tls=tls, timeout_s=patience()) as admin:
        return [str(each) for each in await admin.brokers()]


async def test_broker_needs_a_trusted_certificate(broker: TlsBroker, certificates: Certificates) -> None:
    await broker.serve(certificates.broker)
    assert await ask(broker, TlsOptions(trust_certs=certificates.authority)) == ["b1:8443"]
    with pytest.raises(PulsarUnreachableError, match=r"certificate verify failed.*tlsTrustCertsFilePath"):
        await ask(broker, TlsOptions())
    assert await ask(broker, TlsOptions(allow_insecure=True)) == ["b1:8443"]


async def test_certificate_must_name_the_host_unless_disabled(broker: TlsBroker, certificates: Certificates) -> None:
    await broker.serve(certificates.elsewhere)
    trusted = certificates.authority
    with pytest.raises(PulsarUnreachableError, match="IP address mismatch"):
        await ask(broker, TlsOptions(trust_certs=trusted))
    assert await ask(broker, TlsOptions(trust_certs=trusted, hostname_verification=False)) == ["b1:8443"]
    with pytest.raises(PulsarUnreachableError, match="certificate verify failed"):
        await ask(broker, TlsOptions(trust_certs=certificates.clients, hostname_verification=False))


async def test_client_certificate_is_sent_on_request(broker: TlsBroker, certificates: Certificates) -> None:
    own = certificates.client
    await broker.serve(certificates.broker, certificates.clients)
    trusted = certificates.authority
    assert await ask(broker, TlsOptions(trusted, own.certificate, own.key)) == ["b1:8443"]
    with pytest.raises(PulsarUnreachableError):
        await ask(broker, TlsOptions(trusted))


async def test_redirect_from_https_to_http_is_refused(broker: TlsBroker, certificates: Certificates) -> None:
    await broker.serve(certificates.broker)
    broker.location = broker.url.replace("https", "http")
    with pytest.raises(PulsarRefusedError, match="http after https"):
        await ask(broker, TlsOptions(trust_certs=certificates.authority))
