"""`python -m protocol SEEDS`: run many schedules on all cores and print a summary; `make protocol` runs it.

SEEDS is a number of schedules, one seed as `=17`, or a range as `1000-2000`. `--guards` removes each guard in turn and
counts the schedules until a violation.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from protocol.failure_report import tell_failure
from protocol.guards import GUARDS
from protocol.schedules import draw, run

_SEEDS = "a number of schedules (1000), one seed (=17) or a range (1000-2000)"
_BATCH = 50
_BATCHES_IN_A_LIFE = 2
"""Batches per process. Each world leaves about a megabyte; collecting it would take a seventh of the time."""
_SAY_EVERY_S = 10.0


@dataclass(slots=True)
class Sum:
    schedules: int = 0
    messages: int = 0
    transitions: int = 0
    states: set[int] = field(default_factory=set)
    failed: list[int] = field(default_factory=list)

    def add(self, other: Sum) -> None:
        self.schedules += other.schedules
        self.messages += other.messages
        self.transitions += other.transitions
        self.states |= other.states
        self.failed += other.failed

    def line(self, elapsed_s: float) -> str:
        return (
            f"{self.schedules} schedules of {self.messages // max(1, self.schedules)} messages,"
            f" {self.transitions} changes of owner or state, {len(self.states)} distinct states,"
            f" {self.schedules / elapsed_s:.1f} schedules/s, failed: {self.failed}"
        )


def try_seeds(seeds: Iterable[int]) -> Sum:
    """Run schedules one after the other."""
    found = Sum()
    for seed in seeds:
        outcome = run(draw(seed))
        found.schedules += 1
        found.messages += outcome.messages
        found.transitions += outcome.transitions
        found.states |= outcome.states
        if outcome.violations:
            found.failed.append(seed)
    return found


def miss(guard: str, most: int) -> tuple[int | None, str]:
    """Return the first seed that fails without the guard, and its violation."""
    for seed in range(1, most + 1):
        with GUARDS[guard].taken_out():
            outcome = run(draw(seed))
        if outcome.violations:
            return seed, outcome.violations[0]
        if seed % _BATCH == 0:
            gc.collect()
    return None, ""


def parse_seeds(text: str) -> range:
    """Return the seeds that a command line names."""
    match = re.fullmatch(r"(=?)(\d+)(?:-(\d+))?", text)
    one, number, last = match.groups() if match else ("", "0", None)
    seeds = range(int(number) if one or last else 1, int(last or number) + 1)
    if not seeds or (one and last):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {_SEEDS}")
    return seeds


def _begin() -> None:
    """Switch off automatic garbage collection."""
    gc.freeze()
    gc.disable()


def _try_all(seeds: range, workers: int) -> int:
    total, begun_s, said_s = Sum(), time.monotonic(), time.monotonic()
    for part in _in_parallel(seeds, workers):
        total.add(part)
        if time.monotonic() - said_s > _SAY_EVERY_S:
            said_s = time.monotonic()
            print(total.line(said_s - begun_s), flush=True)
    print(total.line(time.monotonic() - begun_s))
    if total.failed:
        schedule = draw(min(total.failed))
        print(tell_failure(schedule, run(schedule)))
    return 1 if total.failed else 0


def _in_parallel(seeds: range, workers: int) -> Iterator[Sum]:
    batches = [seeds[begin : begin + _BATCH] for begin in range(0, len(seeds), _BATCH)]
    processes = multiprocessing.get_context("fork")
    with processes.Pool(min(workers, len(batches)), initializer=_begin, maxtasksperchild=_BATCHES_IN_A_LIFE) as pool:
        yield from pool.imap_unordered(try_seeds, batches)


def _try_guards(most: int, workers: int) -> int:
    with multiprocessing.get_context("fork").Pool(workers, initializer=_begin) as pool:
        found = pool.imap(partial(miss, most=most), GUARDS)
        for guard, (seed, violation) in zip(GUARDS, found, strict=True):
            print(f"{guard}: {f'missed after {seed}: {violation}' if seed else f'not missed in {most}'}", flush=True)
    return 0


def main() -> int:
    """Run what the command line asks for; 1 if a schedule failed."""
    parser = argparse.ArgumentParser(prog="python -m protocol", description=__doc__)
    parser.add_argument("seeds", nargs="?", default="1000", type=parse_seeds, help=_SEEDS)
    parser.add_argument("--guards", action="store_true", help="take out each guard, over so many seeds")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.workers < 1:
        parser.error(f"--workers: expected 1 or more processes, not {given.workers}")
    if given.guards:
        return _try_guards(given.seeds[-1], given.workers)
    return _try_all(given.seeds, given.workers)


if __name__ == "__main__":
    sys.exit(main())
