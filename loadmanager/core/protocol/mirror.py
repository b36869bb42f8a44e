"""What a leader knows of the cluster at this moment: whoever carries something out asks it anew each time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration


class Mirror(Protocol):
    """Brokers and bundles as they are now."""

    @property
    def registrations(self) -> Mapping[BrokerId, Registration]:
        """Every registered broker."""

    def is_registered(self, registration: Registration | None) -> bool:
        """Whether that very life of the broker is registered."""

    def holds(self) -> Mapping[BrokerId, float]:
        """The brokers that are held off: for how many seconds the bundles that they had wait for them at most."""

    def find_ownership(self, bundle: str) -> Ownership | None:
        """None of a bundle that there is not."""


def find_gone_owner(picture: Mirror, ownership: Ownership) -> Registration | None:
    """The owner of a bundle if it is registered no more; None of a bundle that is free, on its way, or served."""
    is_gone = ownership.state is OwnershipState.OWNED and not picture.is_registered(ownership.owner)
    return ownership.owner if is_gone else None
