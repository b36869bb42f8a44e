"""`loadmanager ...` as it is typed, to its end, in a process of its own that is forked: see `support.forking`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from support.processes import forking
from support.waiting import eventually_sync

_numbers = count()
_ENDS_WITHIN_S = 180.0


def run(
    *words: str | Path, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` would return; `environ` is what the environment of this process has besides."""
    command = [str(word) for word in words]
    name = f"command {next(_numbers)}"
    with TemporaryDirectory() as folder:
        out, errors = (Path(folder) / each for each in ("out", "errors"))
        forking().fork(name, command, (out, errors), cwd or Path.cwd(), {**os.environ, **(environ or {})})
        try:
            eventually_sync(
                lambda: forking().find_exit_code(name) is not None,
                f"loadmanager {command} ends",
                least_s=_ENDS_WITHIN_S,
            )
        finally:
            code = forking().stop(name, grace_s=0)
        return subprocess.CompletedProcess(command, code, out.read_text(), errors.read_text())
