"""Reading of scenario and what-if files."""

from __future__ import annotations

from pathlib import Path

from loadmanager.errors import ScenarioError
from loadmanager.lab.simulate.scenario import P, parse_yaml


def read_scenario_file(model: type[P], path: Path) -> P:
    """Read a YAML file as this model. Raises `ScenarioError`, which names file, key and allowed values."""
    try:
        return parse_yaml(model, path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: not UTF-8 text") from None
