from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.wire.validation import _start_of


def test_of_a_large_value_as_much_is_looked_at_as_is_shown() -> None:
    left = [60]
    assert _start_of([[1] * 1_000_000] * 1_000_000, left) == [[1] * 58]
    assert left == [0]
    assert _start_of({"a": [1, 2], "b": "x" * 100}, [60]) == {"a": [1, 2], "b": "x" * 61}


@given(st.recursive(st.integers() | st.booleans(), st.lists))
def test_of_a_small_value_all_is_shown(value: object) -> None:
    assert _start_of(value, [10**9]) == value
