"""What the long-running commands share: exit codes, a faster event loop, and saying that they are ready."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import orjson

EXIT_FAILURE = 1
EXIT_CONFIGURATION = 2


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


def write_ready_file(path: Path, url: str) -> None:
    """Tell whoever started this process where it answers; the file appears whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(orjson.dumps({"url": url, "pid": os.getpid()}))
    partial.replace(path)
