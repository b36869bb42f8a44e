"""Options of commands that call nodes or brokers: token and TLS, named as in pulsar-admin where it has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, fail
from loadmanager.errors import ConfigurationError

if TYPE_CHECKING:
    from loadmanager.net.tls_contexts import RenewedTls
from loadmanager.net.auth.outgoing_token import Token, TokenAlone, TokenFile

_TRUST_CERTS_VARIABLE = "LOADMANAGER_TLS_TRUST_CERT_PATH"
_CERTIFICATE_VARIABLE = "LOADMANAGER_TLS_CERTIFICATE_PATH"
_KEY_VARIABLE = "LOADMANAGER_TLS_KEY_PATH"

TrustCerts = Annotated[
    Path | None,
    typer.Option(
        "--tls-trust-cert-path",
        envvar=_TRUST_CERTS_VARIABLE,
        help="CA certificates of https servers (PEM); default: those of the system.",
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--tls-certificate-path",
        envvar=_CERTIFICATE_VARIABLE,
        help="Client certificate (PEM).",
    ),
]
Key = Annotated[
    Path | None,
    typer.Option("--tls-key-path", envvar=_KEY_VARIABLE, help="Key of the client certificate (PEM)."),
]


def given_tls(trust_certs: Path | None, certificate: Path | None, key: Path | None) -> RenewedTls | None:
    """Load the client TLS of these options; None without any. The process ends for an unusable file."""
    if not (trust_certs or certificate or key):
        return None
    # Slow to import, and most commands do not need it.
    from loadmanager.net.tls_contexts import RenewedTls, TlsKeys, TlsOptions  # noqa: PLC0415

    keys = TlsKeys("--tls-trust-cert-path", "--tls-certificate-path", "--tls-key-path")
    try:
        return RenewedTls(TlsOptions(trust_certs, certificate, key, keys=keys))
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)


TOKEN_VARIABLE = "LOADMANAGER_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "LOADMANAGER_TOKEN_FILE"  # noqa: S105 - the name of a variable

GivenToken = Annotated[
    str,
    typer.Option(
        "--token",
        envvar=TOKEN_VARIABLE,
        show_envvar=True,
        help="Token to authenticate with. Other users can see command lines: prefer the variable, or a file.",
    ),
]
GivenTokenFile = Annotated[
    Path | None, typer.Option("--token-file", envvar=TOKEN_FILE_VARIABLE, help="File with the token.")
]


def given_token(token: str, token_file: Path | None) -> Token | None:
    """Return the token of these options. The process ends for an unusable one."""
    try:
        if token:
            return TokenAlone(token.removeprefix("token:"), f"--token, {TOKEN_VARIABLE}")
        return None if token_file is None else TokenFile(token_file)
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)


def words_to_repeat(
    token_file: Path | None, trust_certs: Path | None, certificate: Path | None, key: Path | None
) -> list[str]:
    """Return these options as words of a command, without those that the environment also sets."""
    given = {
        ("--token-file", TOKEN_FILE_VARIABLE): token_file,
        ("--tls-trust-cert-path", _TRUST_CERTS_VARIABLE): trust_certs,
        ("--tls-certificate-path", _CERTIFICATE_VARIABLE): certificate,
        ("--tls-key-path", _KEY_VARIABLE): key,
    }
    shown = [
        (option, str(path)) for (option, name), path in given.items() if path and str(path) != os.environ.get(name)
    ]
    return [word for each in shown for word in each]
