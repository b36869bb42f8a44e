"""Every strategy in every packaged scenario, with several seeds: the bounds that hold, and the load moved.

Without options, check that `scenarios.csv` and the tables in docs/scenario-results.md are current: repeat the first
seed of all scenarios except the longest, and exit with 1 on a difference. `--write` runs all and writes both files.
Results are cached by code and scenario, so an interrupted run can be continued.

Scenarios of recorded traffic need its series: *.csv in `traces` of the directory LOADMANAGER_SHARED. Without them,
their lines of the file stay unchanged.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from at_rest import imbalance_at_rest
from scenario_figures import Figures, Tables, add, read, write

from loadmanager.cli.simulate_command import packaged_scenarios, recorded_for
from loadmanager.core.domain.settings import AS_PULSAR
from loadmanager.lab.simulate.scenario import Scenario
from loadmanager.lab.simulate.scenario_run import SIDE_BY_SIDE, mean_imbalance, own_moves, run

PROJECT = Path(__file__).parents[1]
TRACES = Path(os.environ.get("LOADMANAGER_SHARED", PROJECT.parent / "shared")) / "traces"
STORED = Path(__file__).parent / "scenarios.csv"
KEPT = PROJECT / "build" / "scenarios"
DOCUMENT = PROJECT / "docs" / "scenario-results.md"
BEGIN, END = "<!-- scenarios: begin -->", "<!-- scenarios: end -->"
SEEDS = 3
FEW_SEEDS = {"stationary-weeks": 2}
"""Number of seeds of a scenario that takes as long as all others together."""
CHECKED_S = 43_200
"""Maximum duration of the scenarios that are repeated by the check."""
SAID_EVERY_S = 10.0

Case = tuple[Scenario, str]


def traces() -> list[str]:
    """Return the series without gaps."""
    return [str(path) for path in sorted(TRACES.glob("tweets_*.csv"))]


def figures(case: Case) -> Figures:
    scenario, strategy = case
    recorded = recorded_for(scenario, PROJECT, traces())
    done = run(scenario, strategy, AS_PULSAR, recorded=recorded)
    result = done.result
    return Figures(
        scenario.name,
        strategy,
        scenario.seed,
        broken=" ".join(check.key for check in done.checks if not check.held),
        imbalance=mean_imbalance(result),
        bound=float(np.nanmean(result.series.lower_bound)),
        rest=imbalance_at_rest(scenario, recorded),
        moved=sum((move.share for move in own_moves(result)), 0.0),
        again=result.moved_again,
        back=result.thrash,
        moves=len(own_moves(result)),
    )


def cases(scenarios: Sequence[Scenario], seeds: int) -> list[Case]:
    """Return all scenarios with the first seed, then all with the next one."""
    return [
        (scenario.model_copy(update={"seed": seed}), strategy)
        for seed in range(1, seeds + 1)
        for scenario in scenarios
        if seed <= FEW_SEEDS.get(scenario.name, seeds)
        for strategy in SIDE_BY_SIDE
    ]


def run_all(wanted: Sequence[Case], processes: int) -> list[Figures]:
    """Return the result of each, from an earlier run if there is one; progress goes to standard error."""
    KEPT.mkdir(parents=True, exist_ok=True)
    code = code_hash()
    files = {scenario.name: KEPT / f"{scenario.name}-{case_hash(code, scenario)}.csv" for scenario, _ in wanted}
    known = {(each.scenario, each.strategy, each.seed): each for path in files.values() for each in read(path)}
    missing = [case for case in wanted if (case[0].name, case[1], case[0].seed) not in known]
    begun_s = said_s = time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        running = [pool.submit(figures, case) for case in missing]
        for number, done in enumerate(as_completed(running), start=1):
            one = done.result()
            add(files[one.scenario], one)
            known[one.scenario, one.strategy, one.seed] = one
            if time.monotonic() - said_s > SAID_EVERY_S or number == len(missing):
                said_s = time.monotonic()
                print(f"{number} of {len(missing)} runs, {said_s - begun_s:.0f} s", file=sys.stderr, flush=True)
    return [known[scenario.name, strategy, scenario.seed] for scenario, strategy in wanted]


def code_hash() -> bytes:
    """Return a hash of the package's code."""
    taken = hashlib.sha256()
    for path in sorted((PROJECT / "loadmanager").rglob("*.py")):
        taken.update(f"{path.relative_to(PROJECT)}\n".encode() + path.read_bytes())
    return taken.digest()


def case_hash(code: bytes, scenario: Scenario) -> str:
    content = scenario.model_copy(update={"seed": 0}).model_dump_json()
    return hashlib.sha256(code + content.encode()).hexdigest()[:16]


def show_broken(found: Sequence[Figures]) -> None:
    for strategy in SIDE_BY_SIDE:
        own = [each for each in found if each.strategy == strategy]
        broken = {f"{each.scenario} ({each.broken})": None for each in own if not each.held}
        print(f"{strategy}: {sum(each.held for each in own)} of {len(own)} runs held; not {', '.join(broken) or 'any'}")


def written(found: Sequence[Figures]) -> str:
    """Return the document with the tables of these results."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{Tables(found, SIDE_BY_SIDE).markdown()}\n\n{END}{after}"


def stale(scenarios: Sequence[Scenario], processes: int) -> list[str]:
    """Return what differs from the file and the document; empty if nothing does."""
    stored = {(each.scenario, each.strategy, each.seed): each for each in read(STORED)}
    found = []
    if written(list(stored.values())) != DOCUMENT.read_text(encoding="utf-8"):
        found.append(f"{DOCUMENT.name}: its tables are not those of {STORED.name}")
    short = [each for each in scenarios if each.duration_s <= CHECKED_S]
    for now in run_all(cases(short, seeds=1), processes):
        before = stored.get((now.scenario, now.strategy, now.seed))
        differing = ["it is missing"] if before is None else now.other_than(before)
        found += [f"{now.scenario}, {now.strategy}: {each}" for each in differing]
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="run all, and write the file and the tables")
    options.add_argument("--seeds", type=int, default=SEEDS, help=f"how many seeds (default {SEEDS})")
    options.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="side by side")
    options.add_argument("--only", action="append", metavar="SCENARIO", help="this one, and others that are named so")
    given = options.parse_args()
    packaged = packaged_scenarios()
    unknown = [name for name in given.only or () if name not in packaged]
    if unknown or given.seeds < 1:
        options.error(f"no scenario {unknown[0]}; there are {', '.join(packaged)}" if unknown else "--seeds: 1 or more")
    scenarios = [packaged[name] for name in given.only or packaged]
    scenarios = [each for each in scenarios if each.traces is None or traces()]
    if not given.write:
        differing = stale(scenarios, given.processes)
        print("\n".join([*differing, "bench_scenarios.py --write makes it anew"]) if differing else "all is current")
        return 1 if differing else 0
    found = run_all(cases(scenarios, given.seeds), given.processes)
    show_broken(found)
    run_now = {each.name for each in scenarios}
    rest = [
        each for each in read(STORED) if each.scenario in packaged.keys() - run_now and each.strategy in SIDE_BY_SIDE
    ]
    found = sorted([*found, *rest], key=lambda each: (each.scenario, SIDE_BY_SIDE.index(each.strategy), each.seed))
    write(STORED, found)
    DOCUMENT.write_text(written(read(STORED)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
