"""Maximum body sizes that we read; apart from the bodies, so that a command need not load their models."""

from __future__ import annotations

LARGEST_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of an answer."""
