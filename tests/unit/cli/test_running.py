"""What long-running commands share."""

from __future__ import annotations

import ctypes
import platform

import psutil
import pytest

from loadmanager.cli.running import give_back_memory

EACH_BYTES, PAIRS = 100_000, 400


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's allocator that can be asked")
def test_memory_that_is_free_between_what_is_kept_is_given_back() -> None:
    pieces = [bytes([1]) * EACH_BYTES for _ in range(2 * PAIRS)]
    del pieces[::2]
    before = psutil.Process().memory_info().rss
    give_back_memory()
    assert before - psutil.Process().memory_info().rss > PAIRS * EACH_BYTES / 2
    assert len(pieces) == PAIRS


def test_an_allocator_that_cannot_be_asked_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    give_back_memory()
