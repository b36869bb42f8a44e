"""Paths and URLs of the pipeline: those that cannot be used are refused before Spark takes its time to start."""

from __future__ import annotations

import os
from pathlib import Path

from loadmanager.config.settings_base import without_password
from loadmanager.errors import ConfigurationError, HistoryError
from loadmanager.history.files import Directory
from loadmanager.history.table_schemas import TABLES

_SUMMARY = "summary.json"


def located(url: str) -> str:
    """Return a path in full, for messages that are read elsewhere; a URL as it is."""
    return url if "://" in url or url.startswith("file:") else str(Path(url).absolute())


def require_history(url: str) -> None:
    """Raise `ConfigurationError` where there is none, or its file system cannot be reached."""
    directory = _reached("HISTORY", url)
    is_local = directory.filesystem.type_name == "local"
    if not directory.exists():
        is_file = is_local and Path(directory.root).exists()
        why = "is a file, and a history is a directory" if is_file else "there is no such directory"
        raise ConfigurationError(f"HISTORY {without_password(url)}: {why}")
    if is_local and not any(Path(directory.root, table).is_dir() for table in TABLES):
        raise ConfigurationError(f"HISTORY {url}: not a history: it has none of the directories {', '.join(TABLES)}")


def require_room(out: str) -> None:
    """Raise `ConfigurationError` where nothing can be written, or its file system cannot be reached."""
    directory = _reached("--out", out)
    if directory.filesystem.type_name != "local":
        return
    path = Path(directory.root)
    there = next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110 - where nothing may be looked at, Path raises
    if not there.is_dir():
        raise ConfigurationError(f"--out {out}: {there} is a file: expected a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--out {out}: nothing may be written in {there}")


def require_run(out: str) -> None:
    """Raise `ConfigurationError` where the pipeline has left nothing."""
    try:
        _reached("--out", out).read(_SUMMARY)
    except OSError:
        raise ConfigurationError(f"--out {out}: there is no {_SUMMARY}: has the pipeline been run into it?") from None


def _reached(name: str, url: str) -> Directory:
    """Return the directory. Raises `ConfigurationError` for an unknown scheme, without access or an answer."""
    try:
        directory = Directory.of(url)
        directory.exists()
    except (HistoryError, OSError) as error:
        why = without_password(" ".join(str(error).split()))
        raise ConfigurationError(f"{name} {without_password(url)}: cannot be reached: {why[:300]}") from None
    return directory
