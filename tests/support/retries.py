"""Second runs of tests of processes that failed: each alone, after all others. A plugin; `--retry` turns it on."""

from __future__ import annotations

import subprocess
import sys

import pytest
from _pytest.terminal import TerminalReporter
from support.leaks import is_worker

PROCESS_LEVEL = ("tests/chaos/", "tests/integration/", "tests/page/", "tests/pipeline/")
"""Prefixes of tests that may run again; all other tests are deterministic."""
MOST = 3

_Failures = dict[str, list[pytest.TestReport]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--retry", action="store_true", help=f"run tests of processes that failed again, if at most {MOST} did"
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if is_worker(config) or not config.getoption("--retry") or exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    reporter = config.pluginmanager.getplugin("terminalreporter")
    assert reporter is not None
    failures = _failures_of_processes(reporter)
    if len(failures) > MOST:
        reporter.write_line(f"\n{len(failures)} tests of processes failed, more than {MOST}: none runs again")
        return
    for name, reports in failures.items():
        reporter.write_line(f"\nonce more, alone: {name}")
        if _passes_alone(config, name):
            _count_as_flaky(reporter, reports)
            session.testsfailed -= len(reports)
    if session.testsfailed == 0:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    for report in terminalreporter.stats.get("flaky", []):
        terminalreporter.write_sep("=", f"flaky: {report.nodeid}", yellow=True)
        terminalreporter.write_line("It failed, then passed alone: see tests/flaky.md.")
        report.toterminal(terminalreporter._tw)


def _failures_of_processes(reporter: TerminalReporter) -> _Failures:
    """Find the reports of each failed test. Properties are left out: another example is no second run."""
    found: _Failures = {}
    for report in [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]:
        if report.nodeid.startswith(PROCESS_LEVEL) and "hypothesis" not in report.keywords:
            found.setdefault(report.nodeid, []).append(report)
    return found


def _passes_alone(config: pytest.Config, name: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
    return subprocess.run(command, cwd=config.rootpath, check=False).returncode == pytest.ExitCode.OK


def _count_as_flaky(reporter: TerminalReporter, reports: list[pytest.TestReport]) -> None:
    for category in ("failed", "error"):
        left = [report for report in reporter.stats.pop(category, []) if report not in reports]
        if left:
            reporter.stats[category] = left
    reporter.stats.setdefault("flaky", []).append(reports[0])
