"""Every reason there is: those by subject, and those of each strategy."""

from __future__ import annotations

import loadmanager.core.diagnosis.stuck_diagnosis
import loadmanager.core.strategies.placement
import loadmanager.core.strategies.shedding  # noqa: F401 - each strategy declares its reasons
from loadmanager.core.domain.reasons import Reason

REASONS = {reason.value: reason for subject in Reason.__subclasses__() for reason in subject}
"""By their words."""


def reason_of(word: str) -> Reason:
    """The reason that was written down as this word; raises `ValueError` for a word that is none."""
    if word not in REASONS:
        raise ValueError(f"{word!r} is no reason")
    return REASONS[word]
