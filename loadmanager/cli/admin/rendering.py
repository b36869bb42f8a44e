"""Answers as people read them: lines, and tables."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

_NO_TERMINAL_WIDTH = 500
"""Where output goes into a file or another program no line is broken."""

_TIMES = frozenset({"at", "lastAt", "lastUpdate", "since", "startTimestamp", "takenAt"})
"""Keys of times in epoch milliseconds."""

_SENTENCE = "sentence"
_SAID_BY_SENTENCE = frozenset({"why"})
"""What people do not need to read beside a sentence that says it."""


def show(content: object) -> None:
    """Print what a node answered: values in lines, an object as a table, a list of objects as a table with columns."""
    match content:
        case None:
            return
        case [dict(), *_]:
            _print_rows([row for row in content if isinstance(row, dict)])
        case list():
            for entry in content:
                print(_text(entry))
        case dict() if content and all(isinstance(value, dict) for value in content.values()):
            _print_rows([{"name": name, **value} for name, value in content.items()])
        case dict():
            _print_object(content)
        case _:
            print(_text(content))


def _print_object(content: dict[str, object]) -> None:
    """Single values first, then each list of objects as a table of its own."""
    table = Table(box=None, show_header=False, pad_edge=False)
    lists = {}
    for key, value in content.items():
        match value:
            case [dict(), *_]:
                lists[key] = [row for row in value if isinstance(row, dict)]
            case dict() if value and "sentence" not in value:
                for inner, figure in value.items():
                    table.add_row(f"{key}.{inner}", _text(figure, inner))
            case _:
                table.add_row(key, _text(value, key))
    _print_table(table)
    for key, rows in lists.items():
        print(f"\n{key}:")
        _print_rows(rows)


def _print_rows(rows: list[dict[str, object]]) -> None:
    """A table without the columns that are empty throughout; a sentence, too long for one, stands below its row."""
    columns = list(dict.fromkeys(key for row in rows for key in row if _text(row[key], key)))
    if _SENTENCE not in columns:
        _print_table(_table(columns, rows))
        return
    columns = [column for column in columns if column != _SENTENCE and column not in _SAID_BY_SENTENCE]
    lines = _rendered(_table(columns, rows), _NO_TERMINAL_WIDTH)
    heading = len(lines) - len(rows) if columns else 0
    for line in lines[:heading]:
        print(line)
    for number, row in enumerate(rows, heading):
        if columns:
            print(lines[number])
        if sentence := _text(row.get(_SENTENCE)):
            print(f"  {sentence}")


def _table(columns: list[str], rows: list[dict[str, object]]) -> Table:
    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(*(" ".join(_text(row.get(column), column).splitlines()) for column in columns))
    return table


def _text(value: object, key: str = "") -> str:
    """A value as it stands in a line or a cell; `key` says what it is."""
    match value:
        case None | []:
            text = ""
        case str():
            text = value
        case bool():
            text = str(value).lower()
        case int() if key in _TIMES:
            text = datetime.fromtimestamp(value / 1000, UTC).astimezone().isoformat(" ", "milliseconds")
        case float():
            text = f"{value:.6g}"
        case [*entries] if not any(isinstance(entry, list | dict) for entry in entries):
            text = ", ".join(map(_text, entries))
        case {"sentence": str(sentence), **others}:
            change = others.get("change")
            text = f"{sentence}; to change it: {change}" if change else sentence
        case _:
            text = orjson.dumps(value).decode() if value != {} else ""
    return text


def _print_table(table: Table) -> None:
    for line in _rendered(table, None if sys.stdout.isatty() else _NO_TERMINAL_WIDTH):
        print(line)


def _rendered(table: Table, width: int | None) -> list[str]:
    """The lines of a table; None is the width of the terminal."""
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]
