"""CONTRIBUTING's recipe for a new strategy, followed to the letter in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
FOLDER = "loadmanager/core/strategies/placement"

ASK = """
import numpy as np
from support.builders import bundle, report, snapshot

from loadmanager.core.diagnosis.reason_catalogue import reason_of
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.planning.planner import plan_assignments

given = snapshot({"a": report(topics=3), "b": report(topics=1), "c": report(topics=2)})
plan, _ = plan_assignments(
    given, [bundle(1)], PlannerSettings(placement_strategy="FewestTopics"), {}, np.random.default_rng(0)
)
print(plan.steps[0].destination.broker)
print(plan.verdicts[0].sentence())
print(reason_of("fewest_topics").value)
"""


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package as it is once somebody has done what CONTRIBUTING says."""
    top = tmp_path_factory.mktemp("recipe")
    shutil.copytree(TOP / "loadmanager", top / "loadmanager", ignore=shutil.ignore_patterns("__pycache__"))
    strategy, names = recipe()
    (top / FOLDER / "fewest_topics.py").write_text(strategy)
    package = top / FOLDER / "__init__.py"
    package.write_text(with_lines_of(names, package.read_text()))
    return top


def recipe() -> list[str]:
    _, section = (TOP / "CONTRIBUTING.md").read_text().split("\n## Adding a strategy\n")
    return re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL)


def with_lines_of(printed: str, code: str) -> str:
    """The code with the printed lines that it lacks, each after the printed one before it."""
    lines = code.splitlines()
    at = lines.index("from __future__ import annotations") + 1
    for line in printed.replace("    ...\n", "").splitlines():
        if line in lines:
            at = lines.index(line) + 1
        else:
            lines.insert(at, line)
            at += 1
    return "\n".join([*lines, ""])


def run(top: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(top), str(TOP / "tests")])}
    done = subprocess.run(
        [sys.executable, *command], cwd=TOP / "tests", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_strategy_of_the_recipe_decides_and_explains(followed: Path) -> None:
    assert run(followed, "-c", ASK).splitlines() == [
        "b:8080",
        "Placed because b:8080 has the fewest topics, 1, of 3 candidates",
        "fewest_topics",
    ]


def test_property_tests_run_the_strategy_of_the_recipe(followed: Path) -> None:
    test = "test_strategies.py::test_every_placement_strategy_has_a_choice_in_enough_clusters[FewestTopics]"
    assert "1 passed" in run(followed, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"property/{test}")
