"""`loadmanager demo`: a cluster of real processes on this machine, with a hot spot and failures."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadmanager.cli.exit_codes import EXIT_FAILURE, EXIT_INTERRUPTED, fail
from loadmanager.cli.text.text_tables import find_program
from loadmanager.dev.demo.demo_monitor import DemoState, print_summary, show_lines
from loadmanager.dev.demo.demo_settings import DemoSettings
from loadmanager.dev.demo.director import run_demo
from loadmanager.dev.demo.evidence import DemoSummary
from loadmanager.errors import LoadManagerError

_HISTORY = "demo-history"


def demo(
    duration: Annotated[float, typer.Option(min=30, help="Seconds from the start of the traffic to its end.")] = 90,
    forever: Annotated[bool, typer.Option(help="Continue after the script until Ctrl-C.")] = False,  # noqa: FBT002 - a flag
    as_json: Annotated[  # noqa: FBT002 - a command-line flag
        bool, typer.Option("--json", help="Print only the summary, as JSON, to standard output.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for configurations and logs; default: a temporary one.")
    ] = None,
) -> None:
    """Start ZooKeeper, nodes, brokers with agents, and clients; move a hot spot, kill a leader and a broker; measure.

    Exits with 1 if a topic had two owners at once or ended without one, or if no node took over from the leader.
    """
    console = Console(stderr=as_json)
    history = _history_of(folder)
    settings = DemoSettings(duration_s=duration)
    try:
        summary = asyncio.run(_run(settings, console, folder, history, forever=forever))
    except LoadManagerError as error:
        fail(str(error), EXIT_FAILURE)
    except asyncio.CancelledError:
        fail("stopped before everything had started", EXIT_INTERRUPTED)
    if as_json:
        print(json.dumps(summary.to_record(), indent=2))
    else:
        print_summary(summary, console)
    console.print("the leaders recorded what they saw and did; replay their decisions with", style="dim")
    replay = f"{find_program()} replay --history {shlex.quote(str(history))}"
    console.print(f"  {replay}", soft_wrap=True, highlight=False)
    if not forever and not as_json:
        console.print("to look around while it goes on:", style="dim")
        console.print("  make demo ARGS=--forever", highlight=False)
    if summary.failures:
        sys.exit(EXIT_FAILURE)


def _history_of(folder: Path | None) -> Path:
    """Create the history folder of this run. It is kept after the run."""
    return (folder or Path()) / _HISTORY / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}"


async def _run(
    settings: DemoSettings, console: Console, folder: Path | None, history: Path, *, forever: bool
) -> DemoSummary:
    """Run the demo and its view. The first Ctrl-C stops the traffic and sums up; the next ends everything at once."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    state = DemoState()
    run = asyncio.create_task(run_demo(settings, state, stopped, folder=folder, forever=forever, history=history))
    show = asyncio.create_task(show_lines(state, console, run))

    def stop() -> None:
        if state.is_started:
            stopped.set()
        else:
            show.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return await show
