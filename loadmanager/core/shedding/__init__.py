"""The shedding strategies by name. A new one is a file beside this and a line below."""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.core.settings import KEYS, PlannerSettings, get_by_name, is_simple, short_class_name
from loadmanager.core.shedding.avg import AvgShedder
from loadmanager.core.shedding.base import SheddingStrategy
from loadmanager.core.shedding.level import Level
from loadmanager.core.shedding.overload import OverloadShedder
from loadmanager.core.shedding.simple import SimpleLoadManagerImpl
from loadmanager.core.shedding.threshold import ThresholdShedder
from loadmanager.core.shedding.transfer import TransferShedder
from loadmanager.core.shedding.uniform import UniformLoadShedder

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
    """The configured strategy and its short name; Pulsar's full Java class names are understood too.

    SimpleLoadManagerImpl as `loadManagerClassName` brings its own, whatever else is configured. Raises
    `UnknownStrategyError`.
    """
    if is_simple(settings):
        name = short_class_name(settings.load_manager_class_name)
        return name, SHEDDING_STRATEGIES[name](settings)
    name, factory = get_by_name(KEYS["shedding_strategy"], settings.shedding_strategy, SHEDDING_STRATEGIES)
    return name, factory(settings)
