"""What the long-running commands share: exit codes, a faster event loop, and saying that they are ready."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import NoReturn

import orjson

_SWITCH_INTERVAL_S = 0.0005
EXIT_FAILURE = 1
EXIT_CONFIGURATION = 2
ANSWER_S = 0.5
"""How long requests under way may take once the process is told to stop."""


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong on standard error and end the process."""
    print(f"loadmanager: {message}", file=sys.stderr)
    raise SystemExit(code)


def install_fast_loop() -> None:
    """Use uvloop where it is installed (extra `fast`)."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return
    uvloop.install()


def keep_pauses_short() -> None:
    """Tune a process that has read the cluster and goes on to serve beside worker threads.

    What was read lives as long as the process: the garbage collector need not look at it again, which takes 0.2 s for
    100,000 bundles. A thread that plans hands the interpreter back after 0.5 ms instead of 5.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def write_ready_file(path: Path, url: str) -> None:
    """Tell whoever started this process where it answers; the file appears whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(orjson.dumps({"url": url, "pid": os.getpid()}))
    partial.replace(path)
