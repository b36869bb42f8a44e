from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from support.recorded import NOON_MS
from support.recorded_fleet import MINUTE_MS, record_fleet

from loadmanager.config.dynamic_settings import settings_of, values_as_text
from loadmanager.lab.whatif.range_figures import RangeFigures
from loadmanager.lab.whatif.score_worker import SCORE_ANSWER, ScoreAnswer, ScoreQuestion, answer


def a_question(folder: Path, *strategies: str, minutes: int = 30, memory_mib: int = 2048) -> ScoreQuestion:
    record_fleet(folder, minutes)
    settings = values_as_text(settings_of({}, "test"))
    to_ms = NOON_MS + minutes * MINUTE_MS
    return ScoreQuestion(str(folder), NOON_MS, to_ms, settings, strategies, 60.0, memory_mib * 2**20)


def test_answer_has_the_measured_and_modelled_imbalance(tmp_path: Path) -> None:
    found = answer(a_question(tmp_path, "", "OverloadShedder", minutes=10))
    assert (found.error, found.left_out, set(found.worlds)) == ("", {}, {"", "OverloadShedder"})
    configured, overload = found.worlds[""], found.worlds["OverloadShedder"]
    assert found.imbalance > 1.5
    assert configured.moves > 0 == overload.moves
    assert configured.moved_mib_per_s > 0
    assert configured.imbalance < overload.imbalance == pytest.approx(found.imbalance, rel=0.05)


def test_failing_strategy_is_left_out_with_the_reason(tmp_path: Path) -> None:
    found = answer(a_question(tmp_path, "NoSuch", "OverloadShedder"))
    assert set(found.worlds) == {"OverloadShedder"}
    assert "'NoSuch'" in found.left_out["NoSuch"]


def test_cluster_that_merges_bundles_has_scores(tmp_path: Path) -> None:
    question = a_question(tmp_path, "", minutes=10)
    merging = {**question.settings, "loadBalancerAutoBundleMergeEnabled": "true"}
    assert answer(replace(question, settings=merging)).left_out == {}


def test_range_without_reports_has_no_score(tmp_path: Path) -> None:
    question = replace(a_question(tmp_path, ""), from_ms=0, to_ms=MINUTE_MS)
    assert answer(question).error == "no broker has reported in the range"


def run(question: ScoreQuestion) -> tuple[ScoreAnswer, int]:
    """Answer of the process, and the niceness that it asks for and does not get: a busy machine would starve it."""
    worker = (
        "import os, sys; os.nice = lambda by: print(by, file=sys.stderr); import loadmanager.lab.whatif.score_worker"
    )
    command = [sys.executable, "-c", f"{worker} as worker; worker.main()"]
    done = subprocess.run(command, input=orjson.dumps(question), capture_output=True, check=True)
    return SCORE_ANSWER.validate_json(done.stdout), int(done.stderr.split()[-1])


def test_process_gives_the_same_answer_at_the_lowest_priority(tmp_path: Path) -> None:
    question = a_question(tmp_path, "", minutes=10)
    assert run(question) == (answer(question), 19)


def test_process_has_a_memory_limit(tmp_path: Path) -> None:
    found, _ = run(a_question(tmp_path, "", minutes=10, memory_mib=1))
    assert found.error
    assert found.worlds == {}


def test_answer_survives_a_round_trip() -> None:
    given = ScoreAnswer(1.5, {"": RangeFigures(1.25, 0.5, 3.0, 2.5, 0.5, 0.25)}, {"x": "why"})
    assert SCORE_ANSWER.validate_json(orjson.dumps(given)) == given
    with pytest.raises(ValueError, match="Invalid JSON"):
        SCORE_ANSWER.validate_json(b"no")
