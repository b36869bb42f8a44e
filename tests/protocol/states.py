"""Coverage of cluster states: a hash of the relevant state, whenever it changes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.brokers import Served
from protocol.records import Records

from loadmanager.core.domain.ownership import Ownership, Registration

if TYPE_CHECKING:
    from protocol.world import Process


@dataclass(slots=True)
class States:
    """`seen` has the hashes so far. Clusters that differ only in numbers, such as versions, share a state."""

    records: Records
    served: Served
    processes: Collection[Process]
    seen: set[int] = field(default_factory=set)

    def note(self) -> None:
        records = self.records
        state = (
            sorted(records.registered),
            records.has_leader,
            [(str(bundle), self._entry(ownership)) for bundle, ownership in records.bundles()],
            sorted((topic, sorted(instances)) for topic, instances in self.served.open.items() if instances),
            [(process.is_up, process.is_paused) for process in self.processes],
        )
        self.seen.add(int.from_bytes(hashlib.blake2b(repr(state).encode(), digest_size=8).digest()))

    def _entry(self, ownership: Ownership) -> tuple[str, str, str]:
        return str(ownership.state), self._life(ownership.owner), self._life(ownership.destination)

    def _life(self, life: Registration | None) -> str:
        if life is None:
            return ""
        is_registered = self.records.registered.get(life.broker) == life.incarnation
        return f"{life.broker}{'' if is_registered else ', gone'}"
