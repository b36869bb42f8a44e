"""What a broker's last report says of its bundles, for those who go by it and not by averages: splits and merges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadmanager.core.load import (
    MSG_RATE_IN,
    MSG_RATE_OUT,
    THROUGHPUT_IN,
    THROUGHPUT_OUT,
    FloatArray,
    IntArray,
    RowArray,
)
from loadmanager.core.ownership import Registration
from loadmanager.core.snapshot import find_row


class LatestFigures(NamedTuple):
    """Of one bundle: its topics, its consumers and producers, messages/s and bytes/s, in and out together."""

    topics: int
    sessions: int
    msg_rate: float
    throughput: float


@dataclass(frozen=True, slots=True, eq=False)
class LatestReport:
    """The last report of a broker that was taken in. `names` are those of all bundles, `bundles` (k,) the positions
    there of those in the report, in its order; `topics`, `sessions` (k,) and `load` (k, 4) are theirs.

    A model makes it without looking at any bundle, and does not change it later: it may be read in a worker thread.
    """

    registration: Registration
    names: tuple[str, ...]
    bundles: RowArray
    topics: IntArray
    sessions: IntArray
    load: FloatArray

    def __len__(self) -> int:
        return len(self.bundles)

    def figures(self, *, with_rates: bool = True) -> Iterator[tuple[str, LatestFigures]]:
        """Each bundle in the report with its figures; rates are 0 for those who do not go by the latest ones."""
        load = self.load if with_rates else np.zeros_like(self.load)
        msg_rate, throughput = (
            load[:, MSG_RATE_IN] + load[:, MSG_RATE_OUT],
            load[:, THROUGHPUT_IN] + load[:, THROUGHPUT_OUT],
        )
        columns = (each.tolist() for each in (self.topics, self.sessions, msg_rate, throughput))
        names = map(self.names.__getitem__, self.bundles.tolist())
        return zip(names, map(LatestFigures._make, zip(*columns, strict=True)), strict=True)

    def find_sessions(self, bundle: str) -> int | None:
        """The consumers and producers of a bundle; None when it is not in the report."""
        place = find_row(self.names, bundle)
        at = () if place is None else np.flatnonzero(self.bundles == place).tolist()
        return int(self.sessions[at[0]]) if at else None
