"""A browser without a window, where there is one. A plugin, so that what names it is out of the way before any test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAMED_BY = "LOADMANAGER_CHROMIUM"
_NAMED_FOR_WORKERS = "CHROMIUM_OF_TESTS"
"""A second name: processes started by tests reject environment variables with our prefix that are not settings."""

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

if NAMED_BY in os.environ:
    os.environ[_NAMED_FOR_WORKERS] = os.environ.pop(NAMED_BY)


def find_browser() -> str | None:
    """Chromium as named by the environment, or found under one of its usual names."""
    return next(filter(None, map(shutil.which, (os.environ.get(_NAMED_FOR_WORKERS, ""), *_NAMES))), None)


def shown(browser: str, page: Path) -> str:
    """Return the page's document after its scripts have run."""
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{page}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
