"""leastMsgPerSecond: fill brokers up to the underloaded threshold, then the one with the lowest expected message rate.

Source: Pulsar's SimpleLoadManagerImpl. Messages are those of the quotas, never measured ones; load only decides if an
idle broker is opened.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.reasons import Reason, entry
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import FloatArray
from loadmanager.core.strategies.placement.fill_up import Visited, fill_up
from loadmanager.core.strategies.placement.placement_strategy import Placement, Rows, State
from loadmanager.core.strategies.ranked_brokers import Ranking


class ExpectedMessagesReason(Reason):
    LEAST_EXPECTED_MESSAGES = entry(
        "Placed because {broker} expects the fewest messages/s, {msg_rate_per_s}, of {candidates} candidates, of"
        " which {idle} are idle"
    )


@dataclass(frozen=True, slots=True)
class LeastMsgPerSecond:
    settings: PlannerSettings

    def place(
        self, candidates: Rows, bundle: int | None, projection: Projection, state: State, rng: np.random.Generator
    ) -> Placement:
        del rng  # nothing is left to chance
        reason = ExpectedMessagesReason.LEAST_EXPECTED_MESSAGES
        return fill_up(candidates, bundle, projection, state, self.settings, _find_best, _messages, reason)


def _messages(ranking: Ranking) -> FloatArray:
    return ranking.messages_per_s(ranking.loaded, ranking.given)


def _find_best(visited: Visited, positions: Rows) -> int:
    return int(positions[np.argmin(visited.messages_per_s[positions])])
