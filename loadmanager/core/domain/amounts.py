"""What is too much of anything that is measured. Agents need it, and have no NumPy."""

from __future__ import annotations

MAX_AMOUNT = 1e18
"""Rates, bytes per second and usages beyond this are mistakes, and would overflow where they are added up."""

ALL_DIGITS = 17
"""All significant digits that a float has."""


def rounded(figure: float, digits: int) -> float:
    """Return the figure with so many significant digits."""
    return figure if digits >= ALL_DIGITS else float(f"{figure:.{digits}g}")
