"""RoundRobinBrokerSelector: one broker after the other, regardless of load.

Source: Pulsar's RoundRobinBrokerSelector. The order is that of the first candidates; it is kept while the number of
candidates is unchanged and the next one is among them. The state holds the turn, which restarts at 0 after
2,147,483,647, and the order: `{"turn": 7, "order": [broker, ...]}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.reasons import PlacementReason
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.placement.placement_strategy import Placement, Rows, State

_LAST_TURN = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RoundRobinBrokerSelector:
    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        del bundle, rng  # neither bundle nor chance matters
        if not len(candidates):
            return Placement(None, candidates, PlacementReason.NO_BROKER_AVAILABLE, {}, state)
        turn, order = state.get("turn", 0), state.get("order", ())
        position = turn % len(candidates)
        broker = _find_candidate(order, position, candidates, projection.snapshot)
        if broker is None:
            order = [projection.snapshot.brokers.ids[row] for row in candidates.tolist()]
            broker = int(candidates[position])
        following = {"turn": 0 if turn == _LAST_TURN else turn + 1, "order": order}
        why = {"candidates": len(candidates), "turn": turn}
        return Placement(broker, np.array([broker]), PlacementReason.ROUND_ROBIN, why, following)


def _find_candidate(order: Sequence[str], position: int, candidates: Rows, snapshot: Snapshot) -> int | None:
    """Find the row of the broker at this position, None if the order no longer fits the candidates."""
    if len(order) != len(candidates):
        return None
    row = snapshot.brokers.find_row(BrokerId(order[position]))
    return row if row is not None and np.any(candidates == row) else None
