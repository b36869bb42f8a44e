"""`loadmanager config`: print configuration files of this version."""

from __future__ import annotations

import typer

from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.settings_loader import render_yaml

config = typer.Typer(help="Print configuration files.")


@config.callback(invoke_without_command=True)
def defaults(context: typer.Context) -> None:
    """Print the default configuration as YAML, each key with its meaning and allowed values."""
    if context.invoked_subcommand is None:
        serve()


@config.command()
def serve() -> None:
    """Print the configuration of a node for a new fleet."""
    from loadmanager.config.node_settings import Settings  # noqa: PLC0415 - an agent is installed without what it needs

    print(render_yaml(Settings), end="")


@config.command()
def agent() -> None:
    """Print the default configuration of an agent."""
    print(render_yaml(AgentSettings), end="")


@config.command()
def pulsar() -> None:
    """Print the default configuration of a process beside a Pulsar."""
    from loadmanager.config.pulsar_service_settings import PulsarServiceSettings  # noqa: PLC0415 - as in `serve`

    print(render_yaml(PulsarServiceSettings), end="")
