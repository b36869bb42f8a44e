"""Strategies that decide both what leaves a broker and where it goes, and only work when they decide both."""

from __future__ import annotations

from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES, placement_strategy
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES, shedding_strategy

BOUND_STRATEGIES = frozenset(PLACEMENT_STRATEGIES.keys() & SHEDDING_STRATEGIES.keys())


class HalfBoundStrategyError(ValueError):
    """A strategy that has to be configured for shedding and for placement is configured for one of them only."""


def require_bound(settings: PlannerSettings) -> None:
    """Raise `HalfBoundStrategyError` for half of a strategy, `UnknownStrategyError` for one that does not exist."""
    shedding, placement = shedding_strategy(settings)[0], placement_strategy(settings)[0]
    for name in (shedding, placement):
        if name in BOUND_STRATEGIES and shedding != placement:
            raise HalfBoundStrategyError(
                f"{KEYS['shedding_strategy']} {settings.shedding_strategy!r} and {KEYS['placement_strategy']}"
                f" {settings.placement_strategy!r}: {name} has to be both or neither"
            )
