"""Tables and lines on standard output, for limited encodings and closed pipes.

No name is cut or broken, since names are copied: a table that is too wide is printed record by record.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.cells import cell_len

from loadmanager.cli.exit_codes import EXIT_FAILURE, fail

_GAP = 2
_STYLES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


def get_terminal_width() -> int | None:
    """Return the width of the terminal; None where output goes into a file or another program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def style_text(text: str, style: str) -> str:
    """The text in a colour, on a terminal that wants colours."""
    if not style or not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def format_table(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Columns below their headings; where they are wider than that, a paragraph for each row."""
    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    if width is not None and sum(widths) + _GAP * (len(widths) - 1) > width:
        return _stack(headings, rows, width)
    return [_line(headings, widths), "─" * (sum(widths) + _GAP * (len(widths) - 1)), *format_columns(rows, widths)]


def format_columns(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """Cells below each other, as wide as it takes."""
    return (_line(row, widths) for row in rows)


def format_pairs(
    rows: Sequence[tuple[str, str]], width: int | None, styles: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Names and values, in the style of their names; a long value goes on below itself, at a space."""
    indent = _indent(name for name, _ in rows)
    return [
        style_text(line, styles.get(name, "")) for name, value in rows for line in _pair(name, value, indent, width)
    ]


def wrap_text(text: str, width: int | None, indent: str = "") -> list[str]:
    """Text in lines of that width, broken at spaces only."""
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
"""Characters that tables and bars are drawn with."""


def find_program() -> str:
    """Return the words that start `loadmanager` in the shell that started it."""
    if shutil.which("loadmanager") or Path(sys.argv[0]).name != "loadmanager":
        return "loadmanager"
    return shlex.quote(sys.argv[0])


def replace_unencodable() -> None:
    """Have every later `print` replace the characters that standard output cannot encode.

    Those of tables and bars become ASCII ones, all others escapes of JSON, so that JSON stays valid.
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


def write_nowhere() -> None:
    """Let go of a reader of standard output that went away: what is still buffered must not fail again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "it is registered for output"
    return json.dumps(error.object[error.start : error.end].translate(_PLAIN))[1:-1], error.end


codecs.register_error(_ERRORS, _replace)
