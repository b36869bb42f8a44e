"""Interface of the mirror, a node's copy of the metadata store, for state machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration


class Mirror(Protocol):
    """Current brokers and bundle ownerships."""

    @property
    def registrations(self) -> Mapping[BrokerId, Registration]:
        """Return all registered brokers."""

    def is_registered(self, registration: Registration | None) -> bool:
        """Return True if this very registration of the broker still exists."""

    def holds(self) -> Mapping[BrokerId, float]:
        """Return the held brokers, with the seconds for which their bundles still wait for them."""

    def find_ownership(self, bundle: str) -> Ownership | None:
        """Find the ownership of a bundle; None for an unknown bundle."""


def find_gone_owner(mirror: Mirror, ownership: Ownership) -> Registration | None:
    """Find the owner of an owned bundle if it is no longer registered, else None."""
    is_gone = ownership.state is OwnershipState.OWNED and not mirror.is_registered(ownership.owner)
    return ownership.owner if is_gone else None
