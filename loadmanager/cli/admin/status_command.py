"""`loadmanager admin status`: the whole service on one screen, once or continuously.

Problems come first, then the brokers, most used first.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len

from loadmanager.cli.admin.answer_text import RESOURCES, Json, show_lines
from loadmanager.cli.admin.node_requests import NodeRefusedError, NoNodeReachableError, Service, get
from loadmanager.cli.admin.request_command import Procedure, show_json
from loadmanager.cli.text.numbers import (
    format_clock,
    format_count,
    format_duration,
    format_number,
    format_quantity,
    format_relative,
    format_size,
)
from loadmanager.cli.text.text_tables import format_pairs, get_terminal_width, style_text, wrap_text
from loadmanager.core.domain.resources import HOT

_FLEET = "/loadbalance/v1/fleet"
_DECISIONS = "/loadbalance/v1/decisions"
_MOVES = "unload,unload_failed"
_SHOWN_MOVES = 3
_AGAIN_S = 2.0
_WIDTH, _HEIGHT = 100, 40
"""Size of the output without a terminal."""


def status(
    *, watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until Ctrl-C.")] = False
) -> Procedure:
    """Show who leads, how brokers are used, what moves, and what keeps bundles from moving: one screen."""

    def procedure(service: Service) -> None:
        if watch:
            _watch(service)
        elif service.as_json:
            show_json(_look(service))
        else:
            width, height = _screen()
            show_lines(_look(service), lambda seen, _: draw(seen, width, height))

    return procedure


def _look(service: Service) -> dict[str, Any]:
    """Read the fleet status and the last moves; the moves are null without a leader."""
    fleet = service.get(get(_FLEET))
    assert isinstance(fleet, dict), "the fleet"
    try:
        answer = service.get(get(_DECISIONS, limit=_SHOWN_MOVES, kind=_MOVES))
    except (NoNodeReachableError, NodeRefusedError):
        answer = {}
    return service.complete({**fleet, "lastMoves": answer.get("decisions") if isinstance(answer, dict) else None})


def _watch(service: Service) -> None:
    """Redraw the screen at intervals, also when no node answers."""
    is_terminal = sys.stdout.isatty()
    lines = [""]
    while True:
        width, height = _screen()
        try:
            seen = _look(service)
            lines = draw(seen, width, height - 1)
            fault = ""
        except (NoNodeReachableError, NodeRefusedError) as error:
            if isinstance(error, NodeRefusedError) and not error.passes_by:
                raise
            fault = f"{error}; what was seen last:"
        if service.as_json and not fault:
            show_json(seen)
        elif is_terminal:
            shown = [*(style_text(line, "red") for line in wrap_text(fault, width)), *lines] if fault else lines
            print("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in shown[: height - 1]) + "\x1b[J", end="", flush=True)
        else:
            print("\n".join([fault] if fault else [*lines, ""]), flush=True)
        time.sleep(_AGAIN_S)


def _screen() -> tuple[int, int]:
    width = get_terminal_width()
    return (_WIDTH, _HEIGHT) if width is None else (width, shutil.get_terminal_size().lines)


_LEAST_BAR, _LONGEST_BAR = 10, 40
_LEAST_BROKERS = 3
_MOST_SHOWN = 3
_FULL = 100.0
_STATES = {"active": "", "held_off": "held off", "broker_stuck": "stuck", "unreadable": "no report"}
_TROUBLED = ("unreadable", "broker_stuck", "sick", "rejected")
_DROPPED = ("load", "bundles", "most")
"""Columns to drop from a line that is too long, in this order."""

_NO_LEADER, _CANNOT, _LIMIT, _FAULT, _UNPLACEABLE, _UNSERVED, _AVAILABLE, _OPEN = (
    "no leader",
    "cannot move",
    "limit",
    "fault",
    "no broker",
    "unserved",
    "available",
    "open",
)
_URGENT = {
    **dict.fromkeys((_NO_LEADER, _FAULT, _UNPLACEABLE, _UNSERVED), "red"),
    **dict.fromkeys((_CANNOT, _OPEN), "yellow"),
}


def draw(seen: Json, width: int, height: int) -> list[str]:
    """Draw a screen of this size, with as many brokers as fit, the worst first."""
    above, below = _head(seen, width), _last_moves(seen, width)
    room = max(height - len(above) - len(below) - 3, _LEAST_BROKERS)
    return [*above, "", *_brokers(seen, width, room), *below]


def _head(seen: Json, width: int) -> list[str]:
    leader, faults = seen["leader"], seen["faults"]
    unowned = f", {seen['unowned']} not yet assigned" if seen["unowned"] else ""
    brokers, bundles = format_quantity(len(seen["brokers"]["id"]), "broker"), format_quantity(seen["bundles"], "bundle")
    nodes = f"nodes {', '.join(seen['nodes']) or 'none'}"
    rows = [(_NO_LEADER, f"none elected, or {seen['node']} has no lease; {nodes}")]
    if leader:
        rows = [("leader", f"{leader['id']}, epoch {leader['epoch']}; {nodes}")]
    if leader and not seen["isWhole"]:
        rows.append(("", "the leader does not answer: what only it knows is missing"))
    rows += [("balancing", "; ".join(_balancing_limits(seen["balancing"])) or "on")]
    rows += [("size", seen["size"]["sentence"])] if seen.get("size") else []
    rows += [(_CANNOT, each["sentence"]) for each in seen["balancing"].get("cannotMove") or ()]
    rows += [(_LIMIT, _limit(each, seen["at"])) for each in seen["balancing"].get("limits") or ()]
    rows += [(_UNPLACEABLE, each["sentence"]) for each in seen.get("unplaceable") or ()]
    rows += [(_UNSERVED, _describe_unserved(each)) for each in seen.get("unserved") or ()]
    rows += [("moving", _moving(seen))] if seen["movingInAll"] else []
    rows += [(_FAULT, f"{path}: {fault}") for path, fault in list(faults.items())[:_MOST_SHOWN]]
    if len(faults) > _MOST_SHOWN:
        rows.append(("", f"and {format_quantity(len(faults) - _MOST_SHOWN, 'more fault')}"))
    if available := seen.get("availableNamespaces"):
        named = ", ".join(available) if len(available) <= _MOST_SHOWN else f"{len(available)} namespaces"
        rows.append((_AVAILABLE, f"topics of {named} may have two owners (availableNamespaces)"))
    rows += [(_OPEN, "to anyone: nobody is asked for a token (docs/security.md)")] if seen.get("openToAnyone") else []
    title = f"{brokers}, {bundles}{unowned}; {format_clock(seen['at'])}, by {seen['node']}"
    return [*wrap_text(title, width), *format_pairs(rows, width, _URGENT)]


def _describe_unserved(found: Json) -> str:
    return f"{format_quantity(found['bundles'], 'bundle')} of {found['broker']}: {found['why']}; {found['remedy']}"


def _balancing_limits(balancing: Json) -> list[str]:
    breaker = balancing["breaker"] or {"stoppedS": 0, "bundles": 0}
    sentences = {
        f"frozen: {balancing['frozen']}": balancing["frozen"],
        "dry run: nothing is moved": balancing["dryRun"],
        f"the breaker has stopped shedding for {format_duration(breaker['stoppedS'])} more": breaker["stoppedS"],
        f"the breaker keeps {format_quantity(breaker['bundles'], 'bundle')} in place": breaker["bundles"],
        "nothing can move": balancing.get("cannotMove"),
        "limits keep bundles in place": balancing.get("limits"),
    }
    return [sentence for sentence, is_so in sentences.items() if is_so]


def _limit(limit: Json, now_ms: float) -> str:
    until = limit["until"]
    ends = "" if until is None else f", until {format_clock(until)} ({format_relative(until, now_ms)})"
    return f"{limit['sentence']} ({limit['reason']}){ends}"


def _moving(seen: Json) -> str:
    first = seen["moving"][0] if seen["moving"] else None
    others = seen["movingInAll"] - 1
    if first is None:
        return format_quantity(seen["movingInAll"], "bundle")
    age = format_relative(first["since"], seen["at"])
    text = f"{first['bundle']} from {first['source']} to {first['destination'] or 'nobody yet'}, since {age}"
    return f"{text}{f', and {others} more' if others else ''}"


def _brokers(seen: Json, width: int, room: int) -> list[str]:
    """Draw one line per broker: name, usage bar, most used resource, load, bundles and state."""
    columns, drains = seen["brokers"], {drain["broker"]: drain for drain in seen["drains"]}
    order = sorted(range(len(columns["id"])), key=lambda row: _severity(columns, row), reverse=True)
    shown = order if len(order) <= room else order[: room - 1]
    cells = [_cells(columns, row, drains) for row in shown]
    for dropped in _DROPPED:
        if _width_of(cells) + _LEAST_BAR <= width:
            break
        cells = [{**each, dropped: ""} for each in cells]
    bar = min(max(width - _width_of(cells), _LEAST_BAR), _LONGEST_BAR)
    widths = _widths(cells)
    lines = []
    for row, each in zip(shown, cells, strict=True):
        highest = columns["highest"][row]
        padded = [f"{each[name]}{' ' * (widths[name] - cell_len(each[name]))}" for name in each if widths[name]]
        drawn = style_text(_bar(highest, seen["mean"], bar), "red" if highest > _FULL * HOT else "")
        lines.append("  ".join([padded[0], drawn, *padded[1:]]).rstrip())
    lines += [f"and {len(order) - len(shown)} more, used less"] if len(shown) < len(order) else []
    return [*lines, *_sum_up(seen, width)]


def _widths(cells: Sequence[Mapping[str, str]]) -> dict[str, int]:
    return {name: max(cell_len(each[name]) for each in cells) for name in cells[0]} if cells else {}


def _width_of(cells: Sequence[Mapping[str, str]]) -> int:
    """Return the width of all columns beside the bars."""
    return sum(width + 2 for width in _widths(cells).values() if width)


def _severity(columns: Json, row: int) -> tuple[bool, float]:
    return columns["state"][row] in _TROUBLED, columns["highest"][row]


def _cells(columns: Json, row: int, drains: Mapping[str, Json]) -> dict[str, str]:
    broker, state = columns["id"][row], columns["state"][row]
    most = max(RESOURCES, key=lambda name: columns[name][row] or 0.0)
    text = _STATES.get(state, state)
    if drain := drains.get(broker):
        eta_s = drain["etaS"]
        text = f"{drain['state']}: {drain['bundlesLeft']} left{f', {format_duration(eta_s)}' if eta_s else ''}"
    return {
        "broker": broker,
        "used": f"{columns['highest'][row]:3.0f} %",
        "most": RESOURCES[most] if columns[most][row] else "",
        "load": f"{format_count(columns['msgRate'][row])}/s, {format_size(columns['throughput'][row])}/s",
        "bundles": format_quantity(columns["bundles"][row], "bundle"),
        "state": text,
    }


def _bar(percent: float, mean: float | None, width: int) -> str:
    """Draw a usage bar with a mark at the mean of all brokers."""
    filled = round(min(max(percent, 0.0), _FULL) / _FULL * width)
    cells = ["█"] * filled + ["·"] * (width - filled)
    if mean is not None:
        cells[min(int(mean / _FULL * width), width - 1)] = "│"
    return "".join(cells)


def _sum_up(seen: Json, width: int) -> list[str]:
    if seen["mean"] is None:
        return ["no brokers are registered"] if not seen["brokers"]["id"] else []
    lowest, highest = seen["lowerBound"], max(seen["brokers"]["highest"], default=0.0)
    # The bound is from the last round. The load may have fallen below it since.
    bound = f"; best possible {format_number(lowest)} %" if lowest is not None and lowest <= highest else ""
    return wrap_text(f"mean {format_number(seen['mean'])} % (│){bound}", width)


def _last_moves(seen: Json, width: int) -> list[str]:
    moves = seen["lastMoves"]
    if not moves:
        return []
    lines = ["", "last moves:"]
    for entry in moves:
        failed = ", failed" if entry["kind"] != "unload" else ""
        way = f"{entry['subject']}  {entry['source']} -> {entry['destination'] or 'nobody'}"
        text = f"{format_relative(entry['at'], seen['at'])}  {way}  {entry['reason'].replace('_', ' ')}{failed}"
        lines += wrap_text(text, width, "  ")
    return lines
