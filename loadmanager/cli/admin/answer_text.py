"""Text of answers: lines and tables for any answer, and layouts for plans, drains and balance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import compress
from typing import Any

import orjson
from rich.cells import cell_len

from loadmanager.cli.text.numbers import format_duration, format_number, format_quantity, format_relative, format_size
from loadmanager.cli.text.text_tables import format_pairs, format_table, get_terminal_width, style_text, wrap_text

Json = Mapping[str, Any]
"""JSON object of an answer, with its keys as sent."""

FormatLines = Callable[[Json, int | None], list[str]]
"""Layout of an answer for a terminal of this width; None: without a limit."""

RESOURCES = {
    "cpu": "cpu",
    "memory": "memory",
    "directMemory": "direct memory",
    "bandwidthIn": "net in",
    "bandwidthOut": "net out",
}
"""Words for the resources of a broker, by key."""

_TIMES = frozenset({"at", "draining", "heldOff", "lastAt", "lastUpdate", "since", "startTimestamp", "takenAt"})
"""Keys whose values are times in epoch milliseconds, or objects of such times."""

_SENTENCE = "sentence"
_IN_SENTENCE = frozenset({"why"})
"""Keys that are left out if the row has a sentence, which contains them."""


def show(content: object) -> None:
    """Print an answer: values in lines, an object as pairs, a list of objects as a table."""
    match content:
        case None:
            return
        case [dict(), *_]:
            _print_rows([row for row in content if isinstance(row, dict)])
        case list():
            for entry in content:
                print(_format_value(entry))
        case dict() if content and all(isinstance(value, dict) for value in content.values()):
            _print_rows([{"name": name, **value} for name, value in content.items()])
        case dict():
            _print_object(content)
        case _:
            print(_format_value(content).removesuffix("\n"))


def show_lines(content: object, format_lines: FormatLines) -> None:
    """Print an answer as `format_lines` formats it, or as `show` does if a node of another version sent it."""
    try:
        assert isinstance(content, Mapping)
        lines = format_lines(content, get_terminal_width())
    except (AssertionError, KeyError, TypeError):
        show(content)
        return
    _print_lines(lines)


def _print_object(content: dict[str, object]) -> None:
    """Print single values first, then each list of objects as a table."""
    values, lists = [], {}
    for key, value in content.items():
        match value:
            case [dict(), *_]:
                lists[key] = [row for row in value if isinstance(row, dict)]
            case dict() if value and _SENTENCE not in value:
                inner_key = key if key in _TIMES else ""
                values += [
                    (f"{key}.{inner}", _format_value(figure, inner_key or inner)) for inner, figure in value.items()
                ]
            case _:
                values.append((key, _format_value(value, key)))
    _print_lines(format_pairs(values, get_terminal_width()) or [""])
    for key, rows in lists.items():
        print(f"\n{key}:")
        _print_rows(rows)


def _print_rows(rows: list[dict[str, object]]) -> None:
    """Print a table without empty columns. Sentences are too long for a column and follow below their rows."""
    width = get_terminal_width()
    keys = list(dict.fromkeys(key for row in rows for key in row if _format_value(row[key], key)))
    if _SENTENCE not in keys:
        _print_lines(_table(keys, rows, width))
        return
    keys = [key for key in keys if key != _SENTENCE and key not in _IN_SENTENCE]
    lines = _table(keys, rows, None) if keys else [""] * len(rows)
    if width is not None and max(map(cell_len, lines)) > width:
        _print_lines(_table([*keys, _SENTENCE], rows, width))
        return
    heading = len(lines) - len(rows)
    _print_lines(lines[:heading])
    for line, row in zip(lines[heading:], rows, strict=True):
        _print_lines([line] if keys else [])
        if sentence := _format_value(row.get(_SENTENCE)):
            _print_lines(wrap_text(sentence, width, "  "))


def _table(keys: list[str], rows: list[dict[str, object]], width: int | None) -> list[str]:
    cells = [[" ".join(_format_value(row.get(key), key).splitlines()) for key in keys] for row in rows]
    return format_table(keys, cells, width)


def _format_value(value: object, key: str = "") -> str:
    """Format a value for a line or a cell; `key` decides the format."""
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
            text = ", ".join(map(_format_value, entries))
        case {"sentence": str(sentence), **others}:
            change = others.get("change")
            text = f"{sentence}; to change it: {change}" if change else sentence
        case _:
            text = orjson.dumps(value).decode() if value != {} else ""
    return text


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        print(line)


_INDENT = "  "
_PLANNED = "planned"


def find_execution(content: object) -> str | None:
    """Return the command that executes a computed plan, None if it moves nothing."""
    if isinstance(content, Mapping) and content.get("state") == "computed" and content.get("steps"):
        return f"plans execute {content['hash']}"
    return None


def summarize_drain(progress: Json) -> str:
    if progress["state"] == "done":
        moved = format_quantity(progress["moved"], "bundle")
        return f"{progress['broker']} is drained: {moved} moved; it can be stopped"
    if progress["state"] == "returning":
        waiting = [f"; {each['bundle']}: {each['why']}" for each in progress["blocked"][:1]]
        return f"{progress['broker']} gets its bundles back: {progress['bundlesLeft']} left{''.join(waiting)}"
    left, eta_s = format_quantity(progress["bundlesLeft"], "bundle"), progress["etaS"]
    estimate = (
        f", about {format_duration(eta_s)} to go at {format_number(progress['ratePerS'])}/s"
        if eta_s is not None
        else ""
    )
    failed = f", {progress['failed']} not let go" if progress["failed"] else ""
    state = "is blocked" if progress["state"] == "blocked" else "is being drained"
    return f"{progress['broker']} {state}: {left} left, {progress['moved']} moved{failed}{estimate}"


def list_blocked(progress: Json) -> list[str]:
    """List the bundles that stay, with the reasons."""
    blocked = progress["blocked"]
    more = progress["bundlesLeft"] - len(blocked)
    lines = [f"{_INDENT}{each['bundle']}: {each['why']}" for each in blocked]
    return [*lines, *([f"{_INDENT}and {more} more"] if blocked and more > 0 else [])]


def drain_lines(content: Json, width: int | None) -> list[str]:
    """Format the progress of a drain, and the reasons why bundles stay."""
    since = f" (begun {format_relative(content['since'], time.time() * 1000)})"
    return [*_bold(f"{summarize_drain(content)}{since}.", width), *list_blocked(content)]


def plan_lines(content: Json, width: int | None) -> list[str]:
    """Format the moves of a plan, their effect, and its distance from the best possible."""
    lines = _bold(_summarize(content), width)
    lines += wrap_text(f"{content['certificate']['sentence']}.", width, _INDENT)
    if content["steps"]:
        lines += ["", *_steps(content["steps"], width), "", *_changed_brokers(content["brokers"], width)]
    for verdict in content["verdicts"]:
        lines += wrap_text(f"{verdict['subject']}: {verdict['sentence']}", width)
    state = f"{content['state']} {format_relative(content['at'], time.time() * 1000)}, in epoch {content['epoch']}"
    return [*lines, "", *format_pairs([("state", state), ("hash", content["hash"])], width)]


def _summarize(content: Json) -> str:
    effect = content["effect"]
    if not content["steps"]:
        return f"Plan ({content['kind']}): nothing to move; imbalance {format_number(effect['imbalanceBefore'])}."
    moved = f"{format_number(effect['loadMovedPercent'])} % of the load ({format_size(effect['loadMovedBytesPerS'])}/s)"
    imbalance = f"{format_number(effect['imbalanceBefore'])} -> {format_number(effect['imbalanceAfter'])}"
    disturbed = effect["clientsDisturbed"]
    clients = "1 client reconnects" if disturbed == 1 else f"{disturbed} clients reconnect"
    bundles = f"{effect['bundlesMoved']} {'bundle moves' if effect['bundlesMoved'] == 1 else 'bundles move'}"
    what = f"{bundles}, {moved}; {clients}; imbalance {imbalance}"
    return f"Plan ({content['kind']}): {what}."


def _steps(steps: list[Json], width: int | None) -> list[str]:
    """Format the moves, with outcomes if there are any."""
    rows = [
        [
            each["source"],
            each["destination"],
            each["bundle"],
            "" if each["loadBytesPerS"] is None else f"{format_size(each['loadBytesPerS'])}/s",
            "" if each["clients"] is None else str(each["clients"]),
            each["reason"].replace("_", " "),
            "" if each["outcome"] == _PLANNED else each["outcome"].replace("_", " "),
            each["error"] or "",
        ]
        for each in steps
    ]
    return _plan_table(["from", "to", "bundle", "load", "clients", "reason", "outcome", "error"], rows, width)


def _changed_brokers(brokers: Json, width: int | None) -> list[str]:
    columns = zip(brokers["id"], brokers["before"], brokers["after"], strict=True)
    changed = (each for each in columns if each[1] != each[2])
    rows = [[name, f"{format_size(before)}/s", f"{format_size(after)}/s"] for name, before, after in changed]
    return _plan_table(["broker", "load before", "after"], rows, width) if rows else []


def plans_lines(content: Json, width: int | None) -> list[str]:
    now_ms = time.time() * 1000
    rows = [
        [
            format_relative(each["at"], now_ms),
            each["kind"],
            each["state"],
            f"{each['done']} of {each['bundlesMoved']}",
            f"{format_number(each['imbalanceBefore'])} -> {format_number(each['imbalanceAfter'])}",
            each["hash"],
            each["reason"] or "",
        ]
        for each in content["plans"]
    ]
    headings = ["computed", "kind", "state", "moves done", "imbalance", "hash", "stopped by"]
    return _plan_table(headings, rows, width) if rows else ["No plans."]


def execution_lines(content: Json, width: int | None) -> list[str]:
    """Format the number of executed moves of a plan, and the outcome of each."""
    steps = content["steps"]
    reason = f"; stopped: {content['reason']}" if content["reason"] else ""
    lines = _bold(f"{content['executed']} of {len(steps)} moves executed{reason}.", width)
    return [*lines, "", *_steps(steps, width)] if steps else lines


def balance_lines(content: Json, width: int | None) -> list[str]:
    """Format the balance of the load, and the effect of losing a broker or a failure domain."""
    lines = _bold(f"{content['now']['sentence']}.", width)
    if content["lastRound"]:
        lines += wrap_text(f"Last round of shedding: {content['lastRound']['sentence']}.", width)
    for what, loss in (("broker", content["worstBrokerLoss"]), ("failure domain", content["worstDomainLoss"])):
        lines += [] if loss is None else wrap_text("; ".join(_loss_parts(what, loss)) + ".", width)
    return lines


def churn_lines(content: Json, width: int | None) -> list[str]:
    """Format the load that shedding has moved recently, and what the circuit breaker has stopped."""
    pairs = [
        (f"moved {what}", f"{format_number(content[key])} % of the load")
        for what, key in (
            ("within the hour", "movedWithinHourPercent"),
            ("again within 2 h", "movedAgainPercent"),
            ("back within 4 h", "movedBackPercent"),
        )
    ]
    stopped_s, frozen = content["sheddingStoppedSecondsLeft"], content["frozenBundles"]
    stops = [f"has stopped shedding for {format_duration(stopped_s)} more"] if content["sheddingStopped"] else []
    stops += [f"keeps {format_quantity(len(frozen), 'bundle')} in place"] if frozen else []
    lines = format_pairs([*pairs, ("breaker", "; ".join(stops) or "has stopped nothing")], width)
    rows = [[each["bundle"], format_duration(each["secondsLeft"])] for each in frozen]
    return [*lines, "", *format_table(["kept bundle", "for"], rows, width)] if rows else lines


def _loss_parts(what: str, loss: Json) -> Iterator[str]:
    borne = "can be borne" if loss["isBorne"] else "cannot be borne"
    yield f"Loss of the worst {what}, {loss['lost']}, {borne}"
    placed, bound = (format_number(loss[key]) for key in ("placedPercent", "boundPercent"))
    yield f"highest usage {placed} %, best possible {bound} %"
    if loss["stranded"]:
        yield f"{format_quantity(loss['stranded'], 'bundle')} that no broker may own"


def _plan_table(headings: list[str], rows: list[list[str]], width: int | None) -> list[str]:
    """Format a table without its empty columns."""
    kept = [any(column) for column in zip(*rows, strict=True)]
    return format_table([*compress(headings, kept)], [[*compress(row, kept)] for row in rows], width)


def _bold(text: str, width: int | None) -> list[str]:
    return [style_text(line, "bold") for line in wrap_text(text, width)]
