"""`loadmanager monitor`: the load of every broker, live, from the metadata store.

Output is a live screen, text tables in the layout of Pulsar's monitor, or JSON lines.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loadmanager.cli.broker_monitor import (
    CLUSTER,
    BrokerReadings,
    Figure,
    Reading,
    TableRow,
    Update,
    broker_rows,
    cluster_rows,
)
from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.cli.service_runner import existing_store
from loadmanager.cli.text.text_tables import write_nowhere
from loadmanager.config import Settings, load_settings
from loadmanager.errors import ConfigurationError, StoreError
from loadmanager.util import clock
from loadmanager.util.logging import configure_logging


def monitor(
    metadata_store_url: Annotated[
        str | None, typer.Option(help="ZooKeeper and chroot, zk:host:port/chroot; else as configured.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of a node; see config/loadmanager.yaml.")] = None,
    broker: Annotated[list[str] | None, typer.Option(help="Only this broker (host:port); may be repeated.")] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Redraw at least every so many seconds.")] = 60.0,
    once: Annotated[bool, typer.Option("--once", help="Print everything once and exit.")] = False,  # noqa: FBT002 - a flag
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per update.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Show what every broker reports: on a terminal redrawn in place, else a table for each broker that changed."""
    configure_logging(json_lines=False, level="error")
    try:
        settings = load_settings(Settings, config)
        if metadata_store_url is not None:
            settings = settings.model_copy(update={"metadata_store_url": metadata_store_url})
        asyncio.run(_monitor(settings, broker or [], interval, once=once, as_json=as_json))
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
    except StoreError as error:
        fail(f"metadataStoreUrl {settings.metadata_store_url}: {error}", EXIT_FAILURE)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        write_nowhere()


async def _monitor(settings: Settings, brokers: list[str], interval_s: float, *, once: bool, as_json: bool) -> None:
    async with existing_store(settings) as store:
        readings = BrokerReadings(store, brokers)
        if once:
            _print(await readings.read(), as_json=as_json, complete=True)
        elif as_json or not sys.stdout.isatty():
            await _stream(readings, interval_s, as_json=as_json)
        else:
            await _draw(readings, interval_s)


async def _stream(readings: BrokerReadings, interval_s: float, *, as_json: bool) -> None:
    """Print what changed whenever it does, and everything at the start and at every interval."""
    complete_at_s = time.monotonic()
    async for update in readings.updates(interval_s):
        complete = time.monotonic() >= complete_at_s
        if complete:
            complete_at_s = time.monotonic() + interval_s
        _print(update, as_json=as_json, complete=complete)


async def _draw(readings: BrokerReadings, interval_s: float) -> None:
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        async for update in readings.updates(interval_s):
            live.update(render_live(update, datetime.now(UTC).astimezone()), refresh=True)


def _print(update: Update, *, as_json: bool, complete: bool) -> None:
    if as_json:
        print(render_json(update, clock.now_ms()).decode(), flush=True)
        return
    if update.problem is not None:
        print(f"not current: {update.problem}", file=sys.stderr, flush=True)
        return
    for broker_id in sorted(update.changed - update.readings.keys()):
        print(f"Broker {broker_id} is gone\n")
    for broker_id, reading in update.readings.items():
        if complete or broker_id in update.changed:
            print(render_broker(reading), end="\n\n")
    if complete:
        print(render_cluster(list(update.readings.values())), end="\n\n")
    sys.stdout.flush()


_HEADING = "bold"
_QUIET = "dim"
_WRONG = "bold red"


def render_live(update: Update, at: datetime) -> RenderableType:
    """All brokers, then a table for each; what does not fit the screen is cut off at the bottom."""
    readings = list(update.readings.values())
    parts: list[RenderableType] = [_state(update, at), _cluster(readings)]
    parts += [Text(f"! {fault}", style=_WRONG) for reading in readings for fault in reading.faults]
    parts += [_broker(reading) for reading in readings]
    return Group(*parts)


def _state(update: Update, at: datetime) -> Text:
    if update.problem is not None:
        return Text(f"{at:%H:%M:%S}  not current: {update.problem}", style=_WRONG)
    return Text(f"{at:%H:%M:%S}  {len(update.readings)} brokers", style=_QUIET)


def _cluster(readings: Sequence[Reading]) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style=_HEADING)
    for index, heading in enumerate(CLUSTER):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    for row in cluster_rows(readings):
        style = _HEADING if row.broker == "TOTAL" else None
        table.add_row(Text(row.broker), *map(text_of, row.figures), style=style)
    return table


def _broker(reading: Reading) -> Table:
    rows = broker_rows(reading)
    table = Table(box=SIMPLE_HEAD, title=Text(reading.broker_id), title_justify="left", show_header=False)
    table.add_column(no_wrap=True, style=_HEADING)
    for _ in rows[0].headings:
        table.add_column(no_wrap=True, justify="right")
    for row in rows:
        table.add_row(row.label, *row.headings, style=_QUIET)
        table.add_row("", *map(text_of, row.figures))
    return table


_WIDTH = 14
_JSON_KEYS = {
    "SYSTEM": ("cpuPercent", "memoryPercent", "directMemoryPercent", "bwInPercent", "bwOutPercent", "maxPercent"),
    "RAW SYSTEM": ("cpuPercent", "memoryPercent", "directMemoryPercent", "bwInPercent", "bwOutPercent", "maxPercent"),
    "ALLOC SYSTEM": ("cpuPercent", "memoryPercent", "directMemoryPercent", "bwInPercent", "bwOutPercent", "maxPercent"),
    "COUNT": ("topics", "bundles", "producers", "consumers", "bundlesGained", "bundlesLost"),
}
_MESSAGE_KEYS = ("msgRateIn", "msgRateOut", "msgRate", "kbPerSIn", "kbPerSOut", "kbPerS")
_CLUSTER_KEYS = ("bundles", "msgRate", "longTermMsgRate", "kbPerS", "maxPercent")


def text_of(figure: Figure) -> str:
    """Two decimals for what is measured, none for what is counted, `-` for what is not known."""
    if figure is None:
        return "-"
    return f"{figure:.2f}" if isinstance(figure, float) else str(figure)


def render_broker(reading: Reading) -> str:
    """One broker's table under its id, and what is wrong with its znodes."""
    lines = [f"Broker {reading.broker_id}"]
    cells = [cells for row in broker_rows(reading) for cells in _two_lines(row)]
    lines += _framed([_line(row) for row in cells])
    return "\n".join([*lines, *_faults([reading])])


def render_cluster(readings: Sequence[Reading]) -> str:
    """The table of all brokers, the column of their ids as wide as the longest, and what is wrong with their znodes."""
    rows = cluster_rows(readings)
    width = max(_WIDTH, *(len(row.broker) + 1 for row in rows))
    lines = [_line(CLUSTER, width), *(_line((row.broker, *map(text_of, row.figures)), width) for row in rows)]
    return "\n".join(["All brokers", *_framed(lines), *_faults(readings)])


def render_json(update: Update, at_ms: int) -> bytes:
    """One line of JSON for an update; figures that are not known are null."""
    readings = list(update.readings.values())
    total = cluster_rows(readings)[-1]
    return orjson.dumps(
        {
            "at": at_ms,
            "problem": update.problem,
            "brokers": [_json_of(reading) for reading in readings],
            "total": dict(zip(_CLUSTER_KEYS, total.figures, strict=True)),
        }
    )


def _json_of(reading: Reading) -> dict[str, object]:
    rows = {
        row.label.lower(): dict(zip(_JSON_KEYS.get(row.label, _MESSAGE_KEYS), row.figures, strict=True))
        for row in broker_rows(reading)
    }
    return {"brokerId": reading.broker_id, **rows, "faults": list(reading.faults)}


def _two_lines(row: TableRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (row.label, *row.headings), ("", *map(text_of, row.figures))


def _line(cells: Iterable[str], first_width: int = _WIDTH) -> str:
    first, *others = cells
    return f"||{first:<{first_width}}|" + "|".join(f"{cell:<{_WIDTH}}" for cell in others) + "||"


def _framed(lines: Sequence[str]) -> list[str]:
    edge = "=" * max(len(line) for line in lines)
    return [edge, *lines, edge]


def _faults(readings: Iterable[Reading]) -> list[str]:
    return [f"! {fault}" for reading in readings for fault in reading.faults]
