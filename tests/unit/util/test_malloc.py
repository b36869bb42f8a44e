from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import psutil
import pytest

from loadmanager.util.malloc import give_back_memory, map_large_blocks

EACH_BYTES, PAIRS = 100_000, 400
COLUMNS = """
import ctypes, sys
from loadmanager.util.malloc import map_large_blocks

class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "b", "c", "d", "mapped", "f", "g", "h", "i", "j")]

def mapped():
    look = ctypes.CDLL(None).mallinfo2
    look.restype = Mallinfo
    return look().mapped

if sys.argv[1] == "asked":
    map_large_blocks()
larger = bytearray(16 << 20)
del larger
before = mapped()
column = bytearray(4 << 20)
print((mapped() - before) >> 20)
"""


of_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's allocator that can be asked")


@of_glibc
def test_free_memory_is_returned_to_the_system() -> None:
    pieces = [bytes([1]) * EACH_BYTES for _ in range(2 * PAIRS)]
    del pieces[::2]
    before = psutil.Process().memory_info().rss
    give_back_memory()
    assert before - psutil.Process().memory_info().rss > PAIRS * EACH_BYTES / 2
    assert len(pieces) == PAIRS


@of_glibc
@pytest.mark.parametrize(("given", "mapped_mib"), [("as it is", "0"), ("asked", "4")])
def test_large_columns_are_mapped_when_requested(given: str, mapped_mib: str) -> None:
    done = subprocess.run([sys.executable, "-c", COLUMNS, given], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == mapped_mib


def test_unsupported_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    give_back_memory()
    map_large_blocks()
