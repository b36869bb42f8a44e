"""Commands whose dependencies are not installed, as on an agent-only installation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.util.optional_dependencies import how_to_install

_OF_NODES = ("numpy", "pyarrow")
LACKING = f"Not in this installation: needs {' and '.join(_OF_NODES)}."


def module_of(command: str) -> str:
    """The name of a command's module."""
    return f"loadmanager.cli.{command.replace('-', '_')}_command"


def find_module(command: str) -> ModuleType | None:
    """The module of a command; None where it lacks a package that only nodes need."""
    try:
        return import_module(module_of(command))
    except ModuleNotFoundError as error:
        if error.name not in _OF_NODES:
            raise
        return None


@contextmanager
def or_how_to_install() -> Iterator[None]:
    """Ends the process with the fix where what is done within lacks such a package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _OF_NODES:
            raise
        fail(f"not installed: {error.name}; install what nodes need with: {how_to_install('node')}", EXIT_FAILURE)
