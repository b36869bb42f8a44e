"""Run of a scenario with one strategy, and the checks of its bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadmanager.config.dynamic_settings import settings_of, with_overrides
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.settings import UnknownStrategyError, get_by_name
from loadmanager.core.planning.certificate.plan_certificate import CertificateFigures, DecidedRound
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.shedding import PAIRED_STRATEGIES, SHEDDING_STRATEGIES
from loadmanager.errors import ScenarioError
from loadmanager.lab.simulate.scenario import Scenario
from loadmanager.lab.simulate.scenario_checks import BoundCheck, check
from loadmanager.lab.simulate.sim_result import Result
from loadmanager.lab.simulate.world import Progress
from loadmanager.lab.simulate.world_builder import world_of

if TYPE_CHECKING:
    from loadmanager.history.synthetic_fleet import Series

SHEDDING = "loadBalancerLoadSheddingStrategy"
PLACEMENT = "loadBalancerLoadPlacementStrategy"
LOAD_MANAGER = "loadManagerClassName"

_SIMPLE = "SimpleLoadManagerImpl"
_DEFAULTS = {
    SHEDDING: Settings.model_fields["load_balancer_load_shedding_strategy"].default,
    PLACEMENT: Settings.model_fields["load_balancer_load_placement_strategy"].default,
}


SIDE_BY_SIDE = (
    "ThresholdShedder",
    "ThresholdShedder+LeastResourceUsageWithWeight",
    "OverloadShedder",
    "UniformLoadShedder",
    "AvgShedder",
    "TransferShedder",
    "SimpleLoadManagerImpl",
    "Level",
)
"""All shedding strategies, each with the default placement unless it has its own; the first is the default."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Result of a scenario with one strategy (empty: that of its settings), and the checks of its bounds.

    `certified` are the certificates of the shedding rounds that moved something; empty unless requested.
    """

    strategy: str
    result: Result
    checks: tuple[BoundCheck, ...]
    certified: tuple[CertificateFigures, ...] = ()

    @property
    def held(self) -> bool:
        return all(each.held for each in self.checks)


def run(
    scenario: Scenario,
    strategy: str = "",
    overrides: Mapping[str, str] | None = None,
    *,
    recorded: Sequence[Series] = (),
    observe: Callable[[Progress], None] | None = None,
    certify: bool = False,
) -> Run:
    """Run a scenario with this strategy, and with these overrides of its settings.

    `recorded` are the series of its traces; with `certify`, each round that moves something gets a certificate. Raises
    `ScenarioError` or `ConfigurationError`, which name the fault.
    """
    world = world_of(scenario, settings_for(scenario, strategy, overrides or {}), recorded)
    certified: list[CertificateFigures] = []

    def note(decided: DecidedRound) -> None:
        if certify and decided.steps:
            certified.append(decided.certified().figures)

    result = world.run(scenario.duration_s, scenario.step_s, observe, note)
    return Run(strategy, result, check(scenario.expect, result), tuple(certified))


def settings_for(scenario: Scenario, strategy: str, overrides: Mapping[str, str]) -> Settings:
    """Return the settings of a scenario with this strategy, and with the overrides.

    Raises `ScenarioError` or `ConfigurationError`.
    """
    settings = settings_of(with_strategy(scenario.settings, strategy), f"scenario {scenario.name}: settings")
    return with_overrides(settings, overrides, "--set") if overrides else settings


def with_strategy(values: Mapping[str, Any], strategy: str) -> dict[str, Any]:
    """Return the keys with this strategy in place of theirs; unchanged if it is empty. Raises `ScenarioError`."""
    found = dict(values)
    for name in filter(None, strategy.split("+")):
        found |= _strategy_keys(name, found)
    return found


def _strategy_keys(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that select this strategy: for shedding, for placement, or for both if it has to be."""
    if name.rpartition(".")[2] == _SIMPLE:
        return {LOAD_MANAGER: _SIMPLE}
    try:
        short, _ = get_by_name("--strategy", name, {**SHEDDING_STRATEGIES, **PLACEMENT_STRATEGIES})
    except UnknownStrategyError as error:
        raise ScenarioError(str(error)) from None
    if short in PAIRED_STRATEGIES:
        return {SHEDDING: short, PLACEMENT: short}
    key, other = (SHEDDING, PLACEMENT) if short in SHEDDING_STRATEGIES else (PLACEMENT, SHEDDING)
    if values.get(other) in PAIRED_STRATEGIES:
        return {key: short, other: _DEFAULTS[other]}
    return {key: short}
