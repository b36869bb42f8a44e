"""`loadmanager pipeline` as a process: what it says and how it exits when it is asked for something it cannot do."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loadmanager.cli import main

Pipeline = Callable[..., tuple[int, str]]


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pipeline:
    """Gives a command's exit code and standard error; for commands that end before Spark is started."""

    def asked(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["loadmanager", "pipeline", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().err

    return asked


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run {tmp} --out {tmp}/out --step ingst", "--step 'ingst': expected one of ingest, balance"),
        ("run {tmp} --out {tmp}/out --from yesterday", "--from 'yesterday'"),
        (
            "run {tmp} --out {tmp}/out --from 2026-02-01 --to 2026-01-01",
            "--to 2026-01-01: expected a moment after --from",
        ),
        ("publish --out {tmp} --url http://127.0.0.1:1", "no summary.json: has the pipeline been run into it?"),
    ],
)
def test_bad_usage_is_refused_with_the_fix(pipeline: Pipeline, tmp_path: Path, line: str, said: str) -> None:
    code, error = pipeline(*line.format(tmp=tmp_path).split())
    assert code == 2
    assert said in error


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("name: [", "not valid YAML"),
        ("name: some\nstrategys: [A]\n", "strategys"),
        ("name: some\nstretchS: 5\n", "stretchS"),
    ],
)
def test_bad_scenario_file_is_named(pipeline: Pipeline, tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "what-if.yaml"
    if content is not None:
        path.write_text(content)
    code, error = pipeline("run", tmp_path, "--out", tmp_path / "out", "--step", "whatif", "--scenarios", path)
    assert code == 2
    assert str(path) in error
    assert said in error
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
def test_master_without_a_listener_is_named_soon(pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "broker_reports").mkdir()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{unused.getsockname()[1]}"
        code, said = pipeline("run", tmp_path, "--out", tmp_path / "out", "--master", master, "--master-timeout", 5)
    assert code == 1
    assert f"master {master} does not answer" in said
    assert not (tmp_path / "out").exists()


def test_missing_extra_names_the_package_to_install(tmp_path: Path) -> None:
    hidden = (
        "import sys, importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'pyspark' else find(name, *rest)\n"
        "sys.modules['pyspark'] = None\n"
        "from loadmanager.cli import main; main()"
    )
    command = [sys.executable, "-c", hidden, "pipeline", "run", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not installed: pyspark; install with: pip install " in done.stderr
    assert "'loadmanager[pipeline]'" in done.stderr
