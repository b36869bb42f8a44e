"""glibc malloc tuning for processes with large snapshots."""

from __future__ import annotations

import contextlib
import ctypes

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD in malloc.h
_LARGE_BYTES = 1 << 20


def map_large_blocks() -> None:
    """Allocate large columns with mmap, so that they return to the system when freed.

    By default glibc raises the threshold to the size of any freed block, up to 32 MiB, and serves such blocks from the
    heap. Then the memory of a finished plan stays with the process.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


def give_back_memory() -> None:
    """Return free heap memory to the system; useful after a large cluster was read."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
