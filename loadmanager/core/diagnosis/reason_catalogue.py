"""All reasons: those by subject, and those of each strategy."""

from __future__ import annotations

import loadmanager.core.diagnosis.stuck_diagnosis
import loadmanager.core.strategies.placement
import loadmanager.core.strategies.shedding  # noqa: F401 - each strategy declares its reasons
from loadmanager.core.domain.reasons import Reason

REASONS = {reason.value: reason for subject in Reason.__subclasses__() for reason in subject}
"""Reasons by word."""


def reason_of(word: str) -> Reason:
    """Return the reason stored as this word; raises `ValueError` if unknown."""
    if word not in REASONS:
        raise ValueError(f"{word!r} is no reason")
    return REASONS[word]
