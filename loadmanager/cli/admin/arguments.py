"""Shared arguments and options of admin commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from loadmanager.cli.admin import completion
from loadmanager.core.domain.names import BundleName, BundleRange, InvalidNameError, NamespaceName, TopicName

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
        autocompletion=completion.namespaces,
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
        autocompletion=completion.bundles,
    ),
]
Broker = Annotated[
    str,
    typer.Argument(metavar="BROKER", help="The broker's id, host:port.", autocompletion=completion.brokers),
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
