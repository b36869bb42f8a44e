from __future__ import annotations

import pytest

from loadmanager.cli.pipeline_progress import Estimate, ProgressView

STEPS = ["ingest", "whatif", "report"]


def test_a_first_run_says_what_is_left_once_a_step_has_shown_how_fast_this_machine_is() -> None:
    estimate = Estimate(STEPS, {}, 0.0)
    estimate.begin("ingest", 0.0)
    assert estimate.describe(10.0) == "21 %"
    estimate.end(40.0)  # twice as long as usual: 20 s of 48
    assert estimate.describe(40.0) == "42 %, about 56 s left"
    estimate.begin("whatif", 40.0)
    assert estimate.part(60.0) == pytest.approx(30 / 48)
    assert estimate.left_s(60.0) == pytest.approx(2 * 18)


def test_a_later_run_goes_by_what_each_step_took_and_a_new_step_by_the_same_measure() -> None:
    estimate = Estimate(STEPS, {"ingest": 100.0, "whatif": 300.0, "publish": 9.0}, 0.0)
    assert estimate.left_s(0.0) == pytest.approx(480.0)  # ten times the usual, the report too
    estimate.begin("ingest", 0.0)
    assert estimate.describe(50.0) == "10 %, about 7 min left"


def test_what_takes_longer_than_it_should_is_not_done_and_no_step_goes_back() -> None:
    estimate = Estimate(STEPS, {"ingest": 10.0, "whatif": 10.0, "report": 10.0}, 0.0)
    parts = []
    for step, began_s in (("ingest", 0.0), ("whatif", 100.0), ("report", 101.0)):
        estimate.begin(step, began_s)
        parts += [estimate.part(began_s + after) for after in (0.0, 0.5, 0.9)]
        estimate.end(began_s + 1.0 if step != "ingest" else 100.0)
    assert parts == sorted(parts)
    assert estimate.part(102.0) == 1.0
    assert estimate.left_s(102.0) == 0.0


def test_a_run_without_steps_that_take_anything_is_done() -> None:
    assert Estimate([], {}, 0.0).part(1.0) == 1.0


def test_each_step_ends_with_its_rows_and_where_the_run_is(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = iter([0.0, 0.0, 30.0])
    with ProgressView(["ingest", "whatif"], {"ingest": 30.0, "whatif": 90.0}, lambda: next(now_s)) as mirror:
        mirror.began("ingest")
        mirror.wrote("ingest", "rejected_rows", 1234)
        mirror.ended("ingest", 30.0)
    said = capsys.readouterr().err.splitlines()
    assert said == ["  rejected_rows: 1,234 rows", "ingest: 1,234 rows, 30.0 s (25 %, about 90 s left)"]


def test_progress_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with ProgressView(["ingest", "report"], {"ingest": 30.0, "report": 90.0}, lambda: 15.0) as mirror:
        mirror.began("ingest")
        mirror.ended("ingest", 0.01)
        mirror.began("report")
    said = capsys.readouterr().err
    assert "report (2 of 2)" in said
    assert "25 %, about 90 s left" in said
