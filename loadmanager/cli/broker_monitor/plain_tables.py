"""Broker tables as text, in the layout of Pulsar's monitor, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from loadmanager.cli.broker_monitor.broker_readings import Reading, Update
from loadmanager.cli.broker_monitor.broker_tables import CLUSTER, Figure, TableRow, broker_rows, cluster_rows

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
