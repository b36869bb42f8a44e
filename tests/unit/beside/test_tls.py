"""Pulsar behind TLS, with the keys of a Pulsar client: real certificates, made by `openssl` for the test."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from support.servers import listen

from loadmanager.beside.admin import PulsarAdmin
from loadmanager.beside.credentials import TlsOptions
from loadmanager.beside.refusals import PulsarRefusedError, PulsarUnreachableError

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Signed:
    """A certificate, signed by itself, and its key."""

    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path, name: str, host: str) -> Signed:
        made = cls(folder / f"{name}.pem", folder / f"{name}.key")
        said = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{host}", "-days", "2")
        to = ("-keyout", made.key, "-out", made.certificate)
        subprocess.run(["openssl", "req", "-x509", *EC, *said, *to], check=True, capture_output=True)
        return made


@dataclass(frozen=True)
class Certificates:
    broker: Signed
    elsewhere: Signed
    """For another host than the broker's."""
    client: Signed


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("tls")
    return Certificates(
        Signed.make(folder, "broker", "127.0.0.1"),
        Signed.make(folder, "elsewhere", "192.0.2.1"),
        Signed.make(folder, "client", "127.0.0.1"),
    )


@dataclass
class Broker:
    """Says who is registered; with `location` it sends there."""

    url: str = ""
    location: str = ""
    _runners: list[web.AppRunner] = field(default_factory=list)

    async def serve(self, own: Signed, client: Signed | None = None) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(own.certificate, own.key)
        if client is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(client.certificate)
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
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    yield broker
    await broker.close()


async def ask(broker: Broker, tls: TlsOptions) -> list[str]:
    async with PulsarAdmin([broker.url], tls=tls, timeout_s=30.0) as admin:
        return [str(each) for each in await admin.brokers()]


async def test_a_broker_is_believed_whose_certificate_is_trusted(broker: Broker, certificates: Certificates) -> None:
    await broker.serve(certificates.broker)
    assert await ask(broker, TlsOptions(trust_certs=certificates.broker.certificate)) == ["b1:8443"]
    with pytest.raises(PulsarUnreachableError, match=r"certificate verify failed.*tlsTrustCertsFilePath"):
        await ask(broker, TlsOptions())
    assert await ask(broker, TlsOptions(allow_insecure=True)) == ["b1:8443"]


async def test_a_certificate_names_the_host_unless_that_is_not_asked_for(
    broker: Broker, certificates: Certificates
) -> None:
    await broker.serve(certificates.elsewhere)
    trusted = certificates.elsewhere.certificate
    with pytest.raises(PulsarUnreachableError, match="IP address mismatch"):
        await ask(broker, TlsOptions(trust_certs=trusted))
    assert await ask(broker, TlsOptions(trust_certs=trusted, hostname_verification=False)) == ["b1:8443"]
    with pytest.raises(PulsarUnreachableError, match="certificate verify failed"):
        await ask(broker, TlsOptions(trust_certs=certificates.broker.certificate, hostname_verification=False))


async def test_a_broker_that_asks_who_we_are_is_shown_our_certificate(
    broker: Broker, certificates: Certificates
) -> None:
    own = certificates.client
    await broker.serve(certificates.broker, own)
    trusted = certificates.broker.certificate
    assert await ask(broker, TlsOptions(trusted, own.certificate, own.key)) == ["b1:8443"]
    with pytest.raises(PulsarUnreachableError):
        await ask(broker, TlsOptions(trusted))


async def test_nobody_is_followed_from_https_to_http(broker: Broker, certificates: Certificates) -> None:
    await broker.serve(certificates.broker)
    broker.location = broker.url.replace("https", "http")
    with pytest.raises(PulsarRefusedError, match="http after https"):
        await ask(broker, TlsOptions(trust_certs=certificates.broker.certificate))
