"""Tables and lines on standard output, for limited encodings and closed pipes.

Names are never cut or wrapped, so that they can be copied. A table that is too wide is printed record by record.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.cells import cell_len

from loadmanager.cli.exit_codes import EXIT_FAILURE, fail

_GAP = 2
_STYLES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


def get_terminal_width() -> int | None:
    """Return the width of the terminal; None if the output goes to a file or a program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def style_text(text: str, style: str) -> str:
    """Colour the text, if the terminal supports colours."""
    if not style or not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Format a table with headings. If it is wider than `width`, format each row as a paragraph."""
    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    total = sum(widths) + _GAP * (len(widths) - 1)
    if width is not None and total > width:
        return _stack(headings, rows, width)
    return [_line(headings, widths), "─" * total, *(_line(row, widths) for row in rows)]


def format_pairs(
    rows: Sequence[tuple[str, str]], width: int | None, styles: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Format names and values; `styles` are by name. Long values wrap at spaces, indented below their first line."""
    indent = _indent(name for name, _ in rows)
    return [
        style_text(line, styles.get(name, "")) for name, value in rows for line in _pair(name, value, indent, width)
    ]


def wrap_text(text: str, width: int | None, indent: str = "") -> list[str]:
    """Wrap text at spaces only."""
    if width is None:
        return [f"{indent}{text}"]
    return textwrap.wrap(
        text,
        max(width, len(indent) + 1),
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _stack(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    indent = _indent(headings)
    lines = []
    for row in rows:
        for name, value in zip(headings, row, strict=True):
            lines += _pair(name, value, indent, width) if value else []
        lines.append("")
    return lines[:-1]


def _indent(names: Iterable[str]) -> int:
    return max(map(cell_len, names), default=0) + 2


def _pair(name: str, value: str, indent: int, width: int | None) -> list[str]:
    lines = wrap_text(value, None if width is None else width - indent) or [""]
    first = f"{name}{' ' * (indent - cell_len(name))}{lines[0]}".rstrip()
    return [first, *(f"{' ' * indent}{line}" for line in lines[1:])]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f"{cell}{' ' * (width - cell_len(cell))}" for cell, width in zip(cells, widths, strict=True))
    return (" " * _GAP).join(padded).rstrip()


_ERRORS = "loadmanager_replace"
_PLAIN = str.maketrans("─│·█", "-|.#")
"""ASCII replacements of the characters in tables and bars."""


def find_program() -> str:
    """Return the command that runs `loadmanager` in the current shell."""
    started = Path(sys.argv[0])
    if shutil.which("loadmanager"):
        return "loadmanager"
    if started.parts[-2:] == ("loadmanager", "__main__.py"):
        return f"{shlex.quote(sys.executable)} -m loadmanager"
    return shlex.quote(sys.argv[0]) if started.name == "loadmanager" else "loadmanager"


def replace_unencodable() -> None:
    """Make `print` replace characters that standard output cannot encode.

    Characters of tables and bars become ASCII. All others become JSON escapes, so that JSON stays valid.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # unless the parent process closed it
        sys.stdout.reconfigure(errors=_ERRORS)


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to standard output: in the encoding of a terminal, in UTF-8 to files and programs.

    A write error ends the process. A closed pipe is no error.
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


def write_nowhere() -> None:
    """Redirect standard output to /dev/null after its pipe was closed, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "it is registered for output"
    return json.dumps(error.object[error.start : error.end].translate(_PLAIN))[1:-1], error.end


codecs.register_error(_ERRORS, _replace)
