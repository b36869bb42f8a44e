"""Python processes of a test, which end with it, however it ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from loadmanager.embedded.processes import ServerProcesses


class Processes:
    """Processes by name; `folder` is where they run. Use it with `with`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guarded = ServerProcesses()

    def start(self, name: str, arguments: Sequence[str], log: Path) -> int:
        """Start a Python with `arguments`, its output appended to `log`; the process id."""
        return self._guarded.start(name, [sys.executable, *arguments], cwd=self._folder, log=log)

    def signal(self, name: str, number: signal.Signals) -> None:
        self._guarded.signal(name, number)

    def is_running(self, name: str) -> bool:
        return self._guarded.find_exit_code(name) is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guarded.close()
