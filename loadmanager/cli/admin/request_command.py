"""Base of the admin commands: a function turns arguments into one request, or into a `Procedure` of several."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import orjson
import typer

from loadmanager.cli.admin.answer_text import FormatLines, show, show_lines
from loadmanager.cli.admin.node_requests import (
    ASKING_ERRORS,
    DEFAULT_URL,
    URL_VARIABLE,
    AdminRequest,
    Service,
    end,
)
from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_INTERRUPTED, fail
from loadmanager.cli.text.text_tables import write_nowhere
from loadmanager.core.domain.names import BundleName, BundleRange, InvalidNameError, NamespaceName, TopicName
from loadmanager.errors import ConfigurationError
from loadmanager.net.auth.outgoing_token import Token, TokenAlone, TokenFile

if TYPE_CHECKING:
    from loadmanager.net.tls_contexts import RenewedTls


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


Procedure = Callable[[Service], None]
"""A command that sends more than one request."""

Made = TypeVar("Made", bound=AdminRequest | Procedure)

_EXPECTED = "expected http://host:port, or http://host:port/path behind a proxy"

_Urls = Annotated[
    str,
    typer.Option(
        "--url", envvar=URL_VARIABLE, help="URLs of nodes, separated by commas; the first reachable one is used."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
_Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the answer.")]


def group(help_text: str) -> typer.Typer:
    return typer.Typer(help=help_text, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def command(
    app: typer.Typer, name: str, *, lines: FormatLines | None = None, default_url: str = DEFAULT_URL
) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Register a function that returns a request as the command `name`, with the options of every command.

    `lines` formats the answer for people. A command of several requests returns a `Procedure`.
    """
    show_it = show if lines is None else partial(show_lines, format_lines=lines)

    def register(make: Callable[..., Made]) -> Callable[..., Made]:
        @wraps(make)
        def run(
            *,
            url: str,
            token: str,
            token_file: Path | None,
            as_json: bool,
            timeout: float,
            tls_trust_certs: Path | None,
            tls_certificate: Path | None,
            tls_key: Path | None,
            **given: Any,  # noqa: ANN401 - its arguments
        ) -> None:
            tls = given_tls(tls_trust_certs, tls_certificate, tls_key)
            options = words_to_repeat(token_file, tls_trust_certs, tls_certificate, tls_key)
            service = Service(_urls(url), timeout, as_json, given_token(token, token_file), tls, options)
            try:
                _run(make(**given), service, show_it)
                sys.stdout.flush()
            except BrokenPipeError:
                write_nowhere()
            except KeyboardInterrupt:
                raise SystemExit(EXIT_INTERRUPTED) from None
            except ASKING_ERRORS as error:
                end(error)

        own = inspect.signature(make, eval_str=True)
        shared = inspect.signature(_shared_options, eval_str=True).parameters
        of_all = [each.replace(default=default_url) if each.name == "url" else each for each in shared.values()]
        parameters = [*own.parameters.values(), *of_all]
        run.__signature__ = own.replace(  # type: ignore[attr-defined]  # what Typer reads
            parameters=[each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters],
            return_annotation=None,
        )
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name)(run)
        return make

    return register


def _run(made: AdminRequest | Procedure, service: Service, show_it: Callable[[object], None]) -> None:
    if not isinstance(made, AdminRequest):
        made(service)
        return
    request = made.for_programs if service.as_json and made.for_programs is not None else made
    _execute(request, service, show_json if service.as_json else show_it)


def _shared_options(
    *,
    url: _Urls = DEFAULT_URL,
    token: GivenToken = "",
    token_file: GivenTokenFile = None,
    as_json: _Json = False,
    timeout: _Timeout = 90.0,
    tls_trust_certs: TrustCerts = None,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
) -> None:
    """The options of every command."""


def _urls(text: str) -> list[str]:
    urls = [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
    for url in urls:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or parts.query or parts.fragment:
            raise typer.BadParameter(f"{url!r}: {_EXPECTED}", param_hint=f"--url or {URL_VARIABLE}")
    if not urls:
        raise typer.BadParameter(_EXPECTED, param_hint=f"--url or {URL_VARIABLE}")
    return urls


def _execute(request: AdminRequest, service: Service, show_it: Callable[[object], None]) -> None:
    """Send a request and print the answer."""
    answer = service.ask(request)
    if answer.body:
        show_it(service.complete(answer.content))
    if not service.as_json and request.follow_up is not None and (words := request.follow_up(answer.content)):
        print(f"\nTo execute it: {service.command(words)}")
    if request.then is not None:
        _execute(request.then(answer.content), service, show_it)


def show_json(content: object) -> None:
    """Print an answer as indented JSON."""
    print(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode())


T = TypeVar("T")

MATCHES = "/loadbalance/v1/matches"
"""Route that returns the current matches of patterns and names."""

Force = Annotated[bool, typer.Option("--force", help="Also unload bundles that no broker may own afterwards.")]


def _name_parser(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser of names for Typer. An invalid name is a usage error."""

    def parser(text: str) -> T:
        try:
            return parse(text)
        except InvalidNameError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


def _topic(text: str) -> TopicName:
    """Parse a topic with Pulsar's defaults: domain `persistent`, and `public/default` for a bare name."""
    domain, separator, name = text.rpartition("://")
    full = name if "/" in name else f"public/default/{name}"
    return TopicName.parse(f"{domain if separator else 'persistent'}://{full}")


def words(text: str) -> list[str]:
    """Split a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def pairs(text: str) -> dict[str, str]:
    """Parse comma-separated `key=value` pairs."""
    found = {}
    for word in words(text):
        key, separator, value = word.partition("=")
        if not separator:
            raise typer.BadParameter(f"{word!r}: expected key=value")
        found[key] = value
    return found


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, on a terminal only. The answer no ends the process with 1."""
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)


Namespace = Annotated[
    NamespaceName,
    typer.Argument(
        parser=_name_parser(NamespaceName.parse),
        metavar="TENANT/NAMESPACE",
        help="The namespace.",
    ),
]
Topic = Annotated[
    TopicName,
    typer.Argument(parser=_name_parser(_topic), metavar="TOPIC", help="The topic, persistent://tenant/ns/name."),
]
Bundle = Annotated[
    BundleName,
    typer.Argument(
        parser=_name_parser(BundleName.parse),
        metavar="TENANT/NAMESPACE/RANGE",
        help="The bundle, t/ns/0x.._0x...",
    ),
]
Broker = Annotated[
    str,
    typer.Argument(metavar="BROKER", help="The broker's id, host:port."),
]
Cluster = Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster: the nodes' clusterName.")]
AnyCluster = Annotated[
    str, typer.Argument(metavar="CLUSTER", help="The cluster; any name is accepted, as there is only one.")
]
Range = Annotated[
    BundleRange | None,
    typer.Option(
        "-b", "--bundle", parser=_name_parser(BundleRange.parse), metavar="RANGE", help="The bundle, 0x.._0x..."
    ),
]
NeededRange = Annotated[
    BundleRange,
    typer.Option(
        "-b", "--bundle", parser=_name_parser(BundleRange.parse), metavar="RANGE", help="The bundle, 0x.._0x..."
    ),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]
