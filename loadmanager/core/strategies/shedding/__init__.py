"""Registry of the shedding strategies. To add one, add a file here and a line below."""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.core.domain.settings import KEYS, PlannerSettings, get_by_name, is_simple, short_class_name
from loadmanager.core.strategies.shedding.avg_shedder import AvgShedder
from loadmanager.core.strategies.shedding.level_shedder import Level
from loadmanager.core.strategies.shedding.overload_shedder import OverloadShedder
from loadmanager.core.strategies.shedding.shedding_strategy import SheddingStrategy
from loadmanager.core.strategies.shedding.simple_shedder import SimpleLoadManagerImpl
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdShedder
from loadmanager.core.strategies.shedding.transfer_shedder import TransferShedder
from loadmanager.core.strategies.shedding.uniform_shedder import UniformLoadShedder

SHEDDING_STRATEGIES: dict[str, Callable[[PlannerSettings], SheddingStrategy]] = {
    "OverloadShedder": OverloadShedder.of,
    "ThresholdShedder": ThresholdShedder.of,
    "UniformLoadShedder": UniformLoadShedder.of,
    "AvgShedder": AvgShedder.of,
    "TransferShedder": TransferShedder.of,
    "SimpleLoadManagerImpl": SimpleLoadManagerImpl.of,
    "Level": Level.of,
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
