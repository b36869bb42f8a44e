"""Writes of many bundles at a time: one of each namespace, and each bundle with what came of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadmanager.core.domain.names import namespace_of
from loadmanager.core.domain.ownership import Ownership, Stamp

Transition = Callable[[Ownership, Stamp], Ownership]
"""From the current ownership to the next one; raises `IllegalTransitionError` when it no longer applies."""


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Write what each transition makes of its bundle's ownership, all of one namespace, and come back with WriteEnded.
    One that cannot be made keeps no other from it.
    """

    namespace: str
    transitions: Mapping[str, Transition]
    reason: str


@dataclass(frozen=True, slots=True)
class WriteEnded:
    """Of each bundle of the write the ownership as it is stored, or why it is not, or why nobody knows."""

    write: Write
    made: Mapping[str, Ownership | Exception]


def writes_of(transitions: Mapping[str, Transition], reason: str) -> list[Write]:
    """One for each namespace."""
    by_namespace: dict[str, dict[str, Transition]] = defaultdict(dict)
    for bundle, transition in transitions.items():
        by_namespace[namespace_of(bundle)][bundle] = transition
    return [Write(namespace, each, reason) for namespace, each in by_namespace.items()]
