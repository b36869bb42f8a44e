"""Maximum sizes of bodies that we read. Separate from the models of bodies, which are slow to import."""

from __future__ import annotations

LARGEST_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of an answer."""
