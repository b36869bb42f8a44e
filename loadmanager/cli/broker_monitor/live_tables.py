"""The tables on a terminal, redrawn in place."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmanager.cli.broker_monitor.broker_readings import Reading, Update
from loadmanager.cli.broker_monitor.broker_tables import CLUSTER, broker_rows, cluster_rows
from loadmanager.cli.broker_monitor.plain_tables import text_of

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
