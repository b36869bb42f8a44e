"""The options of commands that ask nodes or brokers by TLS, by the names of pulsar-admin's where it has one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, fail
from loadmanager.errors import ConfigurationError

if TYPE_CHECKING:
    from loadmanager.net.tls_contexts import RenewedTls

TrustCerts = Annotated[
    Path | None,
    typer.Option(
        "--tls-trust-cert-path",
        envvar="LOADMANAGER_TLS_TRUST_CERT_PATH",
        help="Who signs the certificates of those who are asked by https (PEM); else whom the system trusts.",
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--tls-certificate-path",
        envvar="LOADMANAGER_TLS_CERTIFICATE_PATH",
        help="The certificate to show to those who want one (PEM).",
    ),
]
Key = Annotated[
    Path | None,
    typer.Option("--tls-key-path", envvar="LOADMANAGER_TLS_KEY_PATH", help="The key of that certificate (PEM)."),
]


def given_tls(trust_certs: Path | None, certificate: Path | None, key: Path | None) -> RenewedTls | None:
    """Load the client TLS of these options, None without any. The process ends when a file cannot be used."""
    if not (trust_certs or certificate or key):
        return None
    # It takes its time to load, and most who ask need none.
    from loadmanager.net.tls_contexts import RenewedTls, TlsKeys, TlsOptions  # noqa: PLC0415

    keys = TlsKeys("--tls-trust-cert-path", "--tls-certificate-path", "--tls-key-path")
    try:
        return RenewedTls(TlsOptions(trust_certs, certificate, key, keys=keys))
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
