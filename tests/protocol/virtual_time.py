"""Clocks of the parties; they replace the module `time` in the product's modules during a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.parties import VirtualLoop

_START_S = 1_700_000_000.0


class VirtualTime:
    """Part of `time` that the product uses; the wall clock is right everywhere."""

    CLOCK_BOOTTIME = "boottime"
    CLOCK_MONOTONIC = "monotonic"

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def clock_gettime(self, clock: str) -> float:
        return self._loop.boottime() if clock == self.CLOCK_BOOTTIME else self._loop.time()

    def perf_counter(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return _START_S + self._loop.now_s

    def time_ns(self) -> int:
        return int(self.time() * 1e9)


@contextmanager
def virtual_time(loop: VirtualLoop) -> Iterator[VirtualTime]:
    """Replace `time` in all modules of the product that use it."""
    clocks = VirtualTime(loop)
    modules = [
        module
        for name, module in sys.modules.copy().items()
        if name.startswith("loadmanager.") and getattr(module, "time", None) is time
    ]
    for module in modules:
        module.time = clocks  # type: ignore[attr-defined]  # it has that name
    try:
        yield clocks
    finally:
        for module in modules:
            module.time = time  # type: ignore[attr-defined]  # as above
