"""What a broker's last report says of its bundles, for those who go by it and not by averages: splits, merges, and the
lists of the busiest bundles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from loadmanager.core.model.load import FloatArray, IntArray, RowArray
from loadmanager.core.model.snapshot import find_row


@dataclass(frozen=True, eq=False)
class LatestReport:
    """The last report of a broker that was taken in, as far as it is about bundles: see `BrokerReport`.

    `all_names` are those of all bundles, sorted, `places` (k,) where those in the report are among them. So the model
    makes it without a look at any name, and it may be read in a worker thread: nothing in it changes later.
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
        """The consumers and producers of a bundle; None when it is not in the report."""
        place = find_row(self.all_names, bundle)
        found = () if place is None else self.bundle_sessions[self.places == place].tolist()
        return found[0] if found else None
