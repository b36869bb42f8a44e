"""What strategies made of scenarios: a line for each run in a CSV file, and the tables that are made of them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from math import isnan
from pathlib import Path

SHORT = {
    "ThresholdShedder": "Threshold",
    "ThresholdShedder+LeastResourceUsageWithWeight": "Threshold + usage",
    "OverloadShedder": "Overload",
    "UniformLoadShedder": "Uniform",
    "AvgShedder": "Avg",
    "TransferShedder": "Transfer",
    "SimpleLoadManagerImpl": "Simple",
}
AS_GOOD = 0.01
"""Differences of the imbalance up to this one mean nothing."""
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. `broken` are the bounds that did not hold. `imbalance`, its lower `bound` and what it would be at `rest`
    (see `at_rest`) are means over time; loads that moved, that returned, are shares of all load, added up over the run.
    """

    scenario: str
    strategy: str
    seed: int
    broken: str
    imbalance: float
    bound: float
    rest: float
    moved: float
    back: float
    moves: int

    @property
    def held(self) -> bool:
        return not self.broken

    def other_than(self, before: Figures) -> list[str]:
        """What the tables would say otherwise of it than before."""
        found = []
        for name in ("imbalance", "bound", "rest", "moved", "back"):
            old, new = getattr(before, name), getattr(self, name)
            found += [f"{name} {old:.2f}, now {new:.2f}"] if abs(new - old) > AS_GOOD / 2 else []
        broken = [f"not held {before.broken or '-'}, now {self.broken or '-'}"] if self.broken != before.broken else []
        return broken + found


def read(path: Path) -> list[Figures]:
    """Those in the file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as lines:
        return [_figures(line) for line in csv.DictReader(lines)]


def write(path: Path, found: Iterable[Figures]) -> None:
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow([each.name for each in fields(Figures)])
        writer.writerows(_line(each) for each in found)


def add(path: Path, one: Figures) -> None:
    """Another line at the end."""
    if not path.exists():
        write(path, [])
    with path.open("a", encoding="utf-8", newline="") as lines:
        csv.writer(lines, lineterminator="\n").writerow(_line(one))


def _line(one: Figures) -> list[object]:
    return [round(each, _DIGITS) if isinstance(each, float) else each for each in astuple(one)]


def _figures(line: dict[str, str]) -> Figures:
    kinds: dict[str, Callable[[str], object]] = {"float": float, "int": int, "str": str}
    return Figures(*(kinds[str(each.type)](line[each.name]) for each in fields(Figures)))  # type: ignore[arg-type]


class Tables:
    """All tables of the runs of these strategies, as Markdown."""

    def __init__(self, found: Sequence[Figures], strategies: Sequence[str]) -> None:
        self._runs: dict[tuple[str, str], list[Figures]] = {}
        for each in found:
            if each.strategy in strategies:
                self._runs.setdefault((each.scenario, each.strategy), []).append(each)
        self._strategies = strategies
        self._scenarios = sorted({each.scenario for each in found})

    def markdown(self) -> str:
        return "\n\n".join(
            [
                "All scenarios together:",
                self._summary(),
                "Bounds held: ✓ with every seed, ✗ with none, or with how many of them:",
                self._table("scenario", self._scenarios, lambda scenario: self._cells(scenario, _held)),
                "Mean imbalance, beside the bound and what it is at rest; bold is the most even, and all within 0.01 of it:",
                self._table("scenario | bound | at rest", self._scenarios, self._imbalances),
                "Load moved, in per cent of all load:",
                self._table("scenario", self._scenarios, lambda scenario: self._cells(scenario, _moved)),
                "Load moved back to a former owner, in per cent of all load. Scenarios are left out where none did so:",
                self._table("scenario", self._where(_has_back), lambda scenario: self._cells(scenario, _back)),
            ]
        )

    def _table(self, first: str, rows: Sequence[str], cells: Callable[[str], list[str]]) -> str:
        heads = [*first.split(" | "), *(SHORT.get(each, each) for each in self._strategies)]
        lines = [f"| {' | '.join(line)} |" for line in (heads, *([row, *cells(row)] for row in rows))]
        return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])

    def _cells(self, scenario: str, cell: Callable[[list[Figures]], str]) -> list[str]:
        return [cell(self._of(scenario, strategy)) for strategy in self._strategies]

    def _of(self, scenario: str, strategy: str) -> list[Figures]:
        return self._runs.get((scenario, strategy), [])

    def _where(self, has: Callable[[Figures], bool]) -> list[str]:
        return [
            each for each in self._scenarios if any(has(run) for s in self._strategies for run in self._of(each, s))
        ]

    def _imbalances(self, scenario: str) -> list[str]:
        cells = self._cells(scenario, lambda runs: interval([run.imbalance for run in runs], 2))
        even = self._most_even(scenario)
        bold = [f"**{cell}**" if s in even else cell for s, cell in zip(self._strategies, cells, strict=True)]
        rest = mean(run.rest for each in self._strategies for run in self._of(scenario, each))
        return [f"{self._bound(scenario):.2f}", "" if isnan(rest) else f"{rest:.2f}", *bold]

    def _most_even(self, scenario: str) -> set[str]:
        means = {each: mean(run.imbalance for run in self._of(scenario, each)) for each in self._strategies}
        return {each for each in means if means[each] <= min(means.values()) + AS_GOOD}

    def _bound(self, scenario: str) -> float:
        """Of whatever strategy's run it is lowest: bundles that were split can be spread better."""
        return min(mean(run.bound for run in self._of(scenario, each)) for each in self._strategies)

    def _summary(self) -> str:
        every = [f"held with every seed, of {len(self._scenarios)}"]
        even, over, moved, back = ["most even"], ["imbalance / bound"], ["moved, %"], ["moved back, %"]
        for strategy in self._strategies:
            runs = {each: self._of(each, strategy) for each in self._scenarios}
            every.append(str(sum(all(run.held for run in of) for of in runs.values())))
            even.append(str(sum(strategy in self._most_even(each) for each in self._scenarios)))
            over.append(f"{mean(mean(r.imbalance for r in of) / self._bound(s) for s, of in runs.items()):.2f}")
            moved.append(f"{100 * mean(mean(run.moved for run in of) for of in runs.values()):.0f}")
            back.append(f"{100 * mean(mean(run.back for run in of) for of in runs.values()):.1f}")
        rows = {line[0]: line[1:] for line in (every, even, over, moved, back)}
        return self._table("mean over scenarios", list(rows), lambda row: rows[row])


def mean(numbers: Iterable[float]) -> float:
    known = list(numbers)
    return sum(known) / len(known) if known else float("nan")


def interval(numbers: Sequence[float], digits: int) -> str:
    """The mean, and the lowest and the highest where they are not the same."""
    if not numbers:
        return ""
    middle, low, high = (f"{each:.{digits}f}" for each in (mean(numbers), min(numbers), max(numbers)))
    return middle if low == high else f"{middle} ({low}..{high})"


def _held(runs: Sequence[Figures]) -> str:
    held = sum(each.held for each in runs)
    return {len(runs): "✓", 0: "✗"}.get(held, f"{held} of {len(runs)}") if runs else ""


def _moved(runs: Sequence[Figures]) -> str:
    return interval([100 * each.moved for each in runs], 0)


def _back(runs: Sequence[Figures]) -> str:
    return interval([100 * each.back for each in runs], 0)


def _has_back(run: Figures) -> bool:
    return run.back > 0
