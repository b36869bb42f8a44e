"""What a world leaves behind, half done, is collected before another test, and is no news."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from unittest.mock import patch

import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    with warnings.catch_warnings(), patch("sys.unraisablehook", lambda _: None):
        warnings.simplefilter("ignore")
        gc.collect()
