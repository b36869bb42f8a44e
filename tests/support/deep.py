"""Cases of which `make test` runs a few representatives, and `make test-deep` all others; limits of examples."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest
from hypothesis import settings


def deep_except(quick: Collection[object], cases: Iterable[object]) -> list[object]:
    """Return `cases` for `parametrize`, all but the `quick` ones marked deep. A tuple is one case of several names."""
    cases = list(cases)
    assert set(quick) <= set(cases), f"no such case: {set(quick) - set(cases)}"
    return [each if each in quick else _deep(each) for each in cases]


def _deep(case: object) -> object:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.deep)


def at_most(examples: int) -> settings:
    """Return settings of a property with slow examples, or with several cases: no profile draws more than these."""
    return settings(max_examples=min(settings().max_examples, examples))
