"""`loadmanager simulate`: a fleet in virtual time, balanced by one strategy or by several side by side.

This module also reads scenario files and the recorded traces that they name.

Exit codes: 0 every bound held; 1 some did not; 2 unusable input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.cli.service_runner import given_settings
from loadmanager.cli.text.text_tables import format_table, get_terminal_width, wrap_text, write_lines
from loadmanager.core.planning.certificate.plan_certificate import CertificateFigures, sum_certificates
from loadmanager.errors import LoadManagerError, ScenarioError
from loadmanager.history.synthetic_fleet import Series, read_series
from loadmanager.lab.simulate import world
from loadmanager.lab.simulate.scenario import P, Scenario, parse_yaml
from loadmanager.lab.simulate.scenario_run import SIDE_BY_SIDE, Run, mean_imbalance, own_moves, run, settings_for

_ALL = "all"


@dataclass(frozen=True, slots=True)
class _ScenarioCase:
    """A scenario to run, with its traces and strategies."""

    scenario: Scenario
    recorded: list[Series]
    strategies: tuple[str, ...]


def simulate(
    scenarios: Annotated[
        list[str] | None, typer.Argument(metavar="SCENARIO...", help="Files, or names as --list shows them.")
    ] = None,
    strategies: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="Shedding strategy, placement strategy, or both as NAME+NAME; may be repeated. all: each shedding"
            " strategy.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Setting that overrides those of the scenario; may be repeated."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed; overrides that of the scenario.")] = None,
    traces: Annotated[
        list[str] | None,
        typer.Option("--traces", metavar="PATH", help="Recorded series for the scenario's traces; may be repeated."),
    ] = None,
    fill_gaps: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Replace up to N missing values in a row of recorded series by the last value."
        ),
    ] = 0,
    as_list: Annotated[bool, typer.Option("--list", help="List the packaged scenarios.")] = False,  # noqa: FBT002 - a flag
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each run.")] = False,  # noqa: FBT002 - a flag
    certify: Annotated[bool, typer.Option("--certify", help="Compare its rounds with the best possible.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Run scenarios in virtual time, and show which of their bounds hold. Nothing real is touched."""
    if as_list:
        _show_list(as_json=as_json)
        return
    if not scenarios:
        fail("expected a scenario, a file or a name; --list shows the names", EXIT_CONFIGURATION)
    overrides = given_settings(settings or ())
    try:
        cases = [_case(name, strategies or (), seed, traces or (), fill_gaps) for name in scenarios]
        held = _run_all(cases, overrides, as_json=as_json, certify=certify)
    except LoadManagerError as error:
        fail(str(error), EXIT_CONFIGURATION)
    if not held:
        raise SystemExit(EXIT_FAILURE)


def _case(
    name: str, strategies: Sequence[str], seed: int | None, traces: Sequence[str], fill_gaps: int
) -> _ScenarioCase:
    scenario, directory = load_scenario(name)
    if seed is not None:
        scenario = scenario.model_copy(update={"seed": seed})
    asked = [each for given in strategies for each in (SIDE_BY_SIDE if given == _ALL else (given,))]
    return _ScenarioCase(
        scenario, recorded_for(scenario, directory, traces, fill_gaps), tuple(asked) or scenario.strategies or ("",)
    )


def _run_all(cases: Sequence[_ScenarioCase], overrides: dict[str, str], *, as_json: bool, certify: bool) -> bool:
    """Run and show the scenarios. Return True if all bounds hold."""
    for case in cases:
        for strategy in case.strategies:  # check all before the first run
            settings_for(case.scenario, strategy, overrides)
    held = True
    for case in cases:
        runs = [_run(case, strategy, overrides, quiet=as_json, certify=certify) for strategy in case.strategies]
        held = held and all(each.held for each in runs)
        write_lines(map(_json, [case.scenario] * len(runs), runs) if as_json else _format_runs(case, runs))
    return held


def _run(case: _ScenarioCase, strategy: str, overrides: dict[str, str], *, quiet: bool, certify: bool) -> Run:
    label = f"{case.scenario.name} {strategy}".strip()
    with _progress(label, quiet=quiet or not sys.stderr.isatty()) as advance:
        return run(case.scenario, strategy, overrides, recorded=case.recorded, observe=advance, certify=certify)


@contextmanager
def _progress(label: str, *, quiet: bool) -> Iterator[Callable[[world.Progress], None]]:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  imbalance {task.fields[imbalance]:.2f}  moves {task.fields[moves]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet,
    )
    with bar:
        task = bar.add_task(label, total=1.0, imbalance=1.0, moves=0)
        yield lambda now: bar.update(task, completed=now.t_s / now.duration_s, imbalance=now.imbalance, moves=now.moves)


def _show_list(*, as_json: bool) -> None:
    known = packaged_scenarios()
    if as_json:
        write_lines(
            orjson.dumps({"name": name, "pathology": each.pathology, "about": each.about}).decode()
            for name, each in known.items()
        )
        return
    rows = [[name, each.pathology, each.about] for name, each in known.items()]
    write_lines(format_table(["Scenario", "Class of trouble", "What it is"], rows, get_terminal_width()))


def _format_runs(case: _ScenarioCase, runs: Sequence[Run]) -> list[str]:
    scenario, width = case.scenario, get_terminal_width()
    lines = wrap_text(f"{scenario.name}: {scenario.about}", width)
    lines += ["", *_figures(runs, width), "", *_checks(runs, width)]
    lines += [
        line
        for each in runs
        if each.certified
        for line in ("", f"{_name(each)}: {_summarize_certificates(each.certified)}")
    ]
    return [*lines, ""]


_HEADINGS = (
    "Strategy",
    "Bounds",
    "Imbalance mean",
    "max",
    "Worst broker",
    "Moves",
    "Moved load",
    "Again",
    "Returns",
    "Thrash",
    "Unowned",
)


def _figures(runs: Sequence[Run], width: int | None) -> list[str]:
    """Format the figures of the strategies side by side."""
    rows = []
    for each in runs:
        result, held = each.result, sum(check.held for check in each.checks)
        rows.append(
            [
                _name(each),
                "held" if each.held else f"{held} of {len(each.checks)} held",
                f"{mean_imbalance(result):.2f}",
                f"{_highest(result.series.imbalance.tolist()):.2f}",
                f"{100 * result.worst_usage:.0f} %",
                str(len(own_moves(result))),
                f"{100 * result.moved_share:.0f} %",
                f"{100 * result.moved_again:.0f} %",
                str(result.returns),
                f"{100 * result.thrash:.0f} %",
                f"{result.unowned_bundle_s:.0f} s",
            ]
        )
    return format_table(_HEADINGS, rows, width)


def _checks(runs: Sequence[Run], width: int | None) -> list[str]:
    """Format the bounds: all of a single strategy, or the failed ones of several."""
    rows = [
        ["held" if check.held else "NOT", check.key, _name(each), check.sentence]
        for each in runs
        for check in each.checks
        if len(runs) == 1 or not check.held
    ]
    return format_table(["", "Bound", "Strategy", "What was measured"], rows, width)


def _summarize_certificates(rounds: Sequence[CertificateFigures]) -> str:
    """Summarize the certificates of all rounds that moved something."""
    sums = sum_certificates(rounds)
    moved, least = 100 * sums["loadMoved"], 100 * sums["leastLoad"]
    return (
        f"{len(rounds)} rounds moved something and left heat at {sums['gapMean']:.3f} times what no assignment is"
        f" below, {sums['gapInBudgetMean']:.3f} times what none is below that moves no more; they moved {moved:.1f} %"
        f" of all load, where {least:.1f} % had to move for their heats"
    )


def _name(each: Run) -> str:
    return each.strategy or "as configured"


def _json(scenario: Scenario, each: Run) -> str:
    result = each.result
    return orjson.dumps(
        {
            "scenario": scenario.name,
            "strategy": each.strategy,
            "held": each.held,
            "checks": each.checks,
            "figures": {
                "imbalanceMean": mean_imbalance(result),
                "imbalanceMax": _highest(result.series.imbalance.tolist()),
                "worstUsage": result.worst_usage,
                "moves": len(own_moves(result)),
                "movedShare": result.moved_share,
                "movedAgain": result.moved_again,
                "returns": result.returns,
                "thrash": result.thrash,
                "splits": len(result.splits),
                "placements": result.placements,
                "rounds": result.rounds,
                "unownedBundleS": result.unowned_bundle_s,
                "clientsDisturbed": result.clients_disturbed,
                "reconnections": result.reconnections,
            },
            "certified": sum_certificates(each.certified) if each.certified else None,
            "seed": result.seed,
            "digest": result.digest(),
            "series": result.series,
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    ).decode()


def _highest(values: Sequence[float]) -> float:
    return max((each for each in values if each == each), default=1.0)  # noqa: PLR0124 - what is not a number


_SUFFIXES = (".yaml", ".yml")


def packaged_scenarios() -> dict[str, Scenario]:
    folder = resources.files("loadmanager.lab.simulate").joinpath("scenarios")
    files = sorted((each for each in folder.iterdir() if each.name.endswith(_SUFFIXES)), key=lambda each: each.name)
    found = [parse_yaml(Scenario, each.read_text(encoding="utf-8"), each.name) for each in files]
    return {scenario.name: scenario for scenario in found}


def load_scenario(name: str) -> tuple[Scenario, Path]:
    """Return the scenario in that file or of that name, and the base directory of its paths.

    Raises `ScenarioError`, which names the file, the key and the allowed values.
    """
    path = Path(name)
    if path.suffix in _SUFFIXES or path.is_file():
        return read_scenario_file(Scenario, path), path.parent
    known = packaged_scenarios()
    if name not in known:
        raise ScenarioError(f"{name}: no file, and no scenario of that name; there are {', '.join(known)}")
    return known[name], Path()


def recorded_for(scenario: Scenario, directory: Path, given: Sequence[str] = (), most_missing: int = 0) -> list[Series]:
    """Read the recorded series of a scenario, from the `given` files and directories or else from its own.

    Up to `most_missing` missing values in a row are replaced by the last value.

    Raises `ScenarioError` or `HistoryFileError`, which names file, row and column.
    """
    traces = scenario.traces
    if traces is None:
        return []
    named = [*traces.files, *([traces.directory] if traces.directory is not None else [])]
    paths = [Path(each) for each in given] or [directory / each for each in named]
    if not paths:
        raise ScenarioError(f"scenario {scenario.name}: traces: it names no files; give them by --traces")
    return read_series(list(_files(paths)), most_missing)


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("*.csv"))
        if not found:
            raise ScenarioError(f"{path}: no *.csv in this directory")
        yield from found


def read_scenario_file(model: type[P], path: Path) -> P:
    """Read a YAML file as this model. Raises `ScenarioError`, which names file, key and allowed values."""
    try:
        return parse_yaml(model, path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: not UTF-8 text") from None
