"""`loadmanager admin why`: all that happened to a bundle and why, across leaders, as the history has it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from loadmanager.cli.admin.answer_text import show
from loadmanager.cli.admin.arguments import Bundle
from loadmanager.cli.admin.decision_stream import Json
from loadmanager.cli.admin.node_requests import AdminRequest, get
from loadmanager.cli.admin.request_command import Procedure, show_json
from loadmanager.cli.admin.service_client import Service
from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.cli.text.numbers import format_clock, format_relative
from loadmanager.cli.text.text_tables import get_terminal_width, style_text, wrap_text
from loadmanager.cli.text.times import read_moment
from loadmanager.core.domain.names import BundleName
from loadmanager.errors import HistoryError, HistoryFileError
from loadmanager.util.clock import now_ms

_LIFE = "/loadbalance/v1/history/bundle"
_INDENT = "  "
_GIVEN = ("move", "place")


def why(
    bundle: Bundle,
    since: Annotated[
        str, typer.Option("--since", help="From then on: 30m, 12h, 2d ago, or 2026-01-31T12:00 (UTC).")
    ] = "12h",
    until: Annotated[str | None, typer.Option("--until", help="Only before then.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="How many of the newest entries.")] = 100,
    history: Annotated[
        str | None, typer.Option("--history", metavar="URL", help="Read this history, and ask no node.")
    ] = None,
) -> AdminRequest | Procedure:
    """Tell what happened to a bundle: decisions and non-decisions, moves, orders, cuts and leaders, the newest last."""
    since_ms, until_ms = read_moment("--since", since), read_moment("--until", until)
    if history is None:
        return get(_LIFE, bundle, since=since_ms, until=until_ms, limit=limit)

    def procedure(service: Service) -> None:
        until_now_ms = until_ms if until_ms is not None else now_ms() + 1
        life = _read(history, bundle, since_ms or 0, until_now_ms, limit)
        if service.as_json:
            show_json(life)
        else:
            show_lineage(life)

    return procedure


def show_lineage(content: object) -> None:
    """Print it, the newest last."""
    if not isinstance(content, Mapping) or "entries" not in content:
        show(content)
        return
    print("\n".join(_lines(content, get_terminal_width())))


def _read(url: str, bundle: BundleName, since_ms: int, until_ms: int, limit: int) -> dict[str, Any]:
    """The same from the files; what cannot be used of them is named on standard error."""
    # Arrow takes its time to load, and those who ask a node do not need it.
    from loadmanager.history.bundle_lineage import read_lineage  # noqa: PLC0415
    from loadmanager.history.files import Directory  # noqa: PLC0415
    from loadmanager.history.reader import History  # noqa: PLC0415

    def leave_out(fault: HistoryFileError) -> None:
        print(f"left out: {fault}", file=sys.stderr)

    try:
        directory = Directory.of(url)
        if not directory.exists():
            fail(f"--history {url}: no such directory", EXIT_FAILURE)
        return read_lineage(History(directory), bundle, since_ms, until_ms, limit, leave_out).model_dump(by_alias=True)
    except HistoryError as error:
        fail(f"--history {url}: {error}", EXIT_FAILURE)


def _lines(life: Json, width: int | None) -> list[str]:
    now_ms = time.time() * 1000
    lines = [style_text(line, "bold") for line in wrap_text(_summary(life, now_ms), width)]
    if life["omitted"]:
        lines += wrap_text(f"({life['omitted']} older entries are left out: --limit, or a later --since)", width)
    if life.get("unheard"):
        told = f"({', '.join(life['unheard'])} did not answer: what only they recorded is missing)"
        lines += [style_text(line, "yellow") for line in wrap_text(told, width)]
    for entry in life["entries"]:
        lines += _entry_lines(entry, life["bundle"], width, now_ms)
    return lines


def _summary(life: Json, now_ms: float) -> str:
    """Summarize the last place of the bundle and its number of moves."""
    entries = life["entries"]
    period = f"since {format_relative(life['since'], now_ms)}"
    if not any(entry["bundle"] for entry in entries):
        return f"Nothing is recorded of {life['bundle']} {period}."
    moves = sum(entry["kind"] == "move" and entry["acted"] for entry in entries)
    told = f"{life['bundle']} moved {'once' if moves == 1 else f'{moves} times'} {period}"
    last = next((each for each in reversed(entries) if each["kind"] in _GIVEN and each["acted"]), None)
    if last is not None and last["destination"]:
        told += f"; it went to {last['destination']} {format_relative(last['at'], now_ms)}"
    return f"{told}."


def _entry_lines(entry: Json, bundle: str, width: int | None, now_ms: float) -> list[str]:
    source, destination = entry["source"], entry["destination"]
    way = f"{source or 'nobody'} -> {destination or 'nobody'}" if entry["bundle"] and (source or destination) else ""
    other = f"as {entry['bundle']}" if entry["bundle"] not in (None, bundle) else ""
    often = f"({entry['times']} times, last {format_clock(entry['lastAt'])})" if entry["times"] > 1 else ""
    when = f"{format_clock(entry['at'])} ({format_relative(entry['at'], now_ms)})"
    head = "  ".join(part for part in (when, entry["kind"].replace("_", " "), way, other, often) if part)
    lines = wrap_text(head, width)
    style = "cyan" if entry["bundle"] is None else "" if entry["acted"] else "dim"
    return [*(style_text(line, style) for line in lines), *wrap_text(entry["sentence"], width, _INDENT)]
