"""Tables of cases of which `make test` runs a few representatives, and `make test-deep` all others."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest


def deep_except(quick: Collection[object], cases: Iterable[object]) -> list[object]:
    """Return `cases` for `parametrize`, all but the `quick` ones marked deep. A tuple is one case of several names."""
    cases = list(cases)
    assert set(quick) <= set(cases), f"no such case: {set(quick) - set(cases)}"
    return [each if each in quick else _deep(each) for each in cases]


def _deep(case: object) -> object:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.deep)
