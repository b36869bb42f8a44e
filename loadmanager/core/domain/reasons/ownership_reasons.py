"""Reasons of ownership changes besides placement and shedding."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class OwnershipReason(Reason):
    LOOKUP = entry("lookup")
    ADMIN_UNLOAD = entry("admin_unload")
    OWNER_GONE = entry("owner_gone")
    UNLOAD_FAILED = entry("unload_failed")
    UNLOAD_COMPLETED = entry("unload_completed")
    UNLOAD_CANCELLED = entry("unload_cancelled")
    DRAIN = entry("drain")
    RETURNED_AFTER_DRAIN = entry("returned_after_drain")
    PLAN_EXECUTED = entry("plan_executed")
    DRAIN_ENDED = entry("drain_ended", "Drain ended because another process of the broker has registered")
