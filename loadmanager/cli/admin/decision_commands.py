"""`loadmanager admin decisions`, `why` and `audit`: decisions and commands, as a list or as a live stream.

Any node can serve the stream. If it breaks, because the node stopped or another one leads, the command reconnects and
first asks for the decisions that it has missed. It shows a decision once, and again when its move has been measured.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any

import orjson
import typer

from loadmanager.cli.admin.answer_text import Json, show_lines
from loadmanager.cli.admin.node_requests import (
    AdminRequest,
    NodeRefusedError,
    NoNodeReachableError,
    Service,
    Stream,
    get,
)
from loadmanager.cli.admin.request_command import Bundle, Procedure, show_json
from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.cli.text.numbers import format_clock, format_number, format_relative, read_moment
from loadmanager.cli.text.text_tables import get_terminal_width, style_text, wrap_text
from loadmanager.core.domain.names import BundleName
from loadmanager.errors import HistoryError, HistoryFileError
from loadmanager.util.clock import now_ms

_DECISIONS = "/loadbalance/v1/decisions"
_INDENT = "  "


def decision_lines(entry: Json, width: int | None, when: Callable[[float], str]) -> list[str]:
    """Format a decision: kind, subject and brokers, then the reason and the effect. `when` formats its time."""
    source, destination = entry["source"], entry["destination"]
    way = f"{source or 'nobody'} -> {destination or 'nobody'}" if source or destination else ""
    repeated = f"({entry['times']} times, last {when(entry['lastAt'])})" if entry["times"] > 1 else ""
    head = "  ".join(part for part in (when(entry["at"]), entry["kind"], entry["subject"], way, repeated) if part)
    first, *others = wrap_text(head, width)
    lines = [style_text(first, "bold" if entry["acted"] else "dim"), *(f"{_INDENT}{line}" for line in others)]
    lines += wrap_text(entry["sentence"] or entry["reason"].replace("_", " "), width, _INDENT)
    return lines + (wrap_text(effect, width, _INDENT) if (effect := _effect(entry)) else [])


def _effect(entry: Json) -> str:
    """Format the predicted and the measured effect of a move, for the entry that begins it."""
    effect = entry.get("effect")
    if not effect or entry["kind"] != MOVE_BEGINS:
        return ""
    predicted, measured = effect["predicted"], effect["measured"]
    before, after = (format_number(predicted[key]) for key in ("imbalanceBefore", "imbalanceAfter"))
    predicted = f"imbalance {before}, predicted {after}"
    return f"{predicted}, measured {format_number(measured['imbalanceAfter'])}" if measured else predicted


def decisions_lines(content: Json, width: int | None) -> list[str]:
    """Format decisions, the newest last."""
    now_ms, lines = time.time() * 1000, list[str]()
    for entry in reversed(content["decisions"]):
        lines += decision_lines(entry, width, lambda at_ms: format_relative(at_ms, now_ms))
    return lines


def show_with_time(entry: Json) -> None:
    """Print one decision with its time."""
    for line in decision_lines(entry, get_terminal_width(), format_clock):
        print(line)


def decisions(
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Maximum number of entries; the oldest are left out.")
    ] = 20,
    bundle: Annotated[str | None, typer.Option("--bundle", help="Only decisions about this bundle.")] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", help="Only decisions about this broker, or moves from or to it.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only these kinds, separated by commas: unload,shed,assign.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Start: 30m, 12h, 2d ago, or 2026-01-31T12:00 (UTC).")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="End (exclusive), in the same form.")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new decisions.")] = False,
) -> AdminRequest | Procedure:
    """Show the leader's recent decisions, the newest last; or follow them as they are made."""
    if bundle is not None and broker is not None:
        raise typer.BadParameter("give one of --bundle and --broker")
    if follow and until is not None:
        raise typer.BadParameter("what is followed has no end; leave out one of the two", param_hint="--until")
    request = get(
        _DECISIONS,
        limit=limit,
        subject=bundle or broker,
        kind=kind,
        since=read_moment("--since", since),
        until=read_moment("--until", until),
    )
    return DecisionFollower(request, show_with_time) if follow else request


MOVE_BEGINS = "unload"
"""Kind of the entry that is shown again when its move has been measured. Other entries of the move have no effect."""

_LIVE = "/loadbalance/v1/live"
_SILENCE_S = 30.0
"""Timeout of the stream without data. Nodes send something every ten seconds."""

_AGAIN_S = 1.0
_REMEMBERED = 10_000
"""Number of shown decisions to remember; nodes keep fewer."""


class DecisionFollower:
    """Shows the decisions that `request` returns, then follows the live stream until the process is stopped."""

    def __init__(self, request: AdminRequest, show: Callable[[Json], None]) -> None:
        self._request = request
        self._show = show
        self._subject = request.query["subject"]
        self._kinds = frozenset(str(request.query["kind"] or "").split(",")) - {""}
        self._shown: OrderedDict[tuple[int, int], bool] = OrderedDict()
        self._place = ""
        self._fault = ""

    def __call__(self, service: Service) -> None:
        show = _show_line if service.as_json else self._show
        stream, missed = self._begin(service)
        while True:
            try:
                for entry in chain(missed, self._decisions(stream)):
                    if self._is_new(entry):
                        show(entry)
                        sys.stdout.flush()
            finally:
                stream.close()
            time.sleep(_AGAIN_S)
            stream, missed = self._reconnect(service)

    def _begin(self, service: Service) -> tuple[Stream, list[Json]]:
        """Open the stream; return it with the decisions that were made before, oldest first."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self._place} if self._place else {})
        stream = service.stream(AdminRequest("GET", _LIVE, headers=headers), _SILENCE_S)
        try:
            content = service.get(self._request)
        except BaseException:
            stream.close()
            raise
        return stream, content["decisions"][::-1] if isinstance(content, dict) else []

    def _reconnect(self, service: Service) -> tuple[Stream, list[Json]]:
        """Reconnect: retry `_begin` until a node answers. Raises `NodeRefusedError` for a permanent refusal."""
        while True:
            try:
                begun = self._begin(service)
            except (NoNodeReachableError, NodeRefusedError) as error:
                if isinstance(error, NodeRefusedError) and not error.passes_by:
                    raise
                self._report_fault(f"{error}; asking again")
                time.sleep(_AGAIN_S)
            else:
                self._report_fault("")
                return begun

    def _decisions(self, stream: Stream) -> Iterator[Json]:
        from loadmanager.client.push_events import EventReader  # noqa: PLC0415 - its package imports aiohttp

        reader = EventReader()
        for line in stream.lines():
            for event in reader.feed(line):
                self._place = event.id or self._place
                if event.name == "decision":
                    yield orjson.loads(event.data)

    def _report_fault(self, fault: str) -> None:
        """Print once that the stream is lost, and once that it is back."""
        if bool(fault) != bool(self._fault):
            print(f"loadmanager: {fault or 'following again'}", file=sys.stderr)
        self._fault = fault

    def _is_new(self, entry: Json) -> bool:
        """Tell if the decision is wanted and was not shown yet in this state."""
        about = (entry["subject"], entry["source"], entry["destination"])
        if (self._subject and self._subject not in about) or (self._kinds and entry["kind"] not in self._kinds):
            return False
        key = (entry["epoch"], entry["sequence"])
        is_measured = entry["kind"] == MOVE_BEGINS and bool((entry.get("effect") or {}).get("measured"))
        if key in self._shown and (self._shown[key] or not is_measured):
            return False
        self._shown[key] = is_measured
        if len(self._shown) > _REMEMBERED:
            self._shown.popitem(last=False)
        self._request = replace(self._request, query=self._request.query | {"since": entry["lastAt"]})
        return True


def _show_line(entry: Json) -> None:
    print(orjson.dumps(entry).decode())


_REFUSED = 400


def audit(
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=2_000, help="Maximum number of entries; the oldest are left out.")
    ] = 20,
    since: Annotated[
        str | None, typer.Option("--since", help="Start: 30m, 12h, 2d ago, or 2026-01-31T12:00 (UTC); default: 24h.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="End (exclusive), in the same form.")] = None,
) -> AdminRequest:
    """Show who changed what, from what to what, the newest last."""
    times = {"since": read_moment("--since", since), "until": read_moment("--until", until)}
    return get("/loadbalance/v1/audit", limit=limit, **times)


def audit_lines(content: Json, width: int | None) -> list[str]:
    """Format the entries of the audit log, the newest last."""
    now_ms = time.time() * 1000
    lines = [line for entry in reversed(content["entries"]) for line in _operation_lines(entry, width, now_ms)]
    return lines or ["nobody has changed anything"]


def _operation_lines(entry: Json, width: int | None, now_ms: float) -> list[str]:
    verb = entry["operation"].split(" ", 1)[0]
    when = f"{format_clock(entry['at'])} ({format_relative(entry['at'], now_ms)})"
    head = wrap_text(f"{when}  {entry['who']} from {entry['from']}  {verb} {entry['path']}  {entry['status']}", width)
    lines = [style_text(line, "red" if entry["status"] >= _REFUSED else "") for line in head]
    if entry["before"] is not None or entry["after"] is not None:
        lines += wrap_text(f"{_format_json(entry['before'])} -> {_format_json(entry['after'])}", width, _INDENT)
    return lines


def _format_json(value: object) -> str:
    return "nothing" if value is None else orjson.dumps(value).decode()


_LIFE = "/loadbalance/v1/history/bundle"
_GIVEN = ("move", "place")


def why(
    bundle: Bundle,
    since: Annotated[str, typer.Option("--since", help="Start: 30m, 12h, 2d ago, or 2026-01-31T12:00 (UTC).")] = "12h",
    until: Annotated[str | None, typer.Option("--until", help="End (exclusive), in the same form.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000, help="Maximum number of entries; the oldest are left out.")
    ] = 100,
    history: Annotated[
        str | None, typer.Option("--history", metavar="URL", help="Read this history instead of asking a node.")
    ] = None,
) -> AdminRequest | Procedure:
    """Show the history of a bundle: decisions, moves, commands, splits, merges and leaders, the newest last."""
    since_ms, until_ms = read_moment("--since", since), read_moment("--until", until)
    if history is None:
        return get(_LIFE, bundle, since=since_ms, until=until_ms, limit=limit)

    def procedure(service: Service) -> None:
        until_now_ms = until_ms if until_ms is not None else now_ms() + 1
        lineage = _read(history, bundle, since_ms or 0, until_now_ms, limit)
        if service.as_json:
            show_json(lineage)
        else:
            show_lines(lineage, lineage_lines)

    return procedure


def _read(url: str, bundle: BundleName, since_ms: int, until_ms: int, limit: int) -> dict[str, Any]:
    """Read the lineage from the files of a history. Unusable files are named on standard error."""
    # Arrow is slow to import, and requests to a node do not need it.
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


def lineage_lines(lineage: Json, width: int | None) -> list[str]:
    """Format the lineage of a bundle, the newest entry last."""
    now_ms = time.time() * 1000
    lines = [style_text(line, "bold") for line in wrap_text(_summary(lineage, now_ms), width)]
    if lineage["omitted"]:
        lines += wrap_text(f"({lineage['omitted']} older entries are left out: --limit, or a later --since)", width)
    if lineage.get("unheard"):
        warning = f"({', '.join(lineage['unheard'])} did not answer: what only they recorded is missing)"
        lines += [style_text(line, "yellow") for line in wrap_text(warning, width)]
    for entry in lineage["entries"]:
        lines += _entry_lines(entry, lineage["bundle"], width, now_ms)
    return lines


def _summary(lineage: Json, now_ms: float) -> str:
    """Summarize the last place of the bundle and its number of moves."""
    entries = lineage["entries"]
    period = f"since {format_relative(lineage['since'], now_ms)}"
    if not any(entry["bundle"] for entry in entries):
        return f"Nothing is recorded of {lineage['bundle']} {period}."
    moves = sum(entry["kind"] == "move" and entry["acted"] for entry in entries)
    summary = f"{lineage['bundle']} moved {'once' if moves == 1 else f'{moves} times'} {period}"
    last = next((each for each in reversed(entries) if each["kind"] in _GIVEN and each["acted"]), None)
    if last is not None and last["destination"]:
        summary += f"; it went to {last['destination']} {format_relative(last['at'], now_ms)}"
    return f"{summary}."


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
