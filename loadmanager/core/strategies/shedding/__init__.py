"""Registry of the shedding strategies. To add one, add a file here and a line below.

`require_pair` rejects half of a strategy that covers shedding and placement.
"""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.core.domain.settings import KEYS, PlannerSettings, get_by_name, is_simple, short_class_name
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES, placement_strategy
from loadmanager.core.strategies.shedding.avg_shedder import AvgShedder
from loadmanager.core.strategies.shedding.level_shedder import Level
from loadmanager.core.strategies.shedding.overload_shedder import OverloadShedder
from loadmanager.core.strategies.shedding.shedding_strategy import SheddingStrategy
from loadmanager.core.strategies.shedding.simple_shedder import SimpleLoadManagerImpl
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdShedder
from loadmanager.core.strategies.shedding.transfer_shedder import TransferShedder
from loadmanager.core.strategies.shedding.uniform_shedder import UniformLoadShedder

SHEDDING_STRATEGIES: dict[str, Callable[[PlannerSettings], SheddingStrategy]] = {
    "OverloadShedder": OverloadShedder,
    "ThresholdShedder": ThresholdShedder,
    "UniformLoadShedder": UniformLoadShedder,
    "AvgShedder": AvgShedder,
    "TransferShedder": TransferShedder,
    "SimpleLoadManagerImpl": SimpleLoadManagerImpl,
    "Level": Level,
}


def shedding_strategy(settings: PlannerSettings) -> tuple[str, SheddingStrategy]:
    """Return the configured strategy and its short name; accepts Pulsar's full Java class names.

    SimpleLoadManagerImpl as `loadManagerClassName` brings its own, regardless of other settings. Raises
    `UnknownStrategyError`.
    """
    if is_simple(settings):
        name = short_class_name(settings.load_manager_class_name)
        return name, SHEDDING_STRATEGIES[name](settings)
    name, factory = get_by_name(KEYS["shedding_strategy"], settings.shedding_strategy, SHEDDING_STRATEGIES)
    return name, factory(settings)


PAIRED_STRATEGIES = frozenset(PLACEMENT_STRATEGIES.keys() & SHEDDING_STRATEGIES.keys())


class UnpairedStrategyError(ValueError):
    """A strategy for shedding and placement together is configured for only one of them."""


def require_pair(settings: PlannerSettings) -> None:
    """Raise `UnpairedStrategyError` for half of a pair, `UnknownStrategyError` for an unknown strategy."""
    shedding, placement = shedding_strategy(settings)[0], placement_strategy(settings)[0]
    for name in (shedding, placement):
        if name in PAIRED_STRATEGIES and shedding != placement:
            raise UnpairedStrategyError(
                f"{KEYS['shedding_strategy']} {settings.shedding_strategy!r} and {KEYS['placement_strategy']}"
                f" {settings.placement_strategy!r}: {name} has to be both or neither"
            )
