"""`loadmanager demo` as a whole, shortened: real processes, a killed leader, a killed broker, and what became of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.demo import FinishedDemo, running_demo
from support.processes import ended_sync
from support.waiting import eventually_sync

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with running_demo(tmp_path) as process:
        yield process


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process that has the folder in its command line, except the demo itself."""
    found = []
    for process in psutil.process_iter():
        try:
            arguments = process.cmdline()
        except psutil.Error:
            continue
        if any(str(folder) in argument for argument in arguments) and "--json" not in arguments:
            found.append(process)
    return found


def test_demo_runs_to_its_end(finished_demo: FinishedDemo) -> None:
    out, err = finished_demo.out, finished_demo.err
    assert finished_demo.code == 0, f"{out}\n{err}"
    summary = json.loads(out)
    assert summary["ok"] is True
    assert summary["was_completed"] is True
    assert summary["two_owners"] == summary["topics_without_owner"] == summary["died_unexpectedly"] == []
    assert summary["messages"] > 10_000
    assert summary["bundles_moved"] >= 1
    assert summary["gaps"]["moved"]["topics"] >= 1
    assert summary["gaps"]["broker_killed"]["topics"] >= 1
    # How uneven it was is a matter of luck on a machine that is busy: that something was moved shows that it was.
    assert min(summary["imbalance"][window] for window in ("after_shedding", "at_the_end")) >= 1
    assert (summary["imbalance"]["before"] or 1) >= 1
    assert summary["leader_failover_s"] > 0
    assert summary["brokers"] == 5
    assert processes_of(finished_demo.folder) == []
    for part in (
        "ZooKeeper answers",
        "broker-5 answers",
        "look at http://127.0.0.1:",
        "the leader node-",
        "its agent were killed",
        "broker-6 is new",
        "hot spot on",
    ):
        assert part in err


@pytest.mark.deep
def test_killed_demo_leaves_no_process_behind(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    eventually_sync((tmp_path / "client-2.ready").exists, least_s=180)
    assert len(processes_of(tmp_path)) >= 3 + 2 * 5 + 2
    demo.kill()
    eventually_sync(lambda: processes_of(tmp_path) == [])


@pytest.mark.deep
def test_interrupted_demo_prints_a_summary_and_ends_all(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    eventually_sync((tmp_path / "client-2.ready").exists, least_s=180)
    eventually_sync((tmp_path / "client-2.jsonl").read_text, "a client has changed its owner", least_s=180)
    os.kill(demo.pid, signal.SIGINT)
    _, out, err = ended_sync(demo)
    summary = json.loads(out)
    assert summary["was_completed"] is False, err
    assert summary["two_owners"] == []
    assert processes_of(tmp_path) == []
