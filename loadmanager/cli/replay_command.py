"""`loadmanager replay`: repeat every recorded decision, or simulate the recorded load with other settings.

Also the reader of a recorded range: its first checkpoint, its items and its settings.

Exit codes: 0 all decisions are equal, or the simulation has ended; 1 a difference, or an unusable history; 2 wrong
usage.
"""

from __future__ import annotations

import heapq
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.cli.service_runner import given_settings
from loadmanager.cli.text.numbers import From, To, format_moment, read_range
from loadmanager.cli.text.text_tables import write_lines
from loadmanager.config.dynamic_settings import settings_recorded
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.errors import ConfigurationError, HistoryError, HistoryFileError, LoadManagerError, ScenarioError
from loadmanager.history.gaps import find_end, last_epoch
from loadmanager.history.reader import History, OnFault
from loadmanager.history.table_schemas import DECISIONS, EVENTS, MOVES, OPERATIONS
from loadmanager.lab.replay.replayed_decisions import Difference
from loadmanager.lab.replay.replayer import Item, ReplayOutcome, Row
from loadmanager.lab.replay.replayer import replay as verify_decisions
from loadmanager.lab.whatif.range_figures import Comparison, what_if
from loadmanager.util.logging import configure_logging


def replay(
    url: Annotated[str, typer.Option("--history", metavar="URL", help="Directory or URL of the history.")],
    from_: From = None,
    to: To = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Simulate with this setting; may be repeated."),
    ] = None,
    strategy: Annotated[str, typer.Option(metavar="NAME", help="Simulate with this strategy, or NAME+NAME.")] = "",
    step_s: Annotated[
        float,
        typer.Option("--step", min=1, help="Seconds per simulated step, for --set and --strategy."),
    ] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Repeat every recorded decision and compare; with --set or --strategy, simulate the load with other settings."""
    from_ms, to_ms = read_range(from_, to)
    overrides = given_settings(settings or ())
    configure_logging(json_lines=False, level="error")
    try:
        history = History.existing(url)
        start = find_start(history, from_ms, _report_left_out)
        if overrides or strategy:
            with _progress("simulated") as advance:
                before = settings_at(history, start, _report_left_out)
                compared = what_if(
                    history,
                    from_ms or start.at_ms,
                    to_ms,
                    before,
                    overrides,
                    strategy,
                    step_s,
                    advance,
                    _report_left_out,
                )
            write_lines([_json(asdict(compared))] if as_json else _comparison_lines(compared))
            return
        outcome = _verify(history, start, to_ms)
    except (ConfigurationError, ScenarioError) as error:
        fail(str(error), EXIT_CONFIGURATION)
    except LoadManagerError as error:
        fail(str(error), EXIT_FAILURE)
    write_lines([_json(_record(outcome))] if as_json else _outcome_lines(outcome, start))
    if not outcome.is_equal:
        raise SystemExit(EXIT_FAILURE)


def _verify(history: History, start: Start, to_ms: int | None) -> ReplayOutcome:
    faults: list[str] = []

    def left_out(error: HistoryFileError) -> None:
        _report_left_out(error)
        faults.append(str(error))

    def find_unended() -> tuple[int, int] | None:
        end = find_end(history, last_epoch(history) + 1, 0)
        return None if end is None or end.ended else (end.epoch, end.since_ms)

    items = _with_progress(recorded_items(history, start, to_ms, left_out))
    outcome = verify_decisions(items, planner_settings_of, find_unended)
    outcome.is_complete = outcome.is_complete and not faults
    return outcome


def _with_progress(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items, and show their number on standard error, if that is a terminal."""
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("rows", total=None)
        for number, item in enumerate(items):
            if not number % 100:
                bar.update(task, description=f"{format_moment(item.at_ms)}, {number} rows")
            yield item


@contextmanager
def _progress(what: str) -> Iterator[Any]:
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def _report_left_out(error: HistoryFileError) -> None:
    print(f"left out: {error}", file=sys.stderr)


def _outcome_lines(outcome: ReplayOutcome, start: Start) -> list[str]:
    """Format the outcome as sentences."""
    lines = [f"from the checkpoint of {format_moment(start.at_ms)} (epoch {start.epoch}, sequence {start.sequence})"]
    lines += [f"note: {note}" for note in outcome.notes]
    lines += [f"not compared: {count} x {why}" for why, count in sorted(outcome.left_out.items())]
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.compared.items()))
    lines.append(f"{outcome.inputs} inputs applied; {sum(outcome.compared.values())} compared: {kinds or 'nothing'}")
    if outcome.difference is not None:
        lines.append(_sentence(outcome.difference))
    elif outcome.is_complete:
        lines.append("every decision is the same, bit for bit")
    else:
        lines.append("no difference in what is there; but rows are missing that nothing says are")
    return lines


def _sentence(found: Difference) -> str:
    where = f"{format_moment(found.at_ms)}, epoch {found.epoch}, sequence {found.sequence}"
    subject = f" about {found.subject}" if found.subject else ""
    what = f"{found.kind}{subject}" + (f", {found.field}" if found.field else "")
    return f"DIFFERENT at {where}: {what}: recorded {_cut(found.recorded)}, replayed {_cut(found.replayed)}"


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."  # noqa: PLR2004 - a line or two


def _record(outcome: ReplayOutcome) -> dict[str, Any]:
    return {
        "equal": outcome.is_equal,
        "compared": dict(outcome.compared),
        "leftOut": dict(outcome.left_out),
        "inputs": outcome.inputs,
        "notes": outcome.notes,
        "difference": None if outcome.difference is None else asdict(outcome.difference),
    }


def _comparison_lines(compared: Comparison) -> list[str]:
    table = Table(
        "", "observed", "simulated as recorded", f"simulated with {compared.change}", box=None, pad_edge=False
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for label, key, form in (
        ("imbalance, mean", "imbalance", "{:.3f}"),
        ("worst broker", "worst_usage", "{:.0%}"),
        ("moves", "moves", "{:.0f}"),
        ("moved load, MiB/s", "moved_mib_per_s", "{:.2f}"),
        ("  again within 2 h", "again_mib_per_s", "{:.2f}"),
        ("  back within 4 h", "back_mib_per_s", "{:.2f}"),
    ):
        table.add_row(label, *(form.format(getattr(each, key)) for each in compared.figures()))
    lines = [f"{format_moment(compared.from_ms)} to {format_moment(compared.to_ms)}, in steps of {compared.step_s:g} s"]
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table)
    return [*lines, *captured.get().splitlines()]


def _json(content: Mapping[str, Any]) -> str:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS, default=str).decode()


_CLOCK_SLACK_MS = 3_600_000
"""Tolerance for clocks that were set back: a row may be dated this much before its predecessors."""


@dataclass(frozen=True, slots=True)
class Start:
    """The checkpoint at which a replay begins."""

    at_ms: int
    epoch: int
    sequence: int


def find_start(history: History, from_ms: int | None, on_fault: OnFault | None = None) -> Start:
    """Return the last checkpoint at or before that time, else the first one after it.

    Raises `HistoryError` if there is none.
    """
    found: Start | None = None
    for row in history.rows(EVENTS, columns=["at_ms", "epoch", "sequence", "kind"], on_fault=on_fault):
        if row["kind"] != "checkpoint" or not row["epoch"]:
            continue
        if found is not None and (from_ms is None or row["at_ms"] > from_ms):
            break
        found = Start(row["at_ms"], row["epoch"], row["sequence"])
    if found is None:
        raise HistoryError(f"{history.directory}: no leader has recorded a checkpoint here: nothing can be replayed")
    return found


def recorded_items(
    history: History, start: Start, to_ms: int | None, on_fault: OnFault | None = None
) -> Iterator[Item]:
    """Yield all items from the checkpoint on, up to but excluding `to_ms`, in the order of (epoch, sequence)."""
    from_ms = start.at_ms - _CLOCK_SLACK_MS
    tables = [_rows(history, table, from_ms, to_ms, on_fault) for table in (EVENTS, DECISIONS, MOVES, OPERATIONS)]
    for item in heapq.merge(*tables, history.reports(from_ms, to_ms, on_fault), key=_place):
        if _place(item) >= (start.epoch, start.sequence):
            yield item


def planner_settings_of(texts: Mapping[str, str]) -> PlannerSettings:
    """Return the recorded settings, without keys that this version does not support."""
    return settings_recorded(texts).planner_settings()


def _rows(history: History, table: str, from_ms: int, to_ms: int | None, on_fault: OnFault | None) -> Iterator[Item]:
    for row in history.rows(table, from_ms, to_ms, on_fault=on_fault):
        yield Row(row["at_ms"], row["epoch"], row["sequence"], table, row)


def _place(item: Item) -> tuple[int, int]:
    return item.epoch, item.sequence


def settings_at(history: History, start: Start, on_fault: OnFault | None) -> Settings:
    """Return the settings recorded with the checkpoint. Raises `HistoryError`."""
    for row in history.rows(EVENTS, start.at_ms, start.at_ms + 1, on_fault=on_fault):
        if (row["epoch"], row["sequence"]) == (start.epoch, start.sequence):
            return settings_recorded(json.loads(row["body"])["settings"])
    raise HistoryError(f"{history.directory}: the checkpoint of epoch {start.epoch} cannot be read")
