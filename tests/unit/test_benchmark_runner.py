"""`make bench`: results of all benchmarks in one file, also of those that end early."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
IN_ANOTHER_ENVIRONMENT = {"with_highs", "with_rebalancer"}

ONE_FIGURE = (
    "from measure import Measured, show\nshow('speed', [Measured('lookups', 3.0, 'x', {target}, at_least=True)])\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("run.py", "measure.py"):
        shutil.copy(BENCHMARKS / name, tmp_path)
    (tmp_path / "bench_fast.py").write_text(ONE_FIGURE.format(target=2.0))
    (tmp_path / "bench_slow.py").write_text(ONE_FIGURE.format(target=4.0))
    (tmp_path / "bench_broken.py").write_text("print('so far', flush=True)\nraise SystemExit('no server')\n")
    return tmp_path


def run(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "run.py"), *names]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_results_have_every_figure_and_unfinished_benchmark(folder: Path) -> None:
    done = run(folder)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "could not be measured to the end: broken")
    results = (folder / "RESULTS.md").read_text()
    head, broken, fast, slow = results.split("\n## ")
    assert "load average" in head
    assert "commit unknown" in head
    assert broken.endswith("```\nso far\n```\n\n**broken could not be measured to the end.**\n")
    assert ">= 2 x" in fast
    assert "met" in fast
    assert "MISSED" in slow
    assert "MISSED" in done.stdout, "the terminal shows the same"


def test_one_benchmark_can_be_chosen_and_unknown_one_is_named(folder: Path) -> None:
    assert run(folder, "fast").returncode == 0
    assert (folder / "RESULTS.md").read_text().count("\n## ") == 1
    done = run(folder, "fastest")
    assert (done.returncode, done.stderr) == (2, "no benchmark named fastest; there are broken, fast, slow\n")


@pytest.mark.deep
@pytest.mark.parametrize("module", sorted({path.stem for path in BENCHMARKS.glob("*.py")} - IN_ANOTHER_ENVIRONMENT))
def test_each_benchmark_finds_what_it_imports(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, cwd=BENCHMARKS)
