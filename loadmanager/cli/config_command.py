"""`loadmanager config`: the configuration files that this version understands, and Pulsar's, converted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, fail
from loadmanager.config import AgentSettings, render_fields, render_yaml
from loadmanager.errors import ConfigurationError

if TYPE_CHECKING:
    from loadmanager.cli.broker_conf import ImportedConf

_NO_TERMINAL_WIDTH = 500
"""Width of the output without a terminal: no line is broken."""

config = typer.Typer(help="Print configuration files, or take over one of Pulsar's.")


@config.callback(invoke_without_command=True)
def defaults(context: typer.Context) -> None:
    """Print the default configuration as YAML, every key with what it means and what is allowed."""
    if context.invoked_subcommand is None:
        serve()


@config.command()
def serve() -> None:
    """Print the configuration of a node of a new fleet."""
    from loadmanager.config import Settings  # noqa: PLC0415 - an agent is installed without what it needs

    print(render_yaml(Settings), end="")


@config.command()
def agent() -> None:
    """Print the default configuration of an agent."""
    print(render_yaml(AgentSettings), end="")


@config.command()
def pulsar() -> None:
    """Print the default configuration of a process beside a Pulsar."""
    from loadmanager.config import PulsarServiceSettings  # noqa: PLC0415 - as in `serve`

    print(render_yaml(PulsarServiceSettings), end="")


@config.command("import")
def import_file(
    file: Annotated[
        Path,
        typer.Argument(help="A broker.conf of Pulsar's, an environment of its container, a ConfigMap, or Helm values."),
    ],
    everything: Annotated[  # noqa: FBT002 - a command-line flag
        bool, typer.Option("--all", help="List the keys that have nothing to do with load balancing, too.")
    ] = False,
) -> None:
    """Print the configuration of a node that follows from that of a Pulsar broker; on standard error, what became of
    each key. Exit code 2: no node would start with it.
    """
    from loadmanager.cli.broker_conf import import_broker_conf  # noqa: PLC0415 - as in `serve`

    try:
        imported = import_broker_conf(file)
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
    print(f"# Converted from {file.name}; every other key has its default: see `loadmanager config`.")
    print(render_fields(imported.settings, imported.fields), end="")
    for key in imported.secrets:
        print(f"# {key}: write this secret here yourself")
    _explain(imported, everything=everything)
    if imported.refusal:
        fail(f"a node refuses this: {imported.refusal}", EXIT_CONFIGURATION)


def _explain(imported: ImportedConf, *, everything: bool) -> None:
    console = Console(stderr=True, width=None if sys.stderr.isatty() else _NO_TERMINAL_WIDTH)
    table = Table("line", "key", "", "why", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    shown = [each for each in imported.converted if everything or each.about_balancing]
    for each in shown:
        table.add_row(str(each.entry.line), each.entry.key, each.outcome.value, each.why)
    console.print(table)
    left = len(imported.converted) - len(shown)
    if left:
        console.print(f"Keys that have nothing to do with load balancing: {left}; --all lists them.")
