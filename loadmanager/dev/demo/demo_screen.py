"""Output of the demo: events and rates as lines, and the summary. The page of a node shows the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from loadmanager.dev.demo.demo_monitor import DemoEvent, DemoState
from loadmanager.dev.demo.demo_summary import DemoSummary
from loadmanager.util import clock

T = TypeVar("T")
_LOOK_S = 0.5
_LINE_INTERVAL_S = 5.0


async def show_lines(state: DemoState, console: Console, run: asyncio.Task[T]) -> T:
    """Print each event as it comes, and a status line every few seconds, until `run` has ended; its result."""
    printed = 0
    next_line_s = clock.now_s() + _LINE_INTERVAL_S
    while not run.done():
        await asyncio.wait({run}, timeout=_LOOK_S)
        for event in state.events[printed:]:
            console.print(event_line(state, event), highlight=False, markup=False, soft_wrap=True)
        printed = len(state.events)
        if clock.now_s() >= next_line_s and state.brokers:
            next_line_s = clock.now_s() + _LINE_INTERVAL_S
            console.print(status_line(state), highlight=False, markup=False, soft_wrap=True)
    return await run


def event_line(state: DemoState, event: DemoEvent) -> str:
    return f"{event.at_s - state.started_s:7.1f} s  {event.text}"


def status_line(state: DemoState) -> str:
    rates = "  ".join(f"{row.name} {row.messages_per_s:.0f}/s" for row in state.brokers)
    return f"{clock.now_s() - state.started_s:7.1f} s  leader {state.leader_name or 'none'}  {rates}"


def print_summary(summary: DemoSummary, console: Console) -> None:
    table = Table(box=None, show_header=False, title="summary", title_justify="left")
    table.add_column(style="dim")
    table.add_column()
    for name, value in summary_rows(summary):
        table.add_row(name, value)
    console.print(table)
    for failure in summary.told_failures:
        console.print(f"FAILED: {failure}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    if not summary.failures:
        console.print("No topic ever had two owners, none ended without one, and every message is accounted for.")


def summary_rows(summary: DemoSummary) -> Iterator[tuple[str, str]]:
    messages = summary.messages
    for name, ratio in summary.imbalance.items():
        yield f"imbalance {name.replace('_', ' ')} (max/mean)", "no traffic" if ratio is None else f"{ratio:.2f}"
    yield "bundles moved", str(summary.bundles_moved)
    for cause, gap in summary.gaps.items():
        times = f"p50 {gap.p50_s:.3f} s, p99 {gap.p99_s:.3f} s, max {gap.max_s:.3f} s"
        yield f"time without an owner, {cause.replace('_', ' ')}", f"{times} ({gap.gaps} times, {gap.topics} topics)"
    if summary.leader_failover is not None:
        failover = summary.leader_failover
        yield (
            "leader killed, until the next assignment",
            f"{failover.to_next_assignment_s:.2f} s (epoch {failover.epoch_before} to {failover.epoch_after})",
        )
    yield "assignments probed", f"{summary.assignments_probed:,}"
    yield "messages published", f"{messages.published:,}"
    yield "acknowledged", f"{messages.acknowledged:,}"
    yield "delivered", f"{messages.delivered:,} and {messages.duplicates:,} duplicates"
    yield "lost with the killed broker", f"{messages.lost_with_killed_broker:,}"
    yield "dropped by a broker that said so", f"{messages.dropped_by_broker:,}"
    yield "unaccounted for", f"{messages.unaccounted:,}"
    yield "topics with two owners at once", str(len({overlap.topic for overlap in summary.two_owners}))
    yield "topics without an owner at the end", f"{len(summary.topics_without_owner)} of {summary.topics}"
    yield "CPU, all processes", f"{summary.cpu_cores_used:.2f} cores"
