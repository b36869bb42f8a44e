"""Registry of the placement strategies. To add one, add a file here and a line below."""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.core.domain.settings import KEYS, PlannerSettings, get_by_name, is_simple
from loadmanager.core.strategies.placement.avg_placement import AvgPlacement
from loadmanager.core.strategies.placement.least_loaded_server import LeastLoadedServer
from loadmanager.core.strategies.placement.least_long_term_message_rate import LeastLongTermMessageRate
from loadmanager.core.strategies.placement.least_msg_per_second import LeastMsgPerSecond
from loadmanager.core.strategies.placement.least_resource_usage import LeastResourceUsageWithWeight
from loadmanager.core.strategies.placement.least_resource_usage_extensible import (
    LeastResourceUsageWithWeightExtensible,
)
from loadmanager.core.strategies.placement.level_placement import LevelPlacement
from loadmanager.core.strategies.placement.placement_strategy import PlacementStrategy
from loadmanager.core.strategies.placement.round_robin import RoundRobinBrokerSelector
from loadmanager.core.strategies.placement.weighted_random_selection import WeightedRandomSelection

PLACEMENT_STRATEGIES: dict[str, Callable[[PlannerSettings], PlacementStrategy]] = {
    "AvgShedder": AvgPlacement,
    "LeastLongTermMessageRate": LeastLongTermMessageRate,
    "LeastResourceUsageWithWeight": LeastResourceUsageWithWeight,
    "LeastResourceUsageWithWeightExtensible": LeastResourceUsageWithWeightExtensible,
    "Level": LevelPlacement,
    "RoundRobinBrokerSelector": lambda _: RoundRobinBrokerSelector(),
    "leastLoadedServer": LeastLoadedServer,
    "leastMsgPerSecond": LeastMsgPerSecond,
    "weightedRandomSelection": WeightedRandomSelection,
}

_SIMPLE = ("leastLoadedServer", "leastMsgPerSecond")


def placement_strategy(settings: PlannerSettings) -> tuple[str, PlacementStrategy]:
    """Return the configured strategy and its short name; accepts Pulsar's full Java class names.

    With SimpleLoadManagerImpl it is that of `loadBalancerPlacementStrategy`; unknown names mean
    weightedRandomSelection, as in Pulsar. Raises `UnknownStrategyError`.
    """
    if is_simple(settings):
        chosen = settings.simple_placement_strategy
        name = chosen if chosen in _SIMPLE else "weightedRandomSelection"
        return name, PLACEMENT_STRATEGIES[name](settings)
    name, factory = get_by_name(KEYS["placement_strategy"], settings.placement_strategy, PLACEMENT_STRATEGIES)
    return name, factory(settings)
