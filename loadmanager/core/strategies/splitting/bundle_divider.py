"""Split algorithm with its parameters besides the bundle and its topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.settings import PlannerSettings, UnknownStrategyError
from loadmanager.core.strategies.splitting import SPECIFIED_POSITIONS, split_algorithm
from loadmanager.core.strategies.splitting.specified_positions_divide import divide_at
from loadmanager.core.strategies.splitting.split_algorithm import SplitAlgorithm

_WITHOUT_TOPICS = frozenset({"range_equally_divide", SPECIFIED_POSITIONS})
"""Algorithms that do not need topics."""


@dataclass(frozen=True, slots=True)
class Divider:
    """The requested or configured algorithm with its parameters."""

    name: str
    algorithm: SplitAlgorithm
    positions: tuple[int, ...]
    settings: PlannerSettings

    @classmethod
    def of(cls, settings: PlannerSettings, asked: str = "", positions: Sequence[int] = ()) -> Divider:
        """Choose the algorithm. Raises `UnknownStrategyError` if it is not supported or lacks a parameter."""
        name, algorithm = split_algorithm(settings, asked, "splitAlgorithmName")
        if name == SPECIFIED_POSITIONS and not positions:
            raise UnknownStrategyError(f"{SPECIFIED_POSITIONS} needs positions: a list of hashes as the body")
        if name != SPECIFIED_POSITIONS and positions:
            raise UnknownStrategyError(f"{name} takes no positions: they go with {SPECIFIED_POSITIONS}")
        return cls(name, algorithm, tuple(positions), settings)

    @property
    def needs_topics(self) -> bool:
        return self.name not in _WITHOUT_TOPICS

    def divide(self, own: BundleRange, topics: Sequence[TopicLoad]) -> list[int] | None:
        """Return the boundaries, None for "do not split"; see `SplitAlgorithm`."""
        if self.name == SPECIFIED_POSITIONS:
            return divide_at(own, self.positions)
        return self.algorithm(own, topics, (), self.settings)
