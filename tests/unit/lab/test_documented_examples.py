from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.dumps import APP
from typer.testing import CliRunner

DOCS = Path(__file__).parents[3] / "docs"
SHOWN = re.findall(
    r"^```\n\$ loadmanager decide ([^\n]*)\n(.*?)^```$",
    (DOCS / "strategies.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize(("arguments", "shown"), SHOWN, ids=[arguments[:40] for arguments, _ in SHOWN])
def test_documented_example(arguments: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS / "examples")
    monkeypatch.setenv("COLUMNS", "160")
    result = CliRunner().invoke(APP, shlex.split(arguments))
    assert result.exit_code == 0
    assert trimmed(result.output) == trimmed(shown)


def test_every_example_file_is_shown() -> None:
    assert {path.name for path in (DOCS / "examples").glob("*.jsonl")} == {
        arguments.split()[0] for arguments, _ in SHOWN
    }
