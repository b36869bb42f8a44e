"""Atomic file replacement: write to a temporary file, then rename."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import orjson


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` at the end; an error deletes it."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: object) -> None:
    """Write a file for processes that read it at any time."""
    with whole(path) as partial:
        partial.write_bytes(orjson.dumps(content))


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Write the content and the pid of this process, for the process that started it."""
    write_json(path, {**content, "pid": os.getpid()})
