"""Registry of the split algorithms; `Divider` applies the requested or configured one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.reasons import SplitReason
from loadmanager.core.domain.settings import KEYS, PlannerSettings, UnknownStrategyError, get_by_name
from loadmanager.core.strategies.splitting.split_algorithm import (
    SplitAlgorithm,
    divide_at,
    flow_or_qps_equally_divide,
    range_equally_divide,
    specified_positions_divide,
    topic_count_equally_divide,
)

SPECIFIED_POSITIONS = "specified_positions_divide"
"""The only algorithm that requires positions."""

SPLIT_ALGORITHMS: dict[str, SplitAlgorithm] = {
    "range_equally_divide": range_equally_divide,
    "topic_count_equally_divide": topic_count_equally_divide,
    SPECIFIED_POSITIONS: specified_positions_divide,
    "flow_or_qps_equally_divide": flow_or_qps_equally_divide,
}

PULSAR_REASONS = {
    SplitReason.TOPICS: "Topics",
    SplitReason.SESSIONS: "Sessions",
    SplitReason.MSG_RATE: "MsgRate",
    SplitReason.BANDWIDTH: "Bandwidth",
}
"""Split reasons in Pulsar's spelling."""

DEFAULT_KEY = KEYS["namespace_bundle_split_algorithm"]
SUPPORTED_KEY = KEYS["supported_split_algorithms"]


def split_algorithm(
    settings: PlannerSettings, asked: str = "", asked_by: str = DEFAULT_KEY
) -> tuple[str, SplitAlgorithm]:
    """Return the algorithm requested under the key or option `asked_by`, else the configured one, and its short name.

    Raises `UnknownStrategyError`, naming the key and the choices, if it does not exist or is not supported.
    """
    key, name = (asked_by, asked) if asked else (DEFAULT_KEY, settings.namespace_bundle_split_algorithm)
    short, algorithm = get_by_name(key, name, SPLIT_ALGORITHMS)
    supported = [get_by_name(SUPPORTED_KEY, each, SPLIT_ALGORITHMS)[0] for each in settings.supported_split_algorithms]
    if short not in supported:
        raise UnknownStrategyError(
            f"{key} {name!r}: not one of {SUPPORTED_KEY}, {', '.join(supported) or 'which is empty'}:"
            " add it there or choose another"
        )
    return short, algorithm


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
