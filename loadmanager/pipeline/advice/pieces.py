"""A piece of advice, and the kinds there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadmanager.core.plan import Figure

SPLIT, SPLIT_BLOCKED, UNSPLITTABLE, MERGE, BUNDLES = "split", "split_blocked", "unsplittable", "merge", "bundles"
NEVER, ALWAYS = "threshold_never", "threshold_always"
QUIET, UNKNOWN_LIMITS = "quiet_reports", "unknown_limits"
CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Advice:
    kind: str
    subject: str
    text: str
    evidence: Mapping[str, Figure]
