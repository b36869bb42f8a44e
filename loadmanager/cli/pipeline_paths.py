"""Directories of this machine that cannot be what is asked for are refused before Spark takes its time to start."""

from __future__ import annotations

import os
from pathlib import Path

from loadmanager.config.settings_base import without_password
from loadmanager.errors import ConfigurationError, HistoryError
from loadmanager.history.files import Directory
from loadmanager.history.table_schemas import TABLES

_SUMMARY = "summary.json"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which may have another filesystem as its default."""


def located(url: str, master: str | None) -> str:
    """From wherever it is said again: a path of this machine in full."""
    path = _on_this_machine(url, master)
    return url if path is None or url.startswith("file:") else str(path)


def require_history(url: str, master: str | None) -> None:
    """Raises `ConfigurationError` where there is none, or its file system cannot be reached."""
    path = _on_this_machine(url, master)
    if path is None:
        _require_directory("HISTORY", url)
        return
    if not path.is_dir():
        why = "is a file, and a history is a directory" if path.exists() else "there is no such directory"
        raise ConfigurationError(f"HISTORY {url}: {why}")
    if not any((path / table).is_dir() for table in TABLES):
        raise ConfigurationError(f"HISTORY {url}: not a history: it has none of the directories {', '.join(TABLES)}")


def require_room(out: str, master: str | None) -> None:
    """Raises `ConfigurationError` where nothing can be written."""
    path = _on_this_machine(out, master)
    if path is None:
        _reach("--out", out)
        return
    there = next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110 - where nothing may be looked at, Path raises
    if not there.is_dir():
        raise ConfigurationError(f"--out {out}: {there} is a file: expected a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--out {out}: nothing may be written in {there}")


def require_run(out: str, master: str | None) -> None:
    """Raises `ConfigurationError` where the pipeline has left nothing."""
    path = _on_this_machine(out, master)
    if path is not None and not (path / _SUMMARY).is_file():
        raise ConfigurationError(f"--out {out}: there is no {_SUMMARY}: has the pipeline been run into it?")


def _require_directory(name: str, url: str) -> None:
    if not _reach(name, url):
        raise ConfigurationError(f"{name} {without_password(url)}: there is no such directory")


def _reach(name: str, url: str) -> bool:
    """Return whether the directory of a URL exists. Raises `ConfigurationError` without access or an answer."""
    try:
        return "://" not in url or Directory.of(url).exists()
    except (HistoryError, OSError) as error:
        why = without_password(" ".join(str(error).split()))
        raise ConfigurationError(f"{name} {without_password(url)}: cannot be reached: {why[:300]}") from None


def _on_this_machine(url: str, master: str | None) -> Path | None:
    if url.startswith("file:"):
        return Path("/" + url.removeprefix("file:").lstrip("/"))
    is_here = master.startswith("local") if master is not None else _SUBMITTED not in os.environ
    return Path(url).absolute() if is_here and "://" not in url else None
