"""A browser without a window, where there is one. A plugin, so that what names it is out of the way before any test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.waiting import patience

NAMED_BY = "LOADMANAGER_CHROMIUM"
_NAMED_FOR_WORKERS = "CHROMIUM_OF_TESTS"
"""By another name: processes that tests start refuse a variable with our prefix that is none of their keys."""

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

if NAMED_BY in os.environ:
    os.environ[_NAMED_FOR_WORKERS] = os.environ.pop(NAMED_BY)


def find_browser() -> str | None:
    """The Chromium that the environment names, or one by whatever name it goes here."""
    return next(filter(None, map(shutil.which, (os.environ.get(_NAMED_FOR_WORKERS, ""), *_NAMES))), None)


def shown(browser: str, page: Path) -> str:
    """Return the page's document after its scripts have run."""
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{page}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=True).stdout
