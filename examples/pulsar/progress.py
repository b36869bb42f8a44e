"""Waiting for another process: by a condition and with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable

from loadmanager.errors import EmbeddedServerError

Report = Callable[[str], None]
"""Shows one line of progress."""

_POLL_S = 0.1


def wait_until(
    condition: Callable[[], object], what: str, *, timeout_s: float, check: Callable[[], None] = lambda: None
) -> None:
    """Wait until the condition holds. `check` is called in between and raises if it can never hold.

    Raises `EmbeddedServerError` after `timeout_s`. Connection errors count as a condition that does not hold yet.
    """
    deadline_s = time.monotonic() + timeout_s
    while not _holds(condition):
        check()
        if time.monotonic() > deadline_s:
            raise EmbeddedServerError(f"{what}: not within {timeout_s:g} s")
        time.sleep(_POLL_S)


def _holds(condition: Callable[[], object]) -> bool:
    try:
        return bool(condition())
    except OSError:
        return False
