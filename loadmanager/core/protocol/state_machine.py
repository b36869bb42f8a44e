"""Interfaces of the state machines, their common events and actions, and execution of actions."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration, Stamp

_In_contra = TypeVar("_In_contra", contravariant=True)
_Action = TypeVar("_Action")


class Signal(enum.Enum):
    """TIME: `wake_s` is reached, or a driver requests a pass. MEMBERSHIP: a broker joined or left. CHANGED: the
    controls changed, or a broker left.
    """

    TIME = enum.auto()
    MEMBERSHIP = enum.auto()
    CHANGED = enum.auto()


class Machine(Protocol[_In_contra, _Action]):
    """State machine: `step` processes one event; at `wake_s` it needs a step with `Signal.TIME`."""

    @property
    def wake_s(self) -> float | None: ...

    def step(self, event: _In_contra, now_s: float) -> list[_Action]: ...


def do_all(actions: Iterable[_Action], do: Callable[[_Action], object]) -> None:
    """Execute all actions of a step, even after one fails; then raise the first error.

    The machine counts all of them as done: a skipped action would never be repeated.
    """
    errors = []
    for action in actions:
        try:
            do(action)
        except Exception as error:  # noqa: BLE001 - it is raised below
            errors.append(error)
    if errors:
        raise errors[0]


class Mirror(Protocol):
    """Current brokers and bundle ownerships."""

    @property
    def registrations(self) -> Mapping[BrokerId, Registration]:
        """Return all registered brokers."""

    def is_registered(self, registration: Registration | None) -> bool:
        """Return True if this registration of the broker still exists."""

    def holds(self) -> Mapping[BrokerId, float]:
        """Return the held brokers, with the seconds until their bundles stop waiting for them."""

    def find_ownership(self, bundle: str) -> Ownership | None:
        """Find the ownership of a bundle; None for an unknown bundle."""


def find_gone_owner(mirror: Mirror, ownership: Ownership) -> Registration | None:
    """Find the owner of an owned bundle if it is no longer registered, else None."""
    is_gone = ownership.state is OwnershipState.OWNED and not mirror.is_registered(ownership.owner)
    return ownership.owner if is_gone else None


@dataclass(frozen=True, slots=True)
class Say:
    """Action of a state machine: write a log entry."""

    event: str
    fields: Mapping[str, object]
    is_warning: bool = True


OwnerChange = Callable[[Ownership, Stamp], Ownership]
"""Function from the current ownership to the next; raises `IllegalTransitionError` when it no longer applies."""


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Apply each transition to its bundle's ownership in one namespace record; answered by WriteEnded. A transition
    that fails does not block the others.
    """

    namespace: str
    transitions: Mapping[str, OwnerChange]
    reason: str


@dataclass(frozen=True, slots=True)
class WriteEnded:
    """Result of a write: per bundle the stored ownership, or the error (also when the outcome is unknown)."""

    write: Write
    made: Mapping[str, Ownership | Exception]


def group_writes(transitions: Mapping[str, OwnerChange], reason: str) -> list[Write]:
    """Group transitions into one write per namespace."""
    by_namespace: dict[str, dict[str, OwnerChange]] = defaultdict(dict)
    for bundle, transition in transitions.items():
        by_namespace[namespace_of(bundle)][bundle] = transition
    return [Write(namespace, each, reason) for namespace, each in by_namespace.items()]
