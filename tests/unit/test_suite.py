"""Runs of the tests: the processes that they start, what a machine lacks, wrong options, and the output of CI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import support.leaks
from coverage import Coverage
from support.waiting import eventually_sync
from support.zookeeper import is_alive

TESTS = Path(support.leaks.__file__).parents[1]

HEEDING = """
import subprocess, sys

def test_children_heed_signals():
    ask = "import signal; print(*(signal.getsignal(n) is signal.SIG_IGN for n in (1, 2, 3, 15)))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 4
"""

LEAVING = """
import pathlib, subprocess

def test_leaves_something():
    sleeping = ["/bin/sh", "-c", "sleep 600 & echo $!"]
    shell = subprocess.Popen(sleeping, stdout=subprocess.PIPE, start_new_session=True)
    pathlib.Path("pid").write_bytes(shell.stdout.readline())
"""

HOLDING = """
import socket, tempfile, threading

HELD = []
LOCK = threading.Lock()

def a_thread():
    LOCK.acquire()
    thread = threading.Thread(target=LOCK.acquire, daemon=True)
    thread.start()
    return thread

def test_leaves_something():
    HELD.extend([tempfile.mkstemp(), socket.socket(), a_thread()])
"""

FAILING = """
import pathlib, pytest

pytestmark = pytest.mark.{mark}

@pytest.fixture(params=range({tests}))
def runs(request):
    seen = pathlib.Path(f"seen-{{request.param}}")
    seen.write_text(seen.read_text() + "x" if seen.exists() else "x")
    yield len(seen.read_text())
    assert len(seen.read_text()) > {failures}, "it fails at its end, too"

def test_fails(runs):
    assert runs > {failures}
"""

LOGGING = """
def test_fails(tmp_path):
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "1.log").write_text("".join(f"line {number}\\n" for number in range(100)))
    assert False
"""

FORKING = """
import sys
import tempfile
from pathlib import Path
from support.processes import Processes

waiting = ["-m", "loadmanager", "dump", "--metadata-store-url", "zk:127.0.0.1:1"]
print(Processes(Path.cwd()).start("one", waiting, Path("log")), flush=True)
sys.stdin.read()
"""


def run(folder: Path, test: str, *, shell: str = "") -> subprocess.CompletedProcess[str]:
    """Run a test of its own, by itself, from a shell that is told something before."""
    (folder / "test_it.py").write_text(test)
    plugins = "-p no:cacheprovider -p support.leaks -p support.processes"
    pytest = f"exec {sys.executable} -m pytest -q {plugins} -c /dev/null test_it.py"
    command = ["/bin/sh", "-c", f"{shell}\n{pytest}"]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def test_processes_of_tests_receive_signals_ignored_by_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, HEEDING, shell="trap '' HUP INT QUIT TERM")
    assert done.returncode == 0, done.stdout


def test_process_that_outlives_its_test_fails_the_run_and_is_ended(tmp_path: Path) -> None:
    done = run(tmp_path, LEAVING)
    pid = int((tmp_path / "pid").read_text())
    assert done.returncode == 1, done.stdout
    assert "1 passed" in done.stdout
    assert f"LEFT BEHIND (ended now): {pid} sleep 600 of test_it.py::test_leaves_something" in done.stdout
    assert not is_alive(pid)


def test_leaked_files_sockets_and_threads_fail_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, HOLDING)
    assert done.returncode == 1, done.stdout
    assert f"LEFT BEHIND (ended now): {tempfile.gettempdir()}/loadmanager-tests-" in done.stdout
    for what in ("<socket.socket ", "<Thread("):
        assert re.search(f"left by tests: .*{re.escape(what)}", done.stdout), what


def test_failure_shows_the_end_of_each_log(tmp_path: Path) -> None:
    done = run(tmp_path, LOGGING)
    assert "end of node/1.log" in done.stdout
    assert re.findall(r"^line \d+$", done.stdout, re.MULTILINE) == [f"line {number}" for number in range(60, 100)]


def test_forked_process_ends_with_killed_tests(tmp_path: Path) -> None:
    patient = {"LOADMANAGER_METADATASTORESESSIONTIMEOUTMILLIS": "600000"}
    with subprocess.Popen(
        [sys.executable, "-c", FORKING],
        cwd=tmp_path,
        env=environment() | patient,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as tests:
        assert tests.stdout is not None
        forked = int(tests.stdout.readline())
        assert is_alive(forked)
        tests.kill()
    eventually_sync(lambda: not is_alive(forked))


def test_coverage_is_off_without_branch_coverage() -> None:
    assert Coverage.current() is None


@pytest.mark.parametrize(
    ("place", "mark", "tests", "failures", "options", "outcome", "runs"),
    [
        ("chaos", "slow", 3, 1, ["--retry"], (0, {"flaky": 3}), 2),
        ("pipeline", "slow", 1, 1, ["--retry", "-pxdist", "-n1"], (0, {"flaky": 1}), 2),
        ("page", "slow", 1, 2, ["--retry"], (1, {"failed": 1, "error": 1}), 2),
        ("integration", "slow", 4, 1, ["--retry"], (1, {"failed": 4, "error": 4}), 1),
        ("property", "slow", 1, 1, ["--retry"], (1, {"failed": 1, "error": 1}), 1),
        ("integration", "hypothesis", 1, 1, ["--retry"], (1, {"failed": 1, "error": 1}), 1),
        ("chaos", "slow", 1, 1, [], (1, {"failed": 1, "error": 1}), 1),
    ],
    ids=["three pass alone", "in a worker", "fails alone", "four", "no process", "a property", "not asked for"],
)
def test_failed_process_tests_run_again_alone(
    tmp_path: Path,
    place: str,
    mark: str,
    tests: int,
    failures: int,
    options: list[str],
    outcome: tuple[int, dict[str, int]],
    runs: int,
) -> None:
    folder = tmp_path / "tests" / place
    folder.mkdir(parents=True)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["support.retries"]')
    (tmp_path / "pytest.ini").write_text("[pytest]")
    (folder / "test_it.py").write_text(FAILING.format(mark=mark, tests=tests, failures=failures))
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    closing = done.stdout.splitlines()[-1]
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|error|flaky)", closing)}
    assert (done.returncode, counts) == outcome, done.stdout
    assert {len(seen.read_text()) for seen in tmp_path.glob("seen-*")} == {runs}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-m", "not nosuch"], "ERROR: -m: no marker nosuch; there are "),
        (["--store-seeds", "1,x"], "ERROR: --store-seeds 1,x: expected whole numbers, such as 1,2"),
        (["--hypothesis-profile", "x"], "ERROR: --hypothesis-profile x: expected quick, deep, search or few"),
    ],
)
def test_unknown_marker_seed_or_profile_is_refused_in_one_line(options: list[str], said: str) -> None:
    done = pytest_in_the_project("tests/unit/test_suite.py", *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.startswith(said)
    assert done.stderr.strip().count("\n") == 0


@pytest.mark.deep
@pytest.mark.parametrize(
    ("lacking", "test", "said"),
    [
        ({"LOADMANAGER_JAVA": "/none"}, "integration/test_explain.py", "need zookeeper: no Java 17 or newer"),
        ({"PATH": "/none"}, "page/test_large.py", "need browser: no Chromium was found: apt-get install chromium"),
        ({"PIP_INDEX_URL": "http://127.0.0.1:1"}, "integration/test_image_steps.py", "need network: no package index"),
    ],
)
def test_tests_without_their_requirements_are_skipped_in_one_line(
    lacking: dict[str, str], test: str, said: str
) -> None:
    done = pytest_in_the_project(f"tests/{test}", **lacking)
    assert done.returncode == 0, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert said in line
    assert " passed" not in done.stdout


def pytest_in_the_project(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=TESTS.parent, env=os.environ | variables, capture_output=True, text=True, check=False
    )


MAKEFILE = """
lint:
	@true
test:
	@echo "SKIPPED [7] here.py:1: all tests that need network: no package index answers pip"
	@echo "==== {test} in 8.10s (0:00:08) ===="; {end}
test-deep:
	@echo "==== 10 passed, 2 flaky in 1.00s ===="
"""


@pytest.mark.parametrize(
    ("test", "end", "code", "both"),
    [
        ("90 passed, 7 skipped", "true", 0, "102 passed, 0 failed, 7 skipped"),
        ("2 failed, 90 passed, 7 skipped, 1 error", "false", 1, "102 passed, 3 failed, 7 skipped"),
        ("90 passed, 7 skipped", "echo coverage fell; false", 1, "102 passed, 1 failed, 7 skipped"),
    ],
)
def test_ci_ends_with_skips_and_a_summary(tmp_path: Path, test: str, end: str, code: int, both: str) -> None:
    for name in (".ci/run", "bin/chromium", "bin/promtool"):  # those that are there are not installed
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(TESTS.parent / ".ci" / "run", tmp_path / name)
    (tmp_path / "Makefile").write_text(MAKEFILE.format(test=test, end=end))
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    done = subprocess.run(
        [tmp_path / ".ci" / "run"], env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (code, both)
    assert lines[-4].startswith("SKIPPED [7] here.py:1: all tests that need network")
