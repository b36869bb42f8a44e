"""Exit codes of failed commands."""

from __future__ import annotations

import sys
from typing import NoReturn

EXIT_FAILURE = 1
EXIT_CONFIGURATION = 2
EXIT_INTERRUPTED = 130


def fail(message: str, code: int) -> NoReturn:
    """Print an error to standard error and end the process."""
    print(f"loadmanager: {message}", file=sys.stderr)
    raise SystemExit(code)
