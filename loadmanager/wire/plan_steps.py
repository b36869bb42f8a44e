"""JSON form of a decision's steps: the history stores it, and a replay compares it."""

from __future__ import annotations

from typing import Any

from loadmanager.core.domain.plan import Assign, Unload
from loadmanager.core.strategies.merging import Merge
from loadmanager.core.strategies.splitting.split_finder import Split


def step_as_json(step: Assign | Unload) -> dict[str, Any]:
    source = step.source if isinstance(step, Unload) else None
    destination = step.destination
    return {
        "kind": "unload" if isinstance(step, Unload) else "assign",
        "bundle": step.bundle,
        "source": source.broker if source else None,
        "source_incarnation": source.incarnation if source else None,
        "destination": destination.broker if destination else None,
        "destination_incarnation": destination.incarnation if destination else None,
        "reason": step.reason.value,
    }


def split_as_json(split: Split) -> dict[str, Any]:
    detail = {"boundaries": list(split.boundaries)}
    return {"kind": "split", "bundle": split.bundle, "reason": split.reason.value, "detail": detail}


def merge_as_json(merge: Merge) -> dict[str, Any]:
    return {"kind": "merge", "bundle": merge.lower, "detail": {"with": merge.upper}}
