"""leastMsgPerSecond: fill brokers up to the underloaded threshold, then the one with the lowest expected message rate.

Source: Pulsar's SimpleLoadManagerImpl. Messages are those of the quotas, never measured ones; load only decides if an
idle broker is opened.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.domain.reasons import Reason, entry
from loadmanager.core.model.load import FloatArray
from loadmanager.core.strategies.placement.fill_up import FillUp, Visited
from loadmanager.core.strategies.placement.placement_strategy import Rows
from loadmanager.core.strategies.ranked_brokers import Ranking


class ExpectedMessagesReason(Reason):
    LEAST_EXPECTED_MESSAGES = entry(
        "Placed because {broker} expects the fewest messages/s, {msg_rate_per_s}, of {candidates} candidates, of"
        " which {idle} are idle"
    )


class LeastMsgPerSecond(FillUp):
    best_reason = ExpectedMessagesReason.LEAST_EXPECTED_MESSAGES

    def rank(self, ranking: Ranking) -> FloatArray:
        return ranking.messages_per_s(ranking.loaded, ranking.given)

    def find_best(self, visited: Visited, positions: Rows) -> int:
        return int(positions[np.argmin(visited.messages_per_s[positions])])
