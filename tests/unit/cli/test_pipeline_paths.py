from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from loadmanager.cli import main
from loadmanager.cli.pipeline_command import find_history, find_output
from loadmanager.errors import ConfigurationError


def test_history_must_be_a_directory_with_tables(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in (
        (tmp_path / "none", "there is no such directory"),
        (tmp_path / "file", "is a file"),
        (tmp_path, "not a history: it has none of the directories "),
    ):
        with pytest.raises(ConfigurationError, match=why):
            find_history(str(path))
        with pytest.raises(ConfigurationError, match=why):
            find_history(f"file:{path}")
    (tmp_path / "broker_reports").mkdir()
    assert find_history(f"file:{tmp_path}") == str(tmp_path)


def test_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_output("out") == str(tmp_path / "out")


def test_output_directory_must_be_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    find_output(str(tmp_path / "some" / "where"))
    with pytest.raises(ConfigurationError, match=r"file is a file: expected a directory"):
        find_output(str(tmp_path / "file" / "where"))
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(ConfigurationError, match=f"nothing may be written in {tmp_path}"):
        find_output(str(tmp_path / "some" / "where"))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("abc://user:secret@bucket/history", "cannot be reached: .*Unrecognized filesystem type"),
        ("hdfs://user:secret@127.0.0.1:1/history", "cannot be reached: "),
        pytest.param(
            "s3://user:secret@bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1",
            "cannot be reached: ",
            marks=pytest.mark.deep,  # Arrow tries again for 6 s
        ),
    ],
)
def test_unreachable_url_is_rejected_without_its_password(url: str, why: str) -> None:
    for require, name in ((find_history, "HISTORY"), (find_output, "--out")):
        with pytest.raises(ConfigurationError, match=f"^{name} .*{why}") as raised:
            require(url)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("command", ["run", "stream"])
def test_missing_history_ends_with_2_before_spark_starts(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history = str(tmp_path / "none")
    monkeypatch.setattr(sys, "argv", ["loadmanager", "pipeline", command, history, "--out", str(tmp_path / "out")])
    monkeypatch.setattr("loadmanager.pipeline.session.spark_session", lambda *_, **__: pytest.fail("Spark started"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"HISTORY {history}: there is no such directory" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
