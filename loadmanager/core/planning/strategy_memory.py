"""Memory of strategies: conversion to JSON, and three-way merge of concurrent decisions.

A decision passes the memory in and out, often for a hundred thousand bundles. So a part of it may hold columns and
becomes JSON only when it leaves the process: see `as_json`. Each strategy accepts either form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class InColumns(Protocol):
    """Immutable value in columns that stands for a JSON value."""

    def as_json(self) -> Any: ...  # noqa: ANN401 - whatever JSON can hold


def as_json(state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the memory, by strategy name, as plain JSON."""
    return {
        strategy: {key: part.as_json() if isinstance(part, InColumns) else part for key, part in remembered.items()}
        for strategy, remembered in state.items()
    }


def merged(before: Any, after: Any, now: Any) -> Any:  # noqa: ANN401 - a state, or a part of one
    """Merge the memories of two concurrent decisions that began with `before` (three-way merge).

    The result is `now`, with all changes from `before` to `after`.
    """
    if now is before or not all(isinstance(each, Mapping) for each in (before, after, now)):
        return after
    left = {key: part for key, part in now.items() if key in after or key not in before}
    changed = {key: part for key, part in after.items() if key not in before or part != before[key]}
    return left | {
        key: merged(before[key], part, now[key]) if key in before and key in now else part
        for key, part in changed.items()
    }
