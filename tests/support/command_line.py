"""The command line: parse commands without running them, or run commands of `loadmanager admin`."""

from __future__ import annotations

import shlex
from importlib import import_module

import typer
from typer._click import Command, Context
from typer.core import TyperGroup
from typer.testing import CliRunner, Result

from loadmanager.cli import COMMANDS
from loadmanager.cli.admin_command import admin
from loadmanager.cli.missing_extras import module_of


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


def run_admin(line: str, *urls: str) -> Result:
    """Run `loadmanager admin` with these words, in this process, against these nodes."""
    environment = {"LOADMANAGER_ADMIN_URL": ",".join(urls)} if urls else {}
    runner = CliRunner(env={"TZ": "UTC", "TERM": "dumb", "NO_COLOR": "1", **environment})
    return runner.invoke(admin, shlex.split(line))
