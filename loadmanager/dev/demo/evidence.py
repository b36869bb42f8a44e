"""Files of JSON lines in which the demo's processes leave evidence; `append` returns when the kernel has the line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from loadmanager.util.atomic_write import whole


class DemoJournal:
    """One file; what was appended survives a SIGKILL of the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: Mapping[str, object]) -> None:
        os.write(self._file, json.dumps(record, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The records of a file, which may be missing; a last line cut off in the middle is left out."""
    if not path.exists():
        return []
    *lines, _cut_off = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


def read_journals(paths: Iterable[Path]) -> list[dict[str, Any]]:
    return [record for path in paths for record in read_journal(path)]


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Say that this process is ready; whoever waits sees the whole file or none."""
    with whole(path) as partial:
        partial.write_text(json.dumps(content), encoding="utf-8")
