"""`loadmanager admin audit`: who changed what."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated

import orjson
import typer

from loadmanager.cli.admin.answer_text import show
from loadmanager.cli.admin.decision_stream import Json
from loadmanager.cli.admin.node_requests import AdminRequest, get
from loadmanager.cli.text.numbers import format_clock, format_relative
from loadmanager.cli.text.text_tables import get_terminal_width, style_text, wrap_text
from loadmanager.cli.text.times import read_moment

_INDENT = "  "
_REFUSED = 400


def audit(
    limit: Annotated[int, typer.Option("--limit", min=1, max=2_000, help="How many of the newest.")] = 20,
    since: Annotated[
        str | None, typer.Option("--since", help="From then on: 30m, 12h, 2d ago, or 2026-01-31T12:00 (UTC); else 24h.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only before then.")] = None,
) -> AdminRequest:
    """Show who changed what, from what to what, the newest last."""
    times = {"since": read_moment("--since", since), "until": read_moment("--until", until)}
    return get("/loadbalance/v1/audit", limit=limit, **times)


def show_audit(content: object) -> None:
    """Print the entries, the newest last."""
    if not isinstance(content, Mapping) or "entries" not in content:
        show(content)
        return
    now_ms, width = time.time() * 1000, get_terminal_width()
    for entry in reversed(content["entries"]):
        for line in _lines(entry, width, now_ms):
            print(line)
    if not content["entries"]:
        print("nobody has changed anything")


def _lines(entry: Json, width: int | None, now_ms: float) -> list[str]:
    verb = entry["operation"].split(" ", 1)[0]
    when = f"{format_clock(entry['at'])} ({format_relative(entry['at'], now_ms)})"
    head = wrap_text(f"{when}  {entry['who']} from {entry['from']}  {verb} {entry['path']}  {entry['status']}", width)
    lines = [style_text(line, "red" if entry["status"] >= _REFUSED else "") for line in head]
    if entry["before"] is not None or entry["after"] is not None:
        lines += wrap_text(f"{_text(entry['before'])} -> {_text(entry['after'])}", width, _INDENT)
    return lines


def _text(value: object) -> str:
    return "nothing" if value is None else orjson.dumps(value).decode()
