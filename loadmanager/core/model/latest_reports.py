"""Bundle columns of last reports, for callers that use those in place of averages: splits, merges, busiest bundles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from loadmanager.core.model.load import FloatArray, IntArray, RowArray
from loadmanager.core.model.snapshot import find_row


@dataclass(frozen=True, eq=False)
class LatestReport:
    """Bundle columns of a broker's last accepted report: see `BrokerReport`.

    `all_names` are the sorted names of all bundles, `places` (k,) the positions of the report's bundles among them. It
    is built without copying names, and immutable, so that worker threads may read it.
    """

    all_names: Sequence[str]
    places: RowArray
    bundle_topics: IntArray
    bundle_sessions: IntArray
    bundle_load: FloatArray
    bundle_cache_bytes: IntArray

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def bundle_names(self) -> tuple[str, ...]:
        return tuple(map(self.all_names.__getitem__, self.places.tolist()))

    def find_sessions(self, bundle: str) -> int | None:
        """Find the number of consumers and producers of a bundle; None if it is not in the report."""
        place = find_row(self.all_names, bundle)
        found = () if place is None else self.bundle_sessions[self.places == place].tolist()
        return found[0] if found else None
