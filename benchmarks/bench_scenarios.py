"""Every strategy in every scenario of the package: which bounds hold, and what it took.

`--write` puts the table into docs/strategies.md, between its two markers. The recorded traffic is run when its series
are there: *.csv in the directory that LOADMANAGER_SHARED names, `traces`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadmanager.cli.scenarios import packaged_scenarios, recorded_for
from loadmanager.sim.checks import mean_imbalance, own_moves
from loadmanager.sim.running import SIDE_BY_SIDE, run
from loadmanager.sim.scenario import Scenario

PROJECT = Path(__file__).parents[1]
TRACES = Path(os.environ.get("LOADMANAGER_SHARED", PROJECT.parent / "shared")) / "traces"
DOCUMENT = PROJECT / "docs" / "strategies.md"
BEGIN, END = "<!-- scenarios: begin -->", "<!-- scenarios: end -->"
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    scenario: str
    strategy: str
    held: bool
    imbalance: float
    moved_share: float
    moves: int
    returns: int
    broken: tuple[str, ...]

    def cell(self) -> str:
        mark = "✓" if self.held else "✗"
        return f"{mark} {self.imbalance:.2f} {100 * self.moved_share:.0f} % {self.moves} {self.returns}"


def traces() -> list[str]:
    """Series without gaps."""
    return [str(path) for path in sorted(TRACES.glob("tweets_*.csv"))]


def outcome(case: tuple[Scenario, str]) -> Outcome:
    scenario, strategy = case
    recorded = recorded_for(scenario, PROJECT, traces())
    done = run(scenario, strategy, recorded=recorded)
    broken = tuple(check.key for check in done.checks if not check.held)
    result = done.result
    moves = own_moves(result)
    share = sum(move.share for move in moves)
    return Outcome(
        scenario.name, strategy, done.held, mean_imbalance(result), share, len(moves), result.returns, broken
    )


def outcomes() -> list[Outcome]:
    scenarios = [each for each in packaged_scenarios().values() if each.traces is None or traces()]
    cases = [(scenario, strategy) for scenario in scenarios for strategy in SIDE_BY_SIDE]
    with ProcessPoolExecutor(PROCESSES) as pool:
        return list(pool.map(outcome, cases, chunksize=1))


def show(found: Sequence[Outcome]) -> None:
    table = Table("scenario", title="held, mean imbalance, load moved, moves, returns", box=None, title_justify="left")
    for strategy in SIDE_BY_SIDE:
        table.add_column(strategy, overflow="fold")
    for scenario in dict.fromkeys(each.scenario for each in found):
        table.add_row(scenario, *(each.cell() for each in found if each.scenario == scenario))
    Console(width=190).print(table)
    for strategy in SIDE_BY_SIDE:
        own = [each for each in found if each.strategy == strategy]
        broken = ", ".join(f"{each.scenario} ({', '.join(each.broken)})" for each in own if not each.held)
        print(f"{strategy}: {sum(each.held for each in own)} of {len(own)} held; not {broken or 'any'}")


def markdown(found: Sequence[Outcome]) -> str:
    held = {name: sum(each.held for each in found if each.strategy == name) for name in SIDE_BY_SIDE}
    count = len({each.scenario for each in found})
    lines = [
        "| scenario | " + " | ".join(name.replace("+", " + ") for name in SIDE_BY_SIDE) + " |",
        "|---" * (len(SIDE_BY_SIDE) + 1) + "|",
    ]
    for scenario in dict.fromkeys(each.scenario for each in found):
        cells = [each.cell() for each in found if each.scenario == scenario]
        lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
    lines.append("| **held** | " + " | ".join(f"**{held[name]} of {count}**" for name in SIDE_BY_SIDE) + " |")
    return "\n".join(lines)


def write(found: Sequence[Outcome]) -> None:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{markdown(found)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    results = outcomes()
    show(results)
    if "--write" in sys.argv[1:]:
        write(results)
