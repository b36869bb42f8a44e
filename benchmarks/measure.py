"""Shared code of the benchmarks: figures with their targets, and a description of the machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
"""Benchmarks import `support`, the builders and clusters of the tests, after this module."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure. `target` is its limit; None for a figure that is only for comparison."""

    what: str
    figure: float
    unit: str
    target: float | None = None
    at_least: bool = False

    @property
    def is_met(self) -> bool | None:
        if self.target is None:
            return None
        return self.figure >= self.target if self.at_least else self.figure <= self.target


def show(title: str, rows: Sequence[Measured]) -> None:
    """Print one table: each figure, its target, and whether it was met."""
    table = Table(title=title, min_width=80, title_justify="left", title_style="bold")
    for heading, justify in (("", "left"), ("measured", "right"), ("target", "right"), ("", "left")):
        table.add_column(heading, justify="right" if justify == "right" else "left", no_wrap=True)
    for row in rows:
        target = "" if row.target is None else f"{'>=' if row.at_least else '<='} {row.target:g} {row.unit}".rstrip()
        verdict = {None: "", True: "met", False: "MISSED"}[row.is_met]
        table.add_row(row.what, f"{_text(row.figure)} {row.unit}".rstrip(), target, verdict)
    Console(width=100).print(table)
    print()


def describe_machine() -> str:
    """Describe the machine: processor, usable cores, memory, load, and relevant versions."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("aiohttp", "uvloop", "numpy", "orjson", "pydantic"))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    load = ", ".join(f"{figure:.2f}" for figure in os.getloadavg())
    return (
        f"{_processor()}, {cores} cores, {memory_gib:.0f} GiB, {platform.system()} {platform.release()}\n"
        f"Python {sys.version.split()[0]}, {packages}\n"
        f"load average before the run: {load}"
    )


def percentile(sorted_values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of ascending values."""
    rank = max(1, -(-len(sorted_values) * percent // 100))
    return sorted_values[int(rank) - 1]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _text(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.3g}"
