"""`loadmanager admin decisions`: what was decided and what was not, as a list, or as it happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from loadmanager.cli.admin.answer_text import show
from loadmanager.cli.admin.decision_stream import MOVE_BEGINS, DecisionFollower, Json
from loadmanager.cli.admin.node_requests import AdminRequest, get
from loadmanager.cli.admin.request_command import Procedure
from loadmanager.cli.text.numbers import format_clock, format_number, format_relative
from loadmanager.cli.text.text_tables import get_terminal_width, style_text, wrap_text
from loadmanager.cli.text.times import read_moment

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
    return lines + (wrap_text(told, width, _INDENT) if (told := _effect(entry)) else [])


def _effect(entry: Json) -> str:
    """Format the predicted and the measured effect of a move, for the entry of its beginning."""
    effect = entry.get("effect")
    if not effect or entry["kind"] != MOVE_BEGINS:
        return ""
    predicted, measured = effect["predicted"], effect["measured"]
    before, after = (format_number(predicted[key]) for key in ("imbalanceBefore", "imbalanceAfter"))
    told = f"imbalance {before}, predicted {after}"
    return f"{told}, measured {format_number(measured['imbalanceAfter'])}" if measured else told


def show_decisions(content: object) -> None:
    """Print them, the newest last."""
    if not isinstance(content, Mapping) or "decisions" not in content:
        show(content)
        return
    width, now_ms = get_terminal_width(), time.time() * 1000
    for entry in reversed(content["decisions"]):
        for line in decision_lines(entry, width, lambda at_ms: format_relative(at_ms, now_ms)):
            print(line)


def show_with_time(entry: Json) -> None:
    """Print one as it happens."""
    for line in decision_lines(entry, get_terminal_width(), format_clock):
        print(line)


def decisions(
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many of the newest.")] = 20,
    subject: Annotated[str | None, typer.Option("--subject", help="Only of this bundle or broker.")] = None,
    bundle: Annotated[str | None, typer.Option("--bundle", help="Only of this bundle.")] = None,
    broker: Annotated[str | None, typer.Option("--broker", help="Only of this broker, or from it or to it.")] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Only of these kinds, with commas: unload,shed,assign.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only from then on: 30m, 12h, 2d ago, or 2026-01-31T12:00 (UTC).")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only before then.")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new decisions.")] = False,
) -> AdminRequest | Procedure:
    """Show the leader's recent decisions, the newest last; or follow them as they are made."""
    given = [each for each in (subject, bundle, broker) if each is not None]
    if len(given) > 1:
        raise typer.BadParameter("give one of --subject, --bundle and --broker")
    if follow and until is not None:
        raise typer.BadParameter("what is followed has no end; leave out one of the two", param_hint="--until")
    request = get(
        _DECISIONS,
        limit=limit,
        subject=given[0] if given else None,
        kind=kind,
        since=read_moment("--since", since),
        until=read_moment("--until", until),
    )
    return DecisionFollower(request, show_with_time) if follow else request
