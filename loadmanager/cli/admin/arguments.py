"""Shared arguments and options of admin commands."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from itertools import pairwise
from typing import Annotated, TypeVar

import typer

from loadmanager.cli.admin.node_requests import AdminRequest, get
from loadmanager.cli.admin.service_client import ASKING_ERRORS, Service
from loadmanager.cli.connection_options import given_tls, given_token
from loadmanager.core.domain.names import BundleName, BundleRange, InvalidNameError, NamespaceName, TopicName

_PATIENCE_S = 0.5
_PARTS = 2
"""A tenant and a namespace stand before a bundle's range."""


def brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    """The registered brokers."""
    return _beginning(incomplete, _strings(_ask(ctx, get("/admin/v2/brokers"))))


def namespaces(ctx: typer.Context, incomplete: str) -> list[str]:
    """Tenants, then the namespaces of the one that is typed."""
    tenant, separator, _ = incomplete.partition("/")
    if separator:
        return _beginning(incomplete, _strings(_ask(ctx, get("/admin/v2/namespaces", tenant))))
    return _beginning(incomplete, (f"{each}/" for each in _strings(_ask(ctx, get("/admin/v2/tenants")))))


def bundles(ctx: typer.Context, incomplete: str) -> list[str]:
    """Namespaces, then the bundles of the one that is typed."""
    if incomplete.count("/") < _PARTS:
        return [each if each.endswith("/") else f"{each}/" for each in namespaces(ctx, incomplete)]
    namespace = incomplete.rpartition("/")[0]
    content = _ask(ctx, get(f"/admin/v2/namespaces/{namespace}", "bundles"))
    bounds = _strings(content.get("boundaries") if isinstance(content, dict) else None)
    ranges = (f"{namespace}/{lower}_{upper}" for lower, upper in pairwise(bounds))
    return _beginning(incomplete, ranges)


def _ask(ctx: typer.Context, request: AdminRequest) -> object:
    """The answer; None when nobody gives one at once."""
    given = ctx.params
    urls = [url.strip().rstrip("/") for url in str(given.get("url", "")).split(",")]
    try:
        with redirect_stderr(io.StringIO()):
            token = given_token(given.get("token") or "", given.get("token_file"))
            tls = given_tls(*(given.get(name) for name in ("tls_trust_certs", "tls_certificate", "tls_key")))
        return Service(urls, _PATIENCE_S, token=token, tls=tls).get(request)
    except (*ASKING_ERRORS, ValueError, SystemExit):
        return None


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _strings(content: object) -> list[str]:
    return [each for each in content if isinstance(each, str)] if isinstance(content, list) else []


T = TypeVar("T")

MATCHES = "/loadbalance/v1/matches"
"""Route by which a node tells what patterns and names match now."""

Force = Annotated[bool, typer.Option("--force", help="Unload also what no broker may own afterwards.")]


def _named(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The parser of a name for Typer, which says what is wrong in a usage error."""

    def parser(text: str) -> T:
        try:
            return parse(text)
        except InvalidNameError as error:
            raise typer.BadParameter(str(error)) from None

    return parser


def _topic(text: str) -> TopicName:
    """A topic; `persistent` unless it says otherwise, and in `public/default` when it is a bare name, as in Pulsar."""
    domain, separator, name = text.rpartition("://")
    full = name if "/" in name else f"public/default/{name}"
    return TopicName.parse(f"{domain if separator else 'persistent'}://{full}")


def words(text: str) -> list[str]:
    """The parts of a list separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def pairs(text: str) -> dict[str, str]:
    """`key=value` pairs separated by commas."""
    found = {}
    for word in words(text):
        key, separator, value = word.partition("=")
        if not separator:
            raise typer.BadParameter(f"{word!r}: expected key=value")
        found[key] = value
    return found


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is done, where somebody sits who can answer; no ends the process with 1."""
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)


Namespace = Annotated[
    NamespaceName,
    typer.Argument(
        parser=_named(NamespaceName.parse),
        metavar="TENANT/NAMESPACE",
        help="The namespace.",
        autocompletion=namespaces,
    ),
]
Topic = Annotated[
    TopicName, typer.Argument(parser=_named(_topic), metavar="TOPIC", help="The topic, persistent://tenant/ns/name.")
]
Bundle = Annotated[
    BundleName,
    typer.Argument(
        parser=_named(BundleName.parse),
        metavar="TENANT/NAMESPACE/RANGE",
        help="The bundle, t/ns/0x.._0x...",
        autocompletion=bundles,
    ),
]
Broker = Annotated[
    str,
    typer.Argument(metavar="BROKER", help="The broker's id, host:port.", autocompletion=brokers),
]
Cluster = Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster: the nodes' clusterName.")]
AnyCluster = Annotated[
    str, typer.Argument(metavar="CLUSTER", help="The cluster; any name stands for the only one here.")
]
Range = Annotated[
    BundleRange | None,
    typer.Option("-b", "--bundle", parser=_named(BundleRange.parse), metavar="RANGE", help="The bundle, 0x.._0x..."),
]
NeededRange = Annotated[
    BundleRange,
    typer.Option("-b", "--bundle", parser=_named(BundleRange.parse), metavar="RANGE", help="The bundle, 0x.._0x..."),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask first.")]
