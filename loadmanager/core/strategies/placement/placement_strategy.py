"""Interface of placement strategies."""

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

State = dict[str, Any]
"""Memory of a strategy between choices, passed in and returned, also as the JSON of
`core.planning.decision_kinds.as_json`. A new one starts empty.
"""

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The chosen broker row, None for none; the rows from which it was drawn; the reason, and the next state."""

    broker: int | None
    drawn_from: Rows
    reason: Reason
    why: Mapping[str, Figure]
    state: State


class PlacementStrategy(Protocol):
    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        """Choose an owner among the candidates, ascending broker rows; `bundle` is a row, None for an unknown one.

        `projection` has the snapshot, and the moves of earlier steps.
        """
        ...


@runtime_checkable
class RemembersDestinations(Protocol):
    """A placement strategy that plans destinations of some bundles, by name, and is notified where each was placed.

    A planned destination is used if the broker may own the bundle; an overloaded one only if all others are overloaded.
    """

    def find_destination(self, bundle: str, state: State) -> BrokerId | None: ...

    def remember(self, bundle: str, broker: BrokerId, state: State) -> State: ...


def draw(rows: Rows, rng: np.random.Generator) -> int:
    """Draw one of the rows uniformly; a single one is returned without drawing."""
    return int(rows[rng.integers(len(rows)) if len(rows) > 1 else 0])
