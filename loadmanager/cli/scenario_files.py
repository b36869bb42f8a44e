"""Scenario files of the package and of the user, with the recorded series that they name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

import yaml

from loadmanager.errors import ScenarioError
from loadmanager.history.synthetic_fleet import read_series
from loadmanager.lab.simulate.scenario import Scenario, parse_scenario
from loadmanager.lab.simulate.world_builder import RecordedSeries

_SUFFIXES = (".yaml", ".yml")


def packaged_scenarios() -> dict[str, Scenario]:
    """Those that come with the package, by name."""
    folder = resources.files("loadmanager.lab.simulate").joinpath("scenarios")
    files = sorted((each for each in folder.iterdir() if each.name.endswith(_SUFFIXES)), key=lambda each: each.name)
    found = [_parse(each.read_text(encoding="utf-8"), each.name) for each in files]
    return {scenario.name: scenario for scenario in found}


def load_scenario(name: str) -> tuple[Scenario, Path]:
    """The scenario in that file, or of that name, and the directory that paths in it start from.

    Raises `ScenarioError`, naming the file, the key and what is allowed.
    """
    path = Path(name)
    if path.suffix in _SUFFIXES or path.is_file():
        try:
            return _parse(path.read_text(encoding="utf-8"), name), path.parent
        except OSError as error:
            raise ScenarioError(f"{name}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ScenarioError(f"{name}: not UTF-8 text") from None
    known = packaged_scenarios()
    if name not in known:
        raise ScenarioError(f"{name}: no file, and no scenario of that name; there are {', '.join(known)}")
    return known[name], Path()


def recorded_for(
    scenario: Scenario, directory: Path, given: Sequence[str] = (), most_missing: int = 0
) -> list[RecordedSeries]:
    """The series of its traces: of the files and directories `given`, or of those that it names itself.

    Where at most so many values in a row are missing, the last one stands for them.

    Raises `ScenarioError` or `HistoryFileError`, which names file, row and column.
    """
    traces = scenario.traces
    if traces is None:
        return []
    named = [*traces.files, *([traces.directory] if traces.directory is not None else [])]
    paths = [Path(each) for each in given] or [directory / each for each in named]
    if not paths:
        raise ScenarioError(f"scenario {scenario.name}: traces: it names no files; give them by --traces")
    series = read_series(list(_files(paths)), most_missing)
    return [RecordedSeries(each.name, each.step_ms / 1000, each.values) for each in series]


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("*.csv"))
        if not found:
            raise ScenarioError(f"{path}: no *.csv in this directory")
        yield from found


def _parse(text: str, where: str) -> Scenario:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScenarioError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    return parse_scenario(content, where)
