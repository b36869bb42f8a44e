"""Command line. Only the module of the requested command is imported.

An agent-only installation lacks dependencies of some commands. The list of commands says how to install them.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from types import ModuleType
from typing import Annotated

import typer

from loadmanager import __version__
from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.cli.text.text_tables import replace_unencodable
from loadmanager.util.optional_dependencies import how_to_install

COMMANDS = (
    "serve",
    "agent",
    "check-broker",
    "pulsar",
    "admin",
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

_COMPLETING = "_LOADMANAGER_COMPLETE"
"""Variable that the shell sets when it asks for completions. The command line is then in one of the next two."""

_LINE_OF_BASH, _LINE_OF_OTHERS = "COMP_WORDS", "_TYPER_COMPLETE_ARGS"


def main() -> None:
    """Entry point of `loadmanager`."""
    replace_unencodable()
    with explain_missing_packages():
        with _importing():
            application = _application(_typed_words())
        application()


@contextmanager
def _importing() -> Iterator[None]:
    """Disable garbage collection during imports, and freeze the imported objects afterwards.

    Imports create no garbage. Scanning them repeatedly, and again at exit, takes a third of a command's start-up time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _application(words: Sequence[str]) -> typer.Typer:
    asked = next(iter(words), "")
    app = typer.Typer(
        name="loadmanager",
        help="A load manager for fleets of stateful brokers.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name in COMMANDS:
        if asked not in (name, "", "--help"):
            app.command(name)(_root)  # only its name is needed
        elif asked == name:
            _add(app, name, import_module(module_of(name)), words[1:])
        elif module := find_module(name):
            _add(app, name, module)
        else:
            app.command(name, help=LACKING)(_root)
    return app


def _add(app: typer.Typer, name: str, module: ModuleType, words: Sequence[str] = ()) -> None:
    command = getattr(module, name.replace("-", "_"))
    if isinstance(command, typer.Typer):
        app.add_typer(_with_only(command, words), name=name)
    else:
        app.command(name, cls=getattr(module, "COMMAND_CLASS", None))(command)


def _with_only(group: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Return a group with only the typed command; the whole group if no command of it was typed.

    Preparing all commands of `admin` would take a quarter of the CPU time of a command.
    """
    asked = next(iter(words), "")
    commands = [each for each in group.registered_commands if each.name == asked]
    groups = [copy(each) for each in group.registered_groups if each.name == asked]
    if not (commands or groups):
        return group
    for each in groups:
        if each.typer_instance is not None:
            each.typer_instance = _with_only(each.typer_instance, words[1:])
    narrowed = copy(group)
    narrowed.registered_commands, narrowed.registered_groups = commands, groups
    return narrowed


def _typed_words() -> list[str]:
    """Return the typed words. While a shell completes them, return the first one, or "-" if there is none."""
    if _COMPLETING not in os.environ:
        return sys.argv[1:]
    line = os.environ.get(_LINE_OF_BASH) or os.environ.get(_LINE_OF_OTHERS, "")
    return line.split()[1:2] or ["-"]


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - a callback of Typer's
    if wanted:
        print(f"loadmanager {__version__}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version


_OF_NODES = ("numpy", "pyarrow")
LACKING = f"Not in this installation: needs {' and '.join(_OF_NODES)}."


def module_of(command: str) -> str:
    return f"loadmanager.cli.{command.replace('-', '_')}_command"


def find_module(command: str) -> ModuleType | None:
    """Import the module of a command; None if a package is missing that only nodes need."""
    try:
        return import_module(module_of(command))
    except ModuleNotFoundError as error:
        if error.name not in _OF_NODES:
            raise
        return None


@contextmanager
def explain_missing_packages() -> Iterator[None]:
    """End the process, with the install command, if the block needs a missing package of nodes."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _OF_NODES:
            raise
        fail(f"not installed: {error.name}; install what nodes need with: {how_to_install('node')}", EXIT_FAILURE)
