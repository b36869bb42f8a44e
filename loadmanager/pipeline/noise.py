"""Filter for standard error of the JVM: Spark's start-up messages are left out, everything else is passed on.

The JVM inherits our standard error, and says some of it before any setting of Spark's is read.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2
_NOISE = re.compile(
    rb"WARNING: (Using incubator modules|.*terminally deprecated|.*sun\.misc\.Unsafe|Please consider reporting)"
    rb"|Using Spark's default log4j profile"
    rb"|Setting (default|Spark) log level to"
    rb"|To adjust logging level use"
    rb"|\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) "
)
_LAST_WORDS_S = 1.0


@contextmanager
def without_noise() -> Iterator[None]:
    """A JVM that is started meanwhile speaks through here for as long as it lives."""
    sys.stderr.flush()
    reading, writing = os.pipe()
    before = os.dup(_STDERR)
    os.dup2(writing, _STDERR)
    os.close(writing)
    passing = threading.Thread(target=_pass_on, args=(reading, os.dup(before)), daemon=True)
    passing.start()
    try:
        yield
    except BaseException:
        _give_back(before)
        passing.join(_LAST_WORDS_S)  # of a JVM that did not start: they say why
        raise
    _give_back(before)


def _give_back(before: int) -> None:
    sys.stderr.flush()
    os.dup2(before, _STDERR)
    os.close(before)


def _pass_on(reading: int, to: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(to, "wb", buffering=0) as out:
        for line in lines:
            if not _NOISE.match(line):
                out.write(line)
