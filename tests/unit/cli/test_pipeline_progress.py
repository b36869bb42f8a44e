from __future__ import annotations

import pytest

from loadmanager.cli.pipeline_command import ProgressView


def test_each_step_ends_with_its_rows_and_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressView(["ingest", "whatif"]) as view:
        view.began("ingest")
        view.wrote("ingest", "rejected_rows", 1234)
        view.ended("ingest", 30.0)
        view.began("whatif")
        view.ended("whatif", 0.5)
    said = capsys.readouterr().err.splitlines()
    assert said == ["  rejected_rows: 1,234 rows", "ingest: 1,234 rows, 30.0 s", "whatif: 0.5 s"]


def test_terminal_shows_the_current_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with ProgressView(["ingest", "report"]) as view:
        view.began("ingest")
        view.ended("ingest", 0.01)
        view.began("report")
    assert "report (2 of 2)" in capsys.readouterr().err
