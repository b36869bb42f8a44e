"""Garbage of a simulated world is collected before the next test."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

_GARBAGE = 50_000


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Restrict the garbage collector to objects of the world; this halves the time of a run."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    yield
    gc.set_threshold(*thresholds)
    gc.collect()
