"""What strategies remember: as JSON, and put together when two decisions were made beside each other.

A decision takes in what strategies remember and gives it out again, often and for a hundred thousand bundles. So a part
of it may be a value that holds columns, and becomes JSON only where it leaves the process: see `as_json`. Each strategy
takes either form in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class InColumns(Protocol):
    """A value that never changes and stands for a JSON value."""

    def as_json(self) -> Any: ...  # noqa: ANN401 - whatever JSON can hold


def as_json(state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The state, by strategy name, as nothing but JSON."""
    return {
        strategy: {key: part.as_json() if isinstance(part, InColumns) else part for key, part in remembered.items()}
        for strategy, remembered in state.items()
    }


def merged(before: Any, after: Any, now: Any) -> Any:  # noqa: ANN401 - a state, or a part of one
    """What is remembered after two decisions that began with `before`, neither of which saw what the other remembers.

    It is `now`, what one of them has left, with all that the other has changed on the way to `after`.
    """
    if now is before or not all(isinstance(each, Mapping) for each in (before, after, now)):
        return after
    left = {key: part for key, part in now.items() if key in after or key not in before}
    changed = {key: part for key, part in after.items() if key not in before or part != before[key]}
    return left | {
        key: merged(before[key], part, now[key]) if key in before and key in now else part
        for key, part in changed.items()
    }
