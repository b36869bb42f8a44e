"""Exact memory of numpy arrays: allocated and not yet freed."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

_ARRAYS = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)


@contextmanager
def held_arrays() -> Iterator[Callable[[], int]]:
    """Bytes of arrays that were created inside the block and are still referenced."""

    def held() -> int:
        gc.collect()
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([_ARRAYS]).traces)

    tracemalloc.start()
    try:
        yield held
    finally:
        tracemalloc.stop()
