"""The whole command line, to parse commands with and run nothing."""

from __future__ import annotations

from importlib import import_module

import typer
from typer._click import Command, Context
from typer.core import TyperGroup

from loadmanager.cli import COMMANDS
from loadmanager.cli.lacking import module_of


def root() -> Command:
    app = typer.Typer(no_args_is_help=True)
    app.callback()(lambda: None)
    for name in COMMANDS:
        command = getattr(import_module(module_of(name)), name.replace("-", "_"))
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return typer.main.get_command(app)


def check(command: Command, words: list[str]) -> None:
    """Parse it as the command line does, and run nothing; raises `UsageError`."""
    name: str | None = "loadmanager"
    context = None
    while isinstance(command, TyperGroup):
        context = Context(command, info_name=name, parent=context)
        if not words or words[0].startswith("-"):
            return
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    if "--help" not in words:
        command.make_context(name, words, parent=context)
