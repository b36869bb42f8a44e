"""`make pulsar-demo`: Pulsar's own shedder, then `loadmanager pulsar act` with the same strategy, and then with Level.

    python -m examples.pulsar.demo [--version V] [--extensible] [--seconds S] [--repeat N] [--output FILE]

Each runs on its own Pulsar, with the same brokers, settings, load and initial distribution. Balancing starts when the
brokers report their full load. From then on the imbalance is sampled every two seconds. It is the highest load of a
broker divided by the mean, in messages per second that are sent to the broker's bundles. Bundles that are moving count
for no broker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.pulsar.admin import ask, demand
from examples.pulsar.artifacts import NotPossibleHereError
from examples.pulsar.cgroups import make_cgroup
from examples.pulsar.cluster import VERSION, PulsarCluster
from examples.pulsar.command import PulsarCommand
from examples.pulsar.operations import Operator
from examples.pulsar.progress import Report, wait_until
from examples.pulsar.skew import RunningLoad, Skew, running_load

PULSAR, OURS, LEVEL = "Pulsar's own shedder", "loadmanager pulsar act", "the same with Level"

_SHEDDING = "loadBalancerSheddingEnabled"
LEVEL_SETTINGS = {
    "loadBalancerLoadSheddingStrategy": "Level",
    "loadBalancerLoadPlacementStrategy": "Level",
}
_SAMPLE_S = 2.0
_LEVEL = 1.3
_WARM_UP_S = 240.0
_MEASUREMENTS = 3
_HOT_RATE = 100.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one run. Times are in seconds; `imbalances` are in the order of sampling."""

    imbalances: list[float]
    moves: int
    stalls: int
    longest_stall_s: float
    messages: int
    lost: int
    duplicates: int

    @property
    def start(self) -> float:
        return self.imbalances[0]

    @property
    def end(self) -> float:
        return self.imbalances[-1]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.imbalances)

    @property
    def level_after_s(self) -> float:
        """Return the time after which the imbalance stayed below 1.3; infinite if it did not."""
        above = [i for i, each in enumerate(self.imbalances) if each >= _LEVEL]
        if not above:
            return 0.0
        return (above[-1] + 1) * _SAMPLE_S if above[-1] + 1 < len(self.imbalances) else float("inf")


def run_once(
    who: str, strategy: str, seconds: float, report: Report, *, version: str = VERSION, extensible: bool = False
) -> Outcome:
    """Run one balancer on its own Pulsar."""
    report(f"--- {who}")
    skew = Skew(hot_rate=_HOT_RATE)
    with PulsarCluster(strategy=strategy, version=version, extensible=extensible, report=report) as cluster:
        operator = Operator(cluster)
        with running_load(cluster, skew.prepare(cluster)) as load:
            report("waiting until every broker has measured its CPU under this load, which takes two to three minutes")
            wait_until(_CpuReports(cluster).are_current, "reports of the load", timeout_s=_WARM_UP_S)
            with _balancing(who, cluster, operator):
                began_s = time.time()
                imbalances, moves = _watch(operator, skew, seconds, report)
            return _outcome(imbalances, moves, began_s, load)


@contextlib.contextmanager
def _balancing(who: str, cluster: PulsarCluster, operator: Operator) -> Iterator[None]:
    if who == PULSAR:
        operator.set_dynamic(_SHEDDING, "true")
        yield
        return
    state = f"zk:{cluster.zookeeper}/loadmanager"
    options: dict[str, object] = {"stateStoreUrl": state, "settlingSeconds": 1}
    if who == LEVEL:
        options["overrides"] = LEVEL_SETTINGS
    with PulsarCommand(cluster, cluster.folder / "pulsar", options=options) as command:
        yield
        command.stop()


@dataclass(slots=True)
class _CpuReports:
    """CPU figures that brokers have reported since messages began to flow."""

    cluster: PulsarCluster
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def are_current(self) -> bool:
        """Tell if each broker has measured its CPU over a full minute of the load: the third figure since its start."""
        for each in self.cluster.brokers:
            usage = find_cpu(each.web_url)
            seen = self.cpu.setdefault(each.name, [])
            if usage not in seen:
                seen.append(usage)
        return all(len(seen) >= _MEASUREMENTS for seen in self.cpu.values())


def find_cpu(url: str) -> float:
    """Return the CPU that a broker reports, 0 without any."""
    report = ask(url, "GET", "/admin/v2/broker-stats/load-report")
    if report.status == 200:  # noqa: PLR2004
        return float(report.content()["cpu"]["usage"])
    metrics = (each["metrics"] for each in demand(url, "GET", "/admin/v2/broker-stats/metrics").content())
    return next((float(each["brk_lb_cpu_usage"]) for each in metrics if "brk_lb_cpu_usage" in each), 0.0)


def _watch(operator: Operator, skew: Skew, seconds: float, report: Report) -> tuple[list[float], int]:
    """Sample the imbalance every two seconds; return the samples and the number of changes of owners."""
    ranges = operator.bundles_of(skew.namespace)
    owners = operator.owners(skew.namespace)
    imbalances, moves = [imbalance(operator, skew, ranges, owners)], 0
    began_s = time.monotonic()
    while (passed_s := time.monotonic() - began_s) < seconds:
        time.sleep(_SAMPLE_S)
        now = operator.owners(skew.namespace)
        changed = [each for each in now if owners.get(each) not in (None, now[each])]
        moves += len(changed)
        owners |= now
        imbalances.append(imbalance(operator, skew, ranges, now))
        if changed:
            report(f"{passed_s:5.0f} s: {len(changed)} moved, imbalance {imbalances[-1]:.2f}")
    return imbalances, moves


def imbalance(operator: Operator, skew: Skew, ranges: Sequence[str], owners: dict[str, str]) -> float:
    """Return the highest load of a broker divided by the mean."""
    sent = dict.fromkeys((each.name for each in operator.cluster.brokers), 0.0)
    for i, each in enumerate(ranges):
        if each in owners:
            sent[owners[each]] += skew.rate(i)
    return max(sent.values()) / statistics.fmean(sent.values())


def _outcome(imbalances: list[float], moves: int, began_s: float, load: RunningLoad) -> Outcome:
    counted = load.finish()
    stalls = [seconds for _, at_s, seconds in counted["stalls"] if at_s >= began_s]
    return Outcome(
        imbalances,
        moves,
        len(stalls),
        max(stalls, default=0.0),
        counted["acknowledged"],
        counted["lost"],
        counted["duplicates"],
    )


def usual_strategy() -> str:
    """Return Pulsar's default strategy, which uses the CPU of brokers, or one by bytes if brokers share the CPU."""
    group = make_cgroup(f"loadmanager-trial-{os.getpid()}", 1.0)
    if group is None:
        return "UniformLoadShedder"
    group.remove()
    return "ThresholdShedder"


ROWS: dict[str, Callable[[Outcome], float]] = {
    "imbalance at the start": lambda each: each.start,
    "imbalance at the end": lambda each: each.end,
    "imbalance, mean over the time": lambda each: each.mean,
    f"below {_LEVEL} for good after, s": lambda each: each.level_after_s,
    "moves": lambda each: each.moves,
    "stalls of a topic above 0.25 s": lambda each: each.stalls,
    "longest stall, s": lambda each: each.longest_stall_s,
    "messages": lambda each: each.messages,
    "lost": lambda each: each.lost,
    "duplicates": lambda each: each.duplicates,
}


def show(outcomes: dict[str, list[Outcome]], console: Console) -> None:
    """Show a table of the medians, with the lowest and highest values of several runs."""
    table = Table("", *outcomes, title="the same brokers, load and start")
    for row, find in ROWS.items():
        table.add_row(row, *(_spread([find(each) for each in runs]) for runs in outcomes.values()))
    console.print(table)


def _spread(values: list[float]) -> str:
    low, high = min(values), max(values)
    middle = f"{statistics.median(values):,.4g}"
    return middle if low == high else f"{middle} ({low:,.4g} to {high:,.4g})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.pulsar.demo")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long each is watched")
    parser.add_argument("--repeat", type=int, default=1, help="how often all are run")
    parser.add_argument("--strategy", default="", help="of the first two, instead of the usual one")
    parser.add_argument("--version", default=VERSION, help="of Pulsar")
    parser.add_argument("--extensible", action="store_true", help="with the extensible load manager")
    parser.add_argument("--output", type=Path, help="where all samples go, as JSON")
    wanted = parser.parse_args()
    console = Console()
    outcomes: dict[str, list[Outcome]] = {PULSAR: [], OURS: [], LEVEL: []}
    try:
        for number in range(wanted.repeat):
            for who, runs in outcomes.items():
                console.print(f"run {number + 1} of {wanted.repeat}", highlight=False)
                strategy = "TransferShedder" if wanted.extensible else wanted.strategy or usual_strategy()
                which = {"version": wanted.version, "extensible": wanted.extensible}
                runs.append(run_once(who, strategy, wanted.seconds, console.print, **which))
                if wanted.output is not None:
                    written = {name: [asdict(each) for each in done] for name, done in outcomes.items()}
                    wanted.output.write_text(json.dumps(written), encoding="utf-8")
    except NotPossibleHereError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    show(outcomes, console)


if __name__ == "__main__":
    main()
