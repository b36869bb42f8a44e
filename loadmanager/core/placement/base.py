"""What a placement strategy is, and the load that is on its way while a plan is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from loadmanager.core.load import METRICS, IntArray
from loadmanager.core.plan import Figure, Reason
from loadmanager.core.snapshot import Snapshot, bundle_load

State = dict[str, Any]
"""What a strategy remembers between choices: a JSON object that goes in and comes out. A new one starts empty."""

Rows = npt.NDArray[np.intp]


class Projection:
    """What the steps decided so far in one plan add to each broker and take away: so a burst of lookups, or all that
    one broker sheds, does not end up in one place. `load` is (M, 4) long-term averages, `topics` (M,).
    """

    def __init__(self, snapshot: Snapshot) -> None:
        brokers = len(snapshot.brokers)
        self.load = np.zeros((brokers, METRICS))
        self.topics = np.zeros(brokers, dtype=np.int64)
        self._snapshot = snapshot
        self._bundles: dict[str, IntArray] = {}

    def bundles_per_broker(self, namespace: str) -> IntArray:
        """How many bundles of the namespace each broker has (M,), the decided steps included."""
        counts = self._bundles.get(namespace)
        if counts is None:
            known = self._snapshot.find_namespace(namespace)
            none = np.zeros(len(self._snapshot.brokers), dtype=np.int64)
            counts = self._bundles[namespace] = none if known is None else self._snapshot.bundles_per_broker(known)
        return counts

    def move(self, namespace: str, bundle: int | None, source: int | None, destination: int) -> None:
        """Count the bundle (a row, None for an unknown one) to `destination`, no longer to `source`."""
        load = bundle_load(self._snapshot, bundle)
        topics = 0 if bundle is None else int(self._snapshot.bundles.topics[bundle])
        counts = self.bundles_per_broker(namespace)
        self.load[destination] += load
        self.topics[destination] += topics
        counts[destination] += 1
        if source is not None:
            self.load[source] -= load
            self.topics[source] -= topics
            counts[source] -= 1


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The chosen broker row (None: nobody), the rows among which chance decided, why, and the state for next time."""

    broker: int | None
    drawn_from: Rows
    reason: Reason
    why: Mapping[str, Figure]
    state: State


class PlacementStrategy(Protocol):
    def place(
        self,
        candidates: Rows,
        bundle: int | None,
        snapshot: Snapshot,
        projection: Projection,
        state: State,
        rng: np.random.Generator,
    ) -> Placement:
        """Choose an owner among the candidates, broker rows that ascend; `bundle` is a row, None for an unknown one."""
        ...


def draw(rows: Rows, rng: np.random.Generator) -> int:
    """One of the rows, each with the same chance; a single one is returned without drawing."""
    return int(rows[rng.integers(len(rows)) if len(rows) > 1 else 0])
