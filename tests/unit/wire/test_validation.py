from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.wire.validation import _start_of


def test_large_value_is_read_only_as_far_as_it_is_shown() -> None:
    left = [60]
    assert _start_of([[1] * 1_000_000] * 1_000_000, left) == [[1] * 58]
    assert left == [0]
    assert _start_of({"a": [1, 2], "b": "x" * 100}, [60]) == {"a": [1, 2], "b": "x" * 61}


@given(st.recursive(st.integers() | st.booleans(), st.lists))
def test_small_value_is_shown_in_full(value: object) -> None:
    assert _start_of(value, [10**9]) == value
