"""Stamp of a file, to notice that it was replaced."""

from __future__ import annotations

from pathlib import Path


def read_stamp(path: Path | None) -> object:
    """Return a value that differs once the file has changed; None without a file."""
    try:
        stat = path.stat() if path is not None else None
    except OSError:
        return None
    return stat and (stat.st_mtime_ns, stat.st_size, stat.st_ino)
