"""Generic output of answers for people: lines and tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from rich.cells import cell_len

from loadmanager.cli.text.numbers import format_number, format_relative
from loadmanager.cli.text.text_tables import format_pairs, format_table, get_terminal_width, wrap_text

_TIMES = frozenset({"at", "draining", "heldOff", "lastAt", "lastUpdate", "since", "startTimestamp", "takenAt"})
"""Keys of times in epoch milliseconds, or of objects of them."""

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


def show_lines(content: object, format_lines: Callable[[Mapping[str, Any], int | None], list[str]]) -> None:
    """Print an answer as formatted, or as `show` does where it is of another version."""
    try:
        assert isinstance(content, Mapping)
        lines = format_lines(content, get_terminal_width())
    except (AssertionError, KeyError, TypeError):
        show(content)
        return
    _print_lines(lines)


def _print_object(content: dict[str, object]) -> None:
    """Single values first, then each list of objects as a table of its own."""
    values, lists = [], {}
    for key, value in content.items():
        match value:
            case [dict(), *_]:
                lists[key] = [row for row in value if isinstance(row, dict)]
            case dict() if value and _SENTENCE not in value:
                inner_key = key if key in _TIMES else ""
                values += [(f"{key}.{inner}", _text(figure, inner_key or inner)) for inner, figure in value.items()]
            case _:
                values.append((key, _text(value, key)))
    _print_lines(format_pairs(values, get_terminal_width()) or [""])
    for key, rows in lists.items():
        print(f"\n{key}:")
        _print_rows(rows)


def _print_rows(rows: list[dict[str, object]]) -> None:
    """A table without the columns that are empty throughout; a sentence, too long for one, stands below its row."""
    width = get_terminal_width()
    keys = list(dict.fromkeys(key for row in rows for key in row if _text(row[key], key)))
    if _SENTENCE not in keys:
        _print_lines(_table(keys, rows, width))
        return
    keys = [key for key in keys if key != _SENTENCE and key not in _SAID_BY_SENTENCE]
    lines = _table(keys, rows, None) if keys else [""] * len(rows)
    if width is not None and max(map(cell_len, lines)) > width:
        _print_lines(_table([*keys, _SENTENCE], rows, width))
        return
    heading = len(lines) - len(rows)
    _print_lines(lines[:heading])
    for line, row in zip(lines[heading:], rows, strict=True):
        _print_lines([line] if keys else [])
        if sentence := _text(row.get(_SENTENCE)):
            _print_lines(wrap_text(sentence, width, "  "))


def _table(keys: list[str], rows: list[dict[str, object]], width: int | None) -> list[str]:
    cells = [[" ".join(_text(row.get(key), key).splitlines()) for key in keys] for row in rows]
    return format_table(keys, cells, width)


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
            text = format_relative(value, time.time() * 1000)
        case float():
            text = format_number(value)
        case [*entries] if not any(isinstance(entry, list | dict) for entry in entries):
            text = ", ".join(map(_text, entries))
        case {"sentence": str(sentence), **others}:
            change = others.get("change")
            text = f"{sentence}; to change it: {change}" if change else sentence
        case _:
            text = orjson.dumps(value).decode() if value != {} else ""
    return text


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        print(line)
