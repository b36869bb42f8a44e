"""Every command that is printed, in a message or in the documentation, runs as it is printed."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import check, root
from typer._click.exceptions import UsageError

from loadmanager.cli import COMMANDS

ROOT = Path(__file__).parents[3]
NAME = "t/ns/0x00000000_0x80000000"
"""Stands wherever a message fills in a name: of a bundle, or of anything that may be called so."""

PRINTED = re.compile(rf"loadmanager(?: (?:{'|'.join(COMMANDS)}))(?: (?![a-z]+ing\b)[-\w./:=<>']+)*")
IN_DOCUMENTS = re.compile(r"^ *(?:\$ )?(loadmanager [a-z].*?)(?:  #.*| [|>&].*| \\)?$", re.MULTILINE)


def strings(path: Path) -> Iterator[str]:
    """The texts in a file of Python but for docstrings, with a name wherever one is filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else NAME for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield re.sub(r"\{\w+\}", NAME, node.value.replace("{namespace}", "t/ns"))


def printed() -> list[tuple[str, str]]:
    """Location and text of each printed command."""
    found = []
    for path in sorted((ROOT / "loadmanager").rglob("*.py")):
        for text in strings(path):
            lines = PRINTED.findall(text)
            found += [(str(path.relative_to(ROOT)), line) for line in lines if ": " not in line]  # not who says it
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]):
        lines = IN_DOCUMENTS.findall(path.read_text(encoding="utf-8"))
        found += [(str(path.relative_to(ROOT)), line) for line in lines if "[" not in line and "..." not in line]
    return found


def test_every_printed_command_is_valid() -> None:
    commands, faults = printed(), []
    assert len(commands) > 100
    whole = root()
    for where, line in commands:
        try:
            check(whole, shlex.split(line.rstrip(".,;:"))[1:])
        except UsageError as error:
            faults.append(f"{where}: {line}: {error.format_message()}")
    assert not faults, "\n".join(faults)


def test_invalid_commands_are_detected() -> None:
    for line in (
        "loadmanager admin brokers drain",
        "loadmanager admin drain b1",
        "loadmanager admin brokers list --all",
    ):
        with pytest.raises(UsageError):
            check(root(), shlex.split(line)[1:])
