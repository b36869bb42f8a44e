"""The steps and the tables fit each other, and the documentation lists them."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

from loadmanager.pipeline.datasets import DATASETS
from loadmanager.pipeline.steps import STEPS

DOCUMENT = Path(__file__).parents[3] / "docs" / "pipeline.md"


def test_steps_read_only_tables_of_earlier_steps() -> None:
    made = set[str]()
    for step in STEPS.values():
        assert set(step.reads) <= made, step.name
        made |= set(step.writes)
        assert set(step.reads_if_there) <= made, step.name


def test_every_table_is_written_by_a_step() -> None:
    made = [table for step in STEPS.values() for table in step.writes]
    assert set(made) == DATASETS.keys()


def test_documentation_lists_tables_and_their_steps() -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = lines.index("| table | made by | a row is |") + 2
    there = [line.split(" | ")[:2] for line in takewhile(lambda line: line.startswith("|"), lines[start:])]
    makers = {name: [f"`{step.name}`" for step in STEPS.values() if name in step.writes] for name in DATASETS}
    assert there == [[f"| `{name}`", ", ".join(steps)] for name, steps in makers.items()]


def test_documentation_names_declared_tables_only() -> None:
    headings = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("### ")]
    named = {name for line in headings for name in re.findall(r"`(\w+)`", line)}
    assert named
    assert named <= DATASETS.keys()


def test_documentation_explains_every_table() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in DATASETS if text.count(f"`{name}`") < 2] == []
