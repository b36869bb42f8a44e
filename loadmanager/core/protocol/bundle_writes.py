"""Batched ownership writes: one write per namespace, one result per bundle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadmanager.core.domain.names import namespace_of
from loadmanager.core.domain.ownership import Ownership, Stamp

Transition = Callable[[Ownership, Stamp], Ownership]
"""Function from the current ownership to the next; raises `IllegalTransitionError` when it no longer applies."""


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Apply each transition to its bundle's ownership in one namespace record; answered by WriteEnded. A transition
    that fails does not block the others.
    """

    namespace: str
    transitions: Mapping[str, Transition]
    reason: str


@dataclass(frozen=True, slots=True)
class WriteEnded:
    """Result of a write: per bundle the stored ownership, or the error (also when the outcome is unknown)."""

    write: Write
    made: Mapping[str, Ownership | Exception]


def group_writes(transitions: Mapping[str, Transition], reason: str) -> list[Write]:
    """Group transitions into one write per namespace."""
    by_namespace: dict[str, dict[str, Transition]] = defaultdict(dict)
    for bundle, transition in transitions.items():
        by_namespace[namespace_of(bundle)][bundle] = transition
    return [Write(namespace, each, reason) for namespace, each in by_namespace.items()]
