"""Reasons about the gap of a plan to the best possible one."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class CertificateReason(Reason):
    PLAN_CERTIFIED = entry(
        "plan_certified",
        (
            "Heat {heat_after} after {heat_before}: no assignment can be below {bound} ({bound_by}), and none below"
            " {bound_in_budget} that moves no more; {load_moved_percent} % of all load moves, at least"
            " {least_load_percent} % has to for that heat; noise alone makes {noise_floor}"
        ),
    )
    NOTHING_MOVES = entry(
        "nothing_moves",
        "Heat {heat_before}: no assignment can be below {bound} ({bound_by}); noise alone makes {noise_floor}",
    )
