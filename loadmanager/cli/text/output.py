"""Standard output with limited encodings and closed pipes."""

from __future__ import annotations

import codecs
import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from loadmanager.cli.exit_codes import EXIT_FAILURE, fail

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_ERRORS = "loadmanager_replace"
_PLAIN = str.maketrans("─│·▁▂▃▄▅▆▇█", "-|..:-=+*%#")
"""Characters that tables, bars and curves are drawn with."""

_WIDE = 100_000


def find_program() -> str:
    """Return the words that start `loadmanager` in the shell that started it."""
    if shutil.which("loadmanager") or Path(sys.argv[0]).name != "loadmanager":
        return "loadmanager"
    return shlex.quote(sys.argv[0])


def replace_unencodable() -> None:
    """Have every later `print` replace the characters that standard output cannot encode.

    Those of tables and curves become ASCII ones, all others escapes of JSON, so that JSON stays valid.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # not closed by whoever started the process
        sys.stdout.reconfigure(errors=_ERRORS)


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output: for a terminal in its encoding, for files and other programs in UTF-8.

    The process ends when they cannot be written; but a reader that went away is no fault.
    """
    encoding = sys.stdout.encoding if sys.stdout.isatty() else "utf-8"
    try:
        for line in lines:
            sys.stdout.buffer.write(f"{line}\n".encode(encoding, _ERRORS))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        write_nowhere()
    except OSError as error:
        write_nowhere()
        fail(f"standard output: {error.strerror}", EXIT_FAILURE)


def rendered(*parts: Table | Text | str) -> list[str]:
    """Render for standard output: as wide as the terminal, and anywhere else as wide as it takes. No name is cut."""
    from rich.console import Console  # noqa: PLC0415 - it takes its time to load, and so does the next
    from rich.table import Table  # noqa: PLC0415

    shown, terminal = io.StringIO(), Console()
    width = terminal.width if terminal.is_terminal else _WIDE
    console = Console(file=shown, width=width, force_terminal=terminal.is_terminal)
    for part in parts:
        if isinstance(part, Table):
            for column in part.columns:
                column.overflow = "fold"
        console.print(part)
    return [line.rstrip() for line in shown.getvalue().splitlines()]


def write_nowhere() -> None:
    """Let go of a reader of standard output that went away: what is still buffered must not fail again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "it is registered for output"
    return json.dumps(error.object[error.start : error.end].translate(_PLAIN))[1:-1], error.end


codecs.register_error(_ERRORS, _replace)
