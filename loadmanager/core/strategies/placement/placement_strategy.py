"""Interface of placement strategies, and the load that is on its way while a plan is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Figure
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.model.snapshot import Snapshot

State = dict[str, Any]
"""Memory of a strategy between choices. It goes in and comes out, also as the JSON of
`core.planning.strategy_memory.as_json`. A new one starts empty.
"""

Rows = npt.NDArray[np.intp]


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


@runtime_checkable
class RemembersDestinations(Protocol):
    """A placement strategy that has places in mind for some bundles, by name, and learns where each was placed.

    A place it has in mind is taken if the broker may own the bundle; an overloaded one only if every other is, too.
    """

    def find_destination(self, bundle: str, state: State) -> BrokerId | None: ...

    def remember(self, bundle: str, broker: BrokerId, state: State) -> State: ...


def draw(rows: Rows, rng: np.random.Generator) -> int:
    """One of the rows, each with the same chance; a single one is returned without drawing."""
    return int(rows[rng.integers(len(rows)) if len(rows) > 1 else 0])
