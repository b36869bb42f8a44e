"""What a process that holds a large cluster asks of the allocator: glibc's, others are left alone."""

from __future__ import annotations

import contextlib
import ctypes

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD in malloc.h
_LARGE_BYTES = 1 << 20


def map_large_blocks() -> None:
    """Have columns of many bundles come from the system, and go back to it when nobody holds them any more.

    By itself glibc takes blocks as large as any that was ever freed, up to 32 MiB, from among the small ones: what a
    plan was worked out in then stays with the process.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


def give_back_memory() -> None:
    """Have the allocator give back what it holds and nobody uses: much, after a large cluster was read."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
