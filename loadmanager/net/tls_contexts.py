"""TLS contexts from certificate files, renewed when the files change.

Unusable files are refused at the start, with setting and file. Later the last good ones stay in use, with an alarm in
log and metrics, until the files change again. The check at each new connection costs three `stat` calls.
"""

from __future__ import annotations

import ssl
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog
from aiohttp import web
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from loadmanager.config.shared_settings import TlsSettings
from loadmanager.errors import ConfigurationError
from loadmanager.util.file_stamp import read_stamp
from loadmanager.util.process_metrics import counter, gauge

log = structlog.get_logger(__name__)

_TRY_AGAIN_S = 10.0
"""Interval at which unusable files are tried again without a change. The cause may have been too many open files, or a
certificate that was not yet valid."""


@dataclass(frozen=True, slots=True)
class TlsKeys:
    """Names of the files' settings or options, for error messages."""

    trust_certs: str = "tlsTrustCertsFilePath"
    certificate: str = "tlsCertificateFilePath"
    key: str = "tlsKeyFilePath"


_PULSARS = TlsKeys()
_OF_PEERS = TlsKeys("brokerClientTrustCertsFilePath", "brokerClientCertificateFilePath", "brokerClientKeyFilePath")


@dataclass(frozen=True, slots=True)
class TlsFiles(ABC):
    """Certificate files of one side of a connection, and the names of their settings."""

    trust_certs: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    keys: TlsKeys = _PULSARS

    @abstractmethod
    def context(self) -> ssl.SSLContext:
        """Build a context; raises `ConfigurationError`, which names the setting and the file."""


@dataclass(frozen=True, slots=True)
class TlsOptions(TlsFiles):
    """TLS options of a client; without `trust_certs` the system's trust store applies."""

    allow_insecure: bool = False
    """Accept any certificate."""
    hostname_verification: bool = True
    """The certificate must name the requested host."""

    def context(self) -> ssl.SSLContext:
        try:
            context = _default_context(ssl.Purpose.SERVER_AUTH, self.trust_certs)
        except OSError as error:  # includes TLS errors
            raise _bad_trust_certs(self, error) from None
        if self.allow_insecure or not self.hostname_verification:
            context.check_hostname = False
        if self.allow_insecure:
            context.verify_mode = ssl.CERT_NONE
        _present(context, self)
        return context


@dataclass(frozen=True, slots=True)
class TlsServerOptions(TlsFiles):
    """TLS options of a server. With `trust_certs` clients are asked for a certificate signed by one of these;
    `require_client` refuses clients without one. `protocols` are of `TLSv1.2`, `TLSv1.3`; empty: both. Ciphers are
    Python's, which have forward secrecy; TLS 1.3 alone excludes those of TLS 1.2.
    """

    require_client: bool = False
    protocols: tuple[str, ...] = ()

    def context(self) -> ssl.SSLContext:
        context = _default_context(ssl.Purpose.CLIENT_AUTH)
        context.options |= ssl.OP_NO_RENEGOTIATION
        if self.trust_certs is not None:
            try:
                context.load_verify_locations(self.trust_certs)
            except OSError as error:
                raise _bad_trust_certs(self, error) from None
            context.verify_mode = ssl.CERT_REQUIRED if self.require_client else ssl.CERT_OPTIONAL
        if self.protocols:
            versions = sorted(_VERSIONS[each] for each in self.protocols)
            context.minimum_version, context.maximum_version = versions[0], versions[-1]
        _present(context, self)
        return context


_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class RenewedTls:
    """A TLS context that is renewed when its files change; unusable files leave the last good one in use."""

    def __init__(self, files: TlsFiles) -> None:
        """Load the files; raises `ConfigurationError` if they are unusable."""
        self.files = files
        self.fault = ""
        """Fault of the current files; empty while they are usable."""
        self.expires_at: datetime | None = None
        """Expiry of the certificate in use; None without one."""
        self._seen = self._stamps()
        self._try_again_at_s = 0.0
        self._context = self._make()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection, renewed if the files have changed."""
        stamps, now_s = self._stamps(), time.monotonic()
        if stamps != self._seen or (self.fault and now_s >= self._try_again_at_s):
            self._seen, self._try_again_at_s = stamps, now_s + _TRY_AGAIN_S
            self._renew()
        return self._context

    def _renew(self) -> None:
        try:
            self._context = self._make()
        except ConfigurationError as error:
            if self.fault != str(error):
                log.error("tls_files_unusable", error=str(error), until_then="the last good ones stay in use")  # noqa: TRY400
            self.fault = str(error)
        else:
            self.fault = ""
            log.info("tls_files_renewed", certificate=str(self.files.certificate), expires_at=str(self.expires_at))

    def _make(self) -> ssl.SSLContext:
        context = self.files.context()
        self.expires_at = _end_of(self.files, datetime.now(UTC))
        return context

    def _stamps(self) -> object:
        return tuple(map(read_stamp, (self.files.trust_certs, self.files.certificate, self.files.key)))


class ServerTls(RenewedTls):
    """TLS side of a server, with counters of failed handshakes."""

    def __init__(self, files: TlsFiles) -> None:
        super().__init__(files)
        self.handshakes: Counter[str] = Counter(refused=0, broken_off=0)

    @classmethod
    def of(cls, settings: TlsSettings) -> ServerTls:
        """Build it from the settings; raises `ConfigurationError`."""
        return cls(
            TlsServerOptions(
                certificate=settings.tls_certificate_file_path,
                key=settings.tls_key_file_path,
                trust_certs=settings.tls_trust_certs_file_path,
                require_client=settings.tls_require_trusted_client_cert_on_connect,
                protocols=settings.tls_protocols,
            )
        )


def client_tls_of(settings: TlsSettings) -> RenewedTls | None:
    """Build the client TLS options for calls to nodes and agents; None if nothing is configured, and the system's trust
    store applies. Raises `ConfigurationError`.
    """
    options = TlsOptions(
        trust_certs=settings.broker_client_trust_certs_file_path,
        certificate=settings.broker_client_certificate_file_path,
        key=settings.broker_client_key_file_path,
        hostname_verification=settings.tls_hostname_verification_enabled,
        keys=_OF_PEERS,
    )
    return None if options == TlsOptions(keys=_OF_PEERS) else RenewedTls(options)


def principal_of(request: web.BaseRequest) -> str | None:
    """Return the common name (CN) of the caller's verified certificate; None without one."""
    certificate = request.get_extra_info("peercert") or {}
    names = (value for part in certificate.get("subject", ()) for name, value in part if name == "commonName")
    return next(names, None)


class TlsMetrics(Collector):
    """Collector of the TLS metrics of `client` and `server`, with these `labels`; `server` is None without TLS."""

    def __init__(
        self, client: RenewedTls | None, server: ServerTls | None, labels: Mapping[str, str] | None = None
    ) -> None:
        self._labels = labels or {}
        self._sides = {side: tls for side, tls in (("client", client), ("server", server)) if tls is not None}
        self._server = server

    def collect(self) -> Iterator[Metric]:
        names, own, sides = list(self._labels), list(self._labels.values()), self._sides.items()
        for tls in self._sides.values():
            tls.context()  # so that changes show without new connections
        unusable = [([*own, side], float(bool(tls.fault))) for side, tls in sides]
        text = "1 while the files as they are cannot be used, and the last good ones are."
        yield gauge("loadmanager_tls_files_unusable", text, [*names, "side"], unusable)
        expires = [([*own, side], tls.expires_at.timestamp()) for side, tls in sides if tls.expires_at is not None]
        text = "When the certificate in use ends, in seconds since 1970."
        yield gauge("loadmanager_tls_certificate_expires_seconds", text, [*names, "side"], expires)
        if self._server is not None:
            failed = [([*own, why], number) for why, number in self._server.handshakes.items()]
            text = "TLS handshakes that came to nothing."
            yield counter("loadmanager_tls_handshakes_failed", text, [*names, "why"], failed)


def _default_context(purpose: ssl.Purpose, trust_certs: Path | None = None) -> ssl.SSLContext:
    """Return Python's default context with TLS 1.2 as the minimum, which some builds of Python leave to OpenSSL."""
    context = ssl.create_default_context(purpose, cafile=trust_certs)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _present(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Load the certificate and its key, if there are any."""
    if files.certificate is None:
        if files.key is not None:
            raise ConfigurationError(f"{files.keys.key}: without a {files.keys.certificate} it is not used")
        return
    try:
        # Without a password argument, OpenSSL would prompt for one on the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except OSError as error:
        names = f"{files.keys.certificate} {files.certificate}, {files.keys.key} {files.key}"
        raise ConfigurationError(
            f"{names}: {error.strerror or error}: expected a certificate and its key in PEM form, without a password"
        ) from None


def _bad_trust_certs(files: TlsFiles, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{files.keys.trust_certs} {files.trust_certs}: {error.strerror or error}: expected certificates in PEM form"
    )


def _end_of(files: TlsFiles, now: datetime) -> datetime | None:
    """Return the expiry of the certificate, None without one; raises if it is not valid now."""
    if files.certificate is None:
        return None
    from cryptography import x509  # noqa: PLC0415 - takes 0.1 s, and most commands have no certificate

    try:
        certificate = x509.load_pem_x509_certificates(files.certificate.read_bytes())[0]
    except (OSError, ValueError) as error:  # just replaced, or readable only by OpenSSL
        raise ConfigurationError(f"{files.keys.certificate} {files.certificate}: {error}") from None
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begins <= now <= ends:
        raise ConfigurationError(
            f"{files.keys.certificate} {files.certificate}: holds from {begins:%Y-%m-%d %H:%M} to"
            f" {ends:%Y-%m-%d %H:%M} UTC: expected one that holds now"
        )
    return ends
