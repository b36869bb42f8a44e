"""A browser without a window, where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAMED_BY = "LOADMANAGER_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SHOWN_WITHIN_S = 60


def find_browser() -> str | None:
    """The Chromium that the environment names, or one by whatever name it goes here."""
    return next(filter(None, map(shutil.which, (os.environ.get(NAMED_BY, ""), *_NAMES))), None)


def shown(browser: str, page: Path) -> str:
    """What the page has become once the browser has made sense of it."""
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{page}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=_SHOWN_WITHIN_S, check=True).stdout
