"""The checklist of the contract, in its order: one function per line."""

from __future__ import annotations

from loadmanager.broker.conformance.rules import lease_rules, question_rules, unload_rules

RULES = (
    lease_rules.without_agent,
    lease_rules.serves,
    lease_rules.lease_lapses,
    lease_rules.late_lease,
    lease_rules.stopped,
    lease_rules.sole_process,
    lease_rules.incarnation_changes,
    question_rules.other_incarnation,
    question_rules.void_by_unload,
    question_rules.void_by_lapse,
    question_rules.broken_answers,
    unload_rules.unload_unknown,
    unload_rules.unload_twice,
    unload_rules.unload_under_load,
    unload_rules.unload_hangs,
    unload_rules.unload_stopped,
    unload_rules.prepare,
    question_rules.opening_is_told,
    question_rules.statistics,
    question_rules.opened_once,
    lease_rules.large_incarnation,
    unload_rules.unknown_fields,
    unload_rules.told_to_end,
)
