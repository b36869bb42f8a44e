"""The command line: parse commands, run `loadmanager admin` in this process, or any command in a forked one."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from importlib import import_module
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from support.processes import forking
from support.waiting import eventually_sync
from typer._click import Command, Context
from typer.core import TyperGroup
from typer.testing import CliRunner, Result

from loadmanager.cli import COMMANDS, module_of
from loadmanager.cli.admin_command import admin

_numbers = count()
_ENDS_WITHIN_S = 180.0


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


def run(
    *words: str | Path, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Return what `subprocess.run` would; `environ` is added to the environment of this process."""
    command = [str(word) for word in words]
    name = f"command {next(_numbers)}"
    with TemporaryDirectory() as folder:
        out, errors = (Path(folder) / each for each in ("out", "errors"))
        forking().fork(name, command, (out, errors), cwd or Path.cwd(), {**os.environ, **(environ or {})})
        try:
            eventually_sync(
                lambda: forking().find_exit_code(name) is not None,
                f"loadmanager {command} ends",
                least_s=_ENDS_WITHIN_S,
            )
        finally:
            code = forking().stop(name, grace_s=0)
        return subprocess.CompletedProcess(command, code, out.read_text(), errors.read_text())
