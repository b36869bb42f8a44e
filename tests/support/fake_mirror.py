"""Mirror and ledger of a leader without a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import FREE, IllegalTransitionError, Ownership, Registration, Stamp
from loadmanager.core.protocol.state_machine import Write

A, B = (Registration(BrokerId(f"{letter}:1"), number) for number, letter in enumerate("ab", 1))
A_BACK = Registration(A.broker, 9)
STAMP = Stamp(7, 1_000, "lookup")
LOST = RuntimeError("no answer")


@dataclass(slots=True, kw_only=True)
class FakeMirror:
    """A and B are registered, nobody is held off, and there is no bundle."""

    registrations: dict[BrokerId, Registration] = field(default_factory=lambda: {A.broker: A, B.broker: B})
    held: dict[BrokerId, float] = field(default_factory=dict)
    records: dict[str, Ownership] = field(default_factory=dict)

    def is_registered(self, registration: Registration | None) -> bool:
        return registration is not None and self.registrations.get(registration.broker) == registration

    def holds(self) -> Mapping[BrokerId, float]:
        return self.held

    def find_ownership(self, bundle: str) -> Ownership | None:
        return self.records.get(bundle)

    def write(self, write: Write) -> dict[str, Ownership | Exception]:
        """Write each bundle; fails if a serving owner loses it, or an unregistered broker gets it."""
        made: dict[str, Ownership | Exception] = {}
        for bundle, transition in write.transitions.items():
            before = self.records.get(bundle, FREE)
            try:
                made[bundle] = after = transition(before, STAMP)
            except IllegalTransitionError as error:
                made[bundle] = error
                continue
            assert not self.is_registered(before.owner), f"{bundle} is taken from {before.owner}"
            assert after.owner is None or self.is_registered(after.owner), f"{bundle} is given to {after.owner}"
            assert after.version == before.version + 1
            self.records[bundle] = after
        return made
