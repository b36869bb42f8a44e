"""The checklist of the contract, in its order: a function for each line."""

from __future__ import annotations

from loadmanager.check.rules import leases, questions, statistics, unloads

RULES = (
    leases.without_agent,
    leases.serves,
    leases.lease_lapses,
    leases.late_lease,
    leases.stopped,
    leases.sole_process,
    leases.incarnation_changes,
    questions.other_incarnation,
    questions.void_by_unload,
    questions.void_by_lapse,
    questions.broken_answers,
    unloads.unload_unknown,
    unloads.unload_twice,
    unloads.unload_under_load,
    unloads.unload_hangs,
    unloads.unload_stopped,
    unloads.prepare,
    statistics.opening_is_told,
    statistics.statistics,
    questions.opened_once,
    leases.large_incarnation,
    unloads.unknown_fields,
    unloads.told_to_end,
)
