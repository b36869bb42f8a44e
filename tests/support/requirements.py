"""Skips of tests for which this machine lacks something: one line for each in the summary. A plugin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from tempfile import TemporaryDirectory

import pytest
from support.browser import NAMED_BY, find_browser

from loadmanager.errors import EmbeddedServerError
from loadmanager.util.jvm import get_java


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Function) -> None:
    for need, find_lack in _LACKS.items():
        if (need in item.fixturenames or item.get_closest_marker(need) is not None) and (lack := find_lack()):
            pytest.skip(f"all tests that need {need}: {lack}")


def _find_lack_of_browser() -> str:
    return "" if find_browser() else f"no Chromium was found: apt-get install chromium, or name one in {NAMED_BY}"


@cache
def _find_lack_of_java() -> str:
    try:
        get_java()
    except EmbeddedServerError as error:
        return str(error)
    return ""


@cache
def _find_lack_of_packages() -> str:
    with TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "1", "--no-cache-dir", "--dest", folder]
        done = subprocess.run([*pip, "typing-extensions"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no package index answers pip: {done.stderr.strip().splitlines()[-1]}"


_LACKS: dict[str, Callable[[], str]] = {
    "browser": _find_lack_of_browser,
    "network": _find_lack_of_packages,
    "spark": _find_lack_of_java,
    "zookeeper": _find_lack_of_java,
}
"""By fixture or marker, the function that returns what is missing; empty if nothing is."""
