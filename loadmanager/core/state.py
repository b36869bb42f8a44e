"""What strategies remember, as JSON.

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
