"""Strategies that must be configured for both shedding and placement."""

from __future__ import annotations

from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES, placement_strategy
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES, shedding_strategy

BOUND_STRATEGIES = frozenset(PLACEMENT_STRATEGIES.keys() & SHEDDING_STRATEGIES.keys())


class HalfBoundStrategyError(ValueError):
    """A strategy for shedding and placement together is configured for only one of them."""


def require_bound(settings: PlannerSettings) -> None:
    """Raise `HalfBoundStrategyError` for half of a pair, `UnknownStrategyError` for an unknown strategy."""
    shedding, placement = shedding_strategy(settings)[0], placement_strategy(settings)[0]
    for name in (shedding, placement):
        if name in BOUND_STRATEGIES and shedding != placement:
            raise HalfBoundStrategyError(
                f"{KEYS['shedding_strategy']} {settings.shedding_strategy!r} and {KEYS['placement_strategy']}"
                f" {settings.placement_strategy!r}: {name} has to be both or neither"
            )
