"""Summary of a shedding round: one verdict that names the routes of its moves and their share of the load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadmanager.core.domain.plan import Unload, Verdict
from loadmanager.core.domain.reasons import SheddingReason
from loadmanager.core.model.carried_load import share_of
from loadmanager.core.model.snapshot import Snapshot

_MOST_ROUTES = 5


def summarize_round(number: int, snapshot: Snapshot, steps: Sequence[Unload], *, acted: bool) -> Verdict:
    """Summarize the moves of a round: bundles, percent of all traffic, and the routes with the most bundles first."""
    routes = Counter(map(_format_route, steps))
    shown = [f"{route} ({bundles})" for route, bundles in routes.most_common(_MOST_ROUTES)]
    if len(routes) > _MOST_ROUTES:
        shown.append(f"{len(routes) - _MOST_ROUTES} more routes")
    why = {
        "round": number,
        "bundles": len(steps),
        "share_percent": 100 * sum(share_of(snapshot, step.bundle) for step in steps),
        "routes": ", ".join(shown),
    }
    return Verdict("cluster", SheddingReason.ROUND_MOVES, acted, why)


def _format_route(step: Unload) -> str:
    destination = "any broker" if step.destination is None else step.destination.broker
    return f"{step.source.broker} -> {destination}"
