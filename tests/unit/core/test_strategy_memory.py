from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.planning.decision_kinds import merged

states = st.recursive(
    st.integers(0, 3), lambda part: st.dictionaries(st.sampled_from("abc"), part, max_size=3), max_leaves=8
).filter(lambda state: isinstance(state, dict))


def test_concurrent_changes_are_merged_and_the_later_one_wins() -> None:
    before = {"A": {"usage": {"b1": 1, "b2": 1, "b3": 1}, "turn": 1}, "B": {"x": 1}, "gone": {}}
    now = {"A": {"usage": {"b1": 2, "b2": 2, "b3": 1, "b4": 2}, "turn": 2}, "B": {"x": 2}, "C": {"new": 1}, "gone": {}}
    after = {"A": {"usage": {"b1": 3, "b2": 1}, "turn": 1}, "B": {"x": 1}, "D": {"new": 3}}
    assert merged(before, after, now) == {
        "A": {"usage": {"b1": 3, "b2": 2, "b4": 2}, "turn": 2},
        "B": {"x": 2},
        "C": {"new": 1},
        "D": {"new": 3},
    }


def test_removed_value_returns_only_if_changed_concurrently() -> None:
    before = {"A": {"x": 1, "y": 1}}
    assert merged(before, {"A": {"x": 2, "y": 1}}, {"A": {}}) == {"A": {"x": 2}}
    assert merged(before, {"A": 5}, {}) == {"A": 5}


@given(before=states, after=states, now=states)
def test_single_decision_is_kept(before: dict[str, Any], after: dict[str, Any], now: dict[str, Any]) -> None:
    assert merged(before, after, before) == after
    assert merged(before, after, dict(before)) == after
    assert merged(before, before, now) == now
