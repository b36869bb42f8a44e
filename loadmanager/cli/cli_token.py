"""The token that a command shows to the processes that it asks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, fail
from loadmanager.errors import ConfigurationError
from loadmanager.net.auth.outgoing_token import Token, TokenAlone, TokenFile

TOKEN_VARIABLE = "LOADMANAGER_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "LOADMANAGER_TOKEN_FILE"  # noqa: S105 - the name of a variable

GivenToken = Annotated[
    str,
    typer.Option(
        "--token",
        envvar=TOKEN_VARIABLE,
        show_envvar=True,
        help="The token to show. Others on this machine see command lines: rather use the variable, or a file.",
    ),
]
GivenTokenFile = Annotated[
    Path | None, typer.Option("--token-file", envvar=TOKEN_FILE_VARIABLE, help="A file with the token to show.")
]


def given_token(token: str, token_file: Path | None) -> Token | None:
    """The token of these options; the process ends when they name none that can be used."""
    try:
        if token:
            return TokenAlone(token.removeprefix("token:"), f"--token, {TOKEN_VARIABLE}")
        return None if token_file is None else TokenFile(token_file)
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
