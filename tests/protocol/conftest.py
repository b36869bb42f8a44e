"""Garbage of a simulated world is collected before the next test, without warnings."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from unittest.mock import patch

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
    with warnings.catch_warnings(), patch("sys.unraisablehook", lambda _: None):
        warnings.simplefilter("ignore")
        gc.collect()
