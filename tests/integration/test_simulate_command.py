"""`loadmanager simulate` as it is typed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command_line import run
from support.scenarios import a_file


def simulate(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return run("simulate", *arguments, environ={"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "160"}, cwd=cwd)


def written(folder: Path, **changes: Any) -> str:  # noqa: ANN401 - whatever a key may hold
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(a_file(**changes)), encoding="utf-8")
    return str(path)


def test_scenario_is_shown_with_its_figures_and_bounds() -> None:
    done = simulate("ninety-ten")
    assert (done.returncode, done.stderr) == (0, "")
    assert "as configured  held" in done.stdout
    assert "held  levelled" in done.stdout


def test_certify_option_shows_the_gap_to_the_lower_bound() -> None:
    done = simulate("five-to-ten-brokers", "--strategy", "Level", "--certify", "--json")
    (run,) = (json.loads(line) for line in done.stdout.splitlines())
    certified = run["certified"]
    assert certified["rounds"] > 0
    assert certified["gapMean"] >= certified["gapInBudgetMean"] >= 1
    assert certified["loadMoved"] >= certified["leastLoad"] > 0
    shown = simulate("five-to-ten-brokers", "--strategy", "Level", "--certify").stdout
    assert f"Level: {certified['rounds']} rounds moved something" in shown


def test_strategies_are_compared_and_a_violated_bound_ends_with_1() -> None:
    done = simulate("ninety-ten", "--strategy", "ThresholdShedder", "--strategy", "OverloadShedder")
    assert done.returncode == 1
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith(("Threshold", "Overload"))}
    assert " held " in rows["ThresholdShedder"]
    assert " 3 of 5 held " in rows["OverloadShedder"]
    assert "NOT  levelled" in done.stdout
    assert "█" not in done.stdout


def test_json_has_one_reproducible_object_per_run(tmp_path: Path) -> None:
    name = written(tmp_path, expect={"movesAtMost": 0}, strategies=["ThresholdShedder", "AvgShedder"])
    first, again = simulate(name, "--json"), simulate(name, "--json", "--seed", "0")
    assert first.returncode == 0
    assert first.stdout == again.stdout
    runs = [json.loads(line) for line in first.stdout.splitlines()]
    assert [run["strategy"] for run in runs] == ["ThresholdShedder", "AvgShedder"]
    assert runs[0]["checks"][0] | {"sentence": ""} == {
        "key": "movesAtMost",
        "held": True,
        "measured": 0,
        "bound": 0,
        "sentence": "",
    }
    assert len(runs[0]["series"]["imbalance"]) == 10


def test_set_option_overrides_scenario_settings(tmp_path: Path) -> None:
    name = written(
        tmp_path, settings={"loadBalancerSheddingEnabled": True}, expect={"said": [{"reason": "shedding_disabled"}]}
    )
    assert simulate(name).returncode == 1
    assert simulate(name, "--set", "loadBalancerSheddingEnabled=false").returncode == 0


def test_packaged_scenarios_are_listed() -> None:
    done = simulate("--list", "--json")
    names = {json.loads(line)["name"] for line in done.stdout.splitlines()}
    assert {"five-to-ten-brokers", "stationary-noise", "mass-failure"} <= names
    shown = simulate("--list").stdout
    assert all(name in shown for name in names)


def test_recorded_series_are_read_from_files_or_a_folder(tmp_path: Path) -> None:
    rows = "".join(f"2026-01-01 00:{minute:02}:00,{minute % 7}\n" for minute in range(60))
    (tmp_path / "one.csv").write_text(f"timestamp,value\n{rows}", encoding="utf-8")
    traces = {"bundles": 8, "owners": "dealt"}
    assert simulate(written(tmp_path, traces={**traces, "files": ["one.csv"]})).returncode == 0
    assert simulate(written(tmp_path, traces={**traces, "directory": "."})).returncode == 0
    without = written(tmp_path, traces=traces)
    assert simulate(without, "--traces", str(tmp_path)).returncode == 0
    done = simulate(without)
    assert (done.returncode, done.stderr) == (
        2,
        "loadmanager: scenario a-scenario: traces: it names no files; give them by --traces\n",
    )


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ("2026-01-01 00:00:00,1\n2026-01-01 00:01:00,-1\n", "row 3, column value"),
        ("2026-01-01 00:00:00,1\n2026-01-01 00:01:00,1\n2026-01-01 00:03:00,1\n", "row 4, column timestamp"),
    ],
)
def test_bad_series_is_refused_with_file_and_row(tmp_path: Path, rows: str, complaint: str) -> None:
    (tmp_path / "bad.csv").write_text(f"timestamp,value\n{rows}", encoding="utf-8")
    done = simulate(written(tmp_path, traces={"bundles": 4, "files": ["bad.csv"]}))
    assert done.returncode == 2
    assert "bad.csv" in done.stderr
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "expected a scenario, a file or a name; --list shows the names"),
        (("no-such",), "no-such: no file, and no scenario of that name; there are autoscaled-days, "),
        (("no-such.yaml",), "no-such.yaml: No such file or directory"),
        (("ninety-ten", "--strategy", "Foo"), "--strategy 'Foo': expected one of OverloadShedder"),
        (("ninety-ten", "--set", "loadBalancerEnabld=1"), "unknown key 'loadBalancerEnabld'; did you mean"),
        (("ninety-ten", "--set", "maxUnloadPercentage=7"), "maxUnloadPercentage"),
        (("ninety-ten", "--set", "nonsense"), "--set 'nonsense': expected KEY=VALUE"),
        (("recorded-traffic", "--traces", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_invalid_input_ends_with_2_and_one_line(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    done = simulate(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"name: [", "not valid YAML"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"- a\n", "expected a mapping with the keys of a scenario"),
        (b"nam: x\n", "nam: unknown key; did you mean 'name'?"),
    ],
)
def test_invalid_scenario_file_is_rejected_by_name(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    done = simulate(str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}: {complaint}" in done.stderr
    assert done.stderr.count("\n") == 1
