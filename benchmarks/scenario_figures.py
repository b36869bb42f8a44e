"""Results of strategies in scenarios: a line for each run in a CSV file, and the tables made from them."""

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
"""Differences of the imbalance up to this one are not significant."""
NOTHING = 0.005
"""Part of all load below which the tables show 0 %."""
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. `broken` are the bounds that did not hold. `imbalance`, its lower `bound` and the imbalance at `rest`
    (see `at_rest`) are means over time. The loads `moved`, moved `again` within two hours, and moved `back` to a former
    owner within four hours are shares of all load, summed over the run.
    """

    scenario: str
    strategy: str
    seed: int
    broken: str
    imbalance: float
    bound: float
    rest: float
    moved: float
    again: float
    back: float
    moves: int

    @property
    def held(self) -> bool:
        return not self.broken

    def other_than(self, before: Figures) -> list[str]:
        """Return the figures that differ from those in the tables."""
        found = []
        for name in ("imbalance", "bound", "rest", "moved", "again", "back"):
            old, new = getattr(before, name), getattr(self, name)
            found += [f"{name} {old:.2f}, now {new:.2f}"] if abs(new - old) > AS_GOOD / 2 else []
        broken = [f"not held {before.broken or '-'}, now {self.broken or '-'}"] if self.broken != before.broken else []
        return broken + found


def read(path: Path) -> list[Figures]:
    """Read the results in the file; empty if there is no file."""
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
    """Append a line to the file."""
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
            self._runs.setdefault((each.scenario, each.strategy), []).append(each)
        self._strategies = strategies
        self._scenarios = sorted({each.scenario for each in found})

    def markdown(self) -> str:
        return "\n\n".join(
            [
                "All scenarios together:",
                self._table("mean over scenarios", self._summary()),
                "Bounds held: ✓ with every seed, ✗ with none, otherwise the number of seeds:",
                self._table("scenario", self._rows(_held)),
                "Mean imbalance, with the bound and the imbalance at rest. The best and all within 0.01 are bold:",
                self._table("scenario | bound | at rest", [self._imbalances(each) for each in self._scenarios]),
                "Load moved, in per cent of all load:",
                self._table("scenario", self._rows(lambda runs: percent(run.moved for run in runs))),
                "Load moved again within two hours, in per cent of all load. Scenarios without any are omitted:",
                self._table(
                    "scenario", self._rows(lambda runs: percent(run.again for run in runs), lambda run: run.again)
                ),
                "Load moved back to a former owner within four hours:",
                self._table(
                    "scenario", self._rows(lambda runs: percent(run.back for run in runs), lambda run: run.back)
                ),
            ]
        )

    def _table(self, first: str, rows: Sequence[Sequence[str]]) -> str:
        heads = [*first.split(" | "), *(SHORT.get(each, each) for each in self._strategies)]
        lines = [f"| {' | '.join(line)} |" for line in (heads, *rows)]
        return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])

    def _rows(
        self, cell: Callable[[list[Figures]], str], counts: Callable[[Figures], float] | None = None
    ) -> list[list[str]]:
        """Return a row for each scenario, or only for those with a run for which `counts` is not zero."""
        return [
            [scenario, *(cell(self._of(scenario, strategy)) for strategy in self._strategies)]
            for scenario in self._scenarios
            if counts is None
            or any(counts(run) >= NOTHING for each in self._strategies for run in self._of(scenario, each))
        ]

    def _of(self, scenario: str, strategy: str) -> list[Figures]:
        return self._runs.get((scenario, strategy), [])

    def _who_ran(self, scenario: str) -> list[str]:
        return [each for each in self._strategies if self._of(scenario, each)]

    def _imbalances(self, scenario: str) -> list[str]:
        even = self._most_even(scenario)
        cells = [(each, interval([run.imbalance for run in self._of(scenario, each)], 2)) for each in self._strategies]
        rest = mean(run.rest for each in self._strategies for run in self._of(scenario, each))
        yardsticks = [f"{self._bound(scenario):.2f}", "" if isnan(rest) else f"{rest:.2f}"]
        return [scenario, *yardsticks, *(f"**{cell}**" if each in even else cell for each, cell in cells)]

    def _most_even(self, scenario: str) -> set[str]:
        means = {each: mean(run.imbalance for run in self._of(scenario, each)) for each in self._who_ran(scenario)}
        return {each for each in means if means[each] <= min(means.values()) + AS_GOOD}

    def _bound(self, scenario: str) -> float:
        """Return the lowest bound of all strategies: bundles that were split can be spread better."""
        return min(mean(run.bound for run in self._of(scenario, each)) for each in self._who_ran(scenario))

    def _summary(self) -> list[list[str]]:
        figures: dict[str, Callable[[str], str]] = {
            f"held with every seed, of {len(self._scenarios)}": lambda each: f"{self._held(each)}",
            "most even": lambda each: str(sum(each in self._most_even(scenario) for scenario in self._scenarios)),
            "imbalance / bound": lambda each: (
                f"{self._mean(each, lambda run: run.imbalance / self._bound(run.scenario)):.2f}"
            ),
            "moved, %": lambda each: f"{self._mean(each, lambda run: 100 * run.moved):.0f}",
            "moved again within 2 h, %": lambda each: f"{self._mean(each, lambda run: 100 * run.again):.1f}",
            "back within 4 h, %": lambda each: f"{self._mean(each, lambda run: 100 * run.back):.1f}",
        }
        return [[name, *(figure(each) for each in self._strategies)] for name, figure in figures.items()]

    def _held(self, strategy: str) -> int:
        ran = [self._of(scenario, strategy) for scenario in self._scenarios]
        return sum(all(run.held for run in runs) for runs in ran if runs)

    def _mean(self, strategy: str, figure: Callable[[Figures], float]) -> float:
        """Return the mean over scenarios, which all have the same weight, whatever their number of seeds."""
        ran = [self._of(scenario, strategy) for scenario in self._scenarios]
        return mean(mean(figure(run) for run in runs) for runs in ran if runs)


def mean(numbers: Iterable[float]) -> float:
    known = list(numbers)
    return sum(known) / len(known) if known else float("nan")


def interval(numbers: Sequence[float], digits: int) -> str:
    """Format the mean, with the lowest and the highest value if they differ."""
    if not numbers:
        return ""
    middle, low, high = (f"{each:.{digits}f}" for each in (mean(numbers), min(numbers), max(numbers)))
    return middle if low == high else f"{middle} ({low}..{high})"


def percent(shares: Iterable[float]) -> str:
    return interval([100 * each for each in shares], 0)


def _held(runs: Sequence[Figures]) -> str:
    held = sum(each.held for each in runs)
    return {len(runs): "✓", 0: "✗"}.get(held, f"{held} of {len(runs)}") if runs else ""
