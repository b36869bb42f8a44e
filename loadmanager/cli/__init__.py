"""The command line. Each command is a module of its own, imported only when it is the one that is asked for."""

from __future__ import annotations

import sys
from importlib import import_module

import typer

COMMANDS = (
    "serve",
    "agent",
    "beside",
    "admin",
    "plan",
    "monitor",
    "demo",
    "zookeeper",
    "token",
    "dump",
    "decide",
    "history",
    "replay",
    "simulate",
    "pipeline",
    "config",
)


def main() -> None:
    """Entry point of `loadmanager`."""
    app = typer.Typer(
        name="loadmanager",
        help="A load manager for fleets of stateful brokers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(lambda: None)
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        module = import_module(f"loadmanager.cli.{name}")
        command = getattr(module, name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name, cls=getattr(module, "COMMAND_CLASS", None))(command)
    app()
