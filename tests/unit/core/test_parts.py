from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.domain.parts import in_parts


@given(items=st.lists(st.integers()), size=st.integers(1, 9))
def test_all_comes_in_its_order_and_but_for_the_last_part_as_many_at_a_time(items: list[int], size: int) -> None:
    parts = list(in_parts(iter(items), size))
    assert [item for part in parts for item in part] == items
    assert all(len(part) == size for part in parts[:-1])
    assert all(0 < len(part) <= size for part in parts[-1:])
