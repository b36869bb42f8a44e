"""Limits of measured amounts, without NumPy, which agents do not have."""

from __future__ import annotations

MAX_AMOUNT = 1e18
"""Maximum plausible rate, bytes per second or usage; larger values would overflow in sums."""

ALL_DIGITS = 17
"""Significant digits of a float."""


def rounded(figure: float, digits: int) -> float:
    """Round the figure to this many significant digits."""
    return figure if digits >= ALL_DIGITS else float(f"{figure:.{digits}g}")
