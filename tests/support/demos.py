"""The demo, and one that ran to its end, for all tests that look at what it said and left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.waiting import patience

_COMMAND = [sys.executable, "-c", "from loadmanager.cli import main; main()", "demo", "--json", "--duration", "30"]


@contextmanager
def running_demo(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Half a minute of it, with what it leaves in the folder."""
    with subprocess.Popen(
        [*_COMMAND, "--folder", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@dataclass(frozen=True)
class FinishedDemo:
    folder: Path
    code: int
    out: str
    err: str

    @property
    def history(self) -> Path:
        """In which a leader and a broker were killed. Not to be changed."""
        (history,) = (self.folder / "demo-history").iterdir()
        return history


@pytest.fixture(scope="session")
def finished_demo(tmp_path_factory: pytest.TempPathFactory) -> FinishedDemo:
    folder = tmp_path_factory.mktemp("demo")
    with running_demo(folder) as process:
        out, err = process.communicate(timeout=patience(120.0))
    return FinishedDemo(folder, process.returncode, out, err)
