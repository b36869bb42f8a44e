"""Level's search compared with other solvers on the same instances: Meta's Rebalancer for the quality of the solution,
and HiGHS for a lower bound of the highest usage.

Both run in their own environment `.venv-solvers`, made with Python 3.12 or newer: `python3.12`, or the one in
LOADMANAGER_SOLVERS_PYTHON. Rebalancer gets 300 s per instance and our imbalance as its target: it need not be better,
and can minimize moves instead. `bench_solvers.py 60` gives it 60 s.

The input of with_rebalancer.py and with_highs.py is an .npz: need (N, R), capacity (M, R), owner (N,), share (N,) of
all load and the target, relative to the mean usage. Their output FILE.out.npz has the owners and the proven bound.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from level_task import a_task, after
from rich.console import Console
from rich.table import Table

from loadmanager.core.model.load import METRICS, FloatArray, RowArray
from loadmanager.core.strategies.level.move_search import find_moves

PROJECT = Path(__file__).parents[1]
ENVIRONMENT = PROJECT / ".venv-solvers"
PACKAGES = ("rebalancer==1.0.4", "highspy==1.15.1")
SOLVER_S, EXACT_S = 300, 60
TARGET = 1.03
EVENNESS, MOVED = 0.005, 0.005
"""Tolerances of the highest usage divided by the mean, and of the moved part of all load."""


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """Instance: `need` (N, R), `capacity` (M, R) at which the mean usage is 1, and `owner` (N,)."""

    name: str
    need: FloatArray
    capacity: FloatArray
    owner: RowArray

    def highest(self, owner: RowArray) -> float:
        return float((self._used(owner) / self.capacity).max())

    def share(self) -> FloatArray:
        return np.asarray(self.need.sum(axis=1) / self.need.sum())

    def moved(self, owner: RowArray) -> float:
        return float(self.share()[owner != self.owner].sum())

    def least_moved(self, highest: float) -> float:
        """Return the least part of a resource's load that must leave brokers so that none is above `highest`."""
        above = np.maximum(self._used(self.owner) - highest * self.capacity, 0.0)
        return float((above.sum(axis=0) / self.need.sum(axis=0)).max())

    def _used(self, owner: RowArray) -> FloatArray:
        brokers = len(self.capacity)
        return np.stack([np.bincount(owner, weights=each, minlength=brokers) for each in self.need.T], axis=1)


def make(
    name: str,
    brokers: int,
    bundles: int,
    *,
    sizes: Sequence[float] = (1.0,),
    spread: float = 1.0,
    apart: float = 0.3,
    owning: int | None = None,
    at_first: float = 0.0,
) -> Instance:
    """Make lognormal bundles whose resources differ by `apart`, and brokers of these sizes in turn.

    Owners are random among the first `owning` brokers; a part of the bundles is at the first broker.
    """
    rng = np.random.default_rng(brokers + bundles)
    need = np.exp(rng.normal(0, spread, bundles))[:, None] * np.exp(rng.normal(0, apart, (bundles, METRICS)))
    size = np.resize(np.array(sizes), brokers)
    capacity = size[:, None] * need.sum(axis=0) / size.sum()
    owner = np.where(rng.random(bundles) < at_first, 0, rng.integers(0, owning or brokers, bundles))
    return Instance(name, need, capacity, owner.astype(np.int32))


def instances() -> list[Instance]:
    return [
        make("10 brokers, 5 of them new", 10, 160, spread=0.3, owning=5),
        make("20 brokers", 20, 1_000),
        make("20 brokers, one is hot", 20, 2_000, at_first=0.2),
        make("20 brokers, 1 : 2 : 4", 20, 1_000, sizes=(1.0, 2.0, 4.0)),
        make("50 brokers, 1,000 bundles", 50, 1_000, spread=0.7),
        make("50 brokers, resources far apart", 50, 3_000, apart=1.0),
        make("100 brokers, 10 of them new", 100, 5_000, owning=90),
        make("100 brokers, heavy tail", 100, 10_000, spread=1.5),
        make("200 brokers, 1 : 2", 200, 20_000, sizes=(1.0, 2.0)),
        make("1,000 brokers, 1 : 2", 1_000, 100_000, sizes=(1.0, 2.0), spread=1.2),
    ]


def small_instances() -> list[Instance]:
    sizes = ((3, 12, 0.5), (4, 24, 1.0), (5, 40, 1.0), (6, 60, 0.7))
    return [
        make(f"{brokers} brokers, {bundles} bundles", brokers, bundles, spread=each) for brokers, bundles, each in sizes
    ]


def solve(instance: Instance, target: float = TARGET) -> tuple[RowArray, float]:
    """Return the owners that Level's search finds, and its seconds."""
    task = a_task(instance.need, 1 / instance.capacity, instance.owner, target)
    start_s = time.perf_counter()
    found = find_moves(task)
    return after(task, found), time.perf_counter() - start_s


@dataclass(frozen=True, slots=True)
class Solved:
    highest: float
    moved: float
    took_s: float

    def cell(self) -> str:
        return f"{self.highest:.3f}, {100 * self.moved:.1f} % moved, {self.took_s:.2g} s"

    def is_no_worse(self, other: Solved) -> bool:
        return self.highest <= other.highest + EVENNESS and self.moved <= other.moved + MOVED


def solve_elsewhere(python: Path, kind: str, instance: Instance, target: float, seconds: float) -> tuple[Solved, float]:
    """Return the solution of another solver, and the bound that it has proven."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "instance.npz"
        np.savez(
            file,
            need=instance.need,
            capacity=instance.capacity,
            owner=instance.owner,
            share=instance.share(),
            target=np.array(target),
        )
        start_s = time.perf_counter()
        script = Path(__file__).with_name(f"with_{kind}.py")
        subprocess.run([python, script, file, str(seconds)], check=True, capture_output=True)
        took_s = time.perf_counter() - start_s
        with np.load(f"{file}.out.npz") as found:
            owner, bound = found["owner"], float(found.get("bound", math.nan))
    return Solved(instance.highest(owner), instance.moved(owner), took_s), bound


def environment() -> Path | None:
    """Return the Python of the solvers' environment, which is created if missing; None if no Python can create it."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        base = os.environ.get("LOADMANAGER_SOLVERS_PYTHON") or shutil.which("python3.12")
        if base is None:
            return None
        subprocess.run([base, "-m", "venv", ENVIRONMENT], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def beside_rebalancer(python: Path, seconds: float) -> None:
    table = Table("instance", "at first", "Level", "Rebalancer", "no worse", title=f"Rebalancer with {seconds:g} s")
    won, all_of_them = 0, instances()
    for instance in all_of_them:
        owner, took_s = solve(instance)
        ours = Solved(instance.highest(owner), instance.moved(owner), took_s)
        theirs, _ = solve_elsewhere(python, "rebalancer", instance, max(ours.highest, 1.0), seconds)
        won += ours.is_no_worse(theirs)
        at_first = f"{instance.highest(instance.owner):.2f}"
        verdict = "yes" if ours.is_no_worse(theirs) else "NO"
        table.add_row(instance.name, at_first, ours.cell(), theirs.cell(), verdict)
        print(f"{instance.name}: {ours.cell()}; Rebalancer {theirs.cell()}", flush=True)
    Console(width=140).print(table)
    print(f"no worse on {won} of {len(all_of_them)} (target: 9 of 10)\n")


def beside_highs(python: Path) -> None:
    table = Table("instance", "Level", "HiGHS", "its bound", title=f"HiGHS with {EXACT_S} s: the highest usage alone")
    for instance in small_instances():
        owner, took_s = solve(instance, target=1.0)
        ours = Solved(instance.highest(owner), instance.moved(owner), took_s)
        theirs, bound = solve_elsewhere(python, "highs", instance, 1.0, EXACT_S)
        table.add_row(instance.name, ours.cell(), f"{theirs.highest:.3f}, {theirs.took_s:.2g} s", f"{bound:.3f}")
    Console(width=140).print(table)


def main() -> None:
    python = environment()
    if python is None:
        print("not run: there is no python3.12 for Rebalancer; name one in LOADMANAGER_SOLVERS_PYTHON")
        return
    beside_highs(python)
    beside_rebalancer(python, float(sys.argv[1]) if len(sys.argv) > 1 else SOLVER_S)


if __name__ == "__main__":
    main()
