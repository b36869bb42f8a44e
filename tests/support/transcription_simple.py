"""SimpleLoadManagerImpl's rules word by word: units as objects, one bundle after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

DEFAULT = (40.0, 120.0, 100_000.0, 300_000.0, 80.0)
FACTOR = 0.025
TOLERANCE = 5.0

Quota = tuple[float, float, float, float, float]
Usage = Sequence[Sequence[float]]
"""Used and limit of CPU, heap, direct memory, bandwidth in and out."""


@dataclass
class Unit:
    name: str
    usage: Usage
    loaded: list[Quota] = field(default_factory=list)
    given: list[Quota] = field(default_factory=list)

    def percentages(self) -> dict[str, float]:
        cpu, memory, direct, bandwidth_in, bandwidth_out = self.usage
        loaded = [sum(quota[i] for quota in self.loaded) for i in range(5)]
        given = [sum(quota[i] for quota in self.given) for i in range(5)]
        return {
            "cpu": share(max(cpu[0], FACTOR * (loaded[0] + loaded[1])) + FACTOR * (given[0] + given[1]), cpu[1]),
            "memory": share(max(memory[0], loaded[4]) + given[4], memory[1]),
            "in": share(max(bandwidth_in[0], loaded[2] / 128) + given[2] / 128, bandwidth_in[1]),
            "out": share(max(bandwidth_out[0], loaded[3] / 128) + given[3] / 128, bandwidth_out[1]),
            "direct": share(direct[0], direct[1]),
        }

    def load(self) -> float:
        return max(self.percentages().values())

    def messages(self) -> float:
        loaded, given = ([sum(quota[i] for quota in quotas) for i in (0, 1)] for quotas in (self.loaded, self.given))
        return sum(loaded) + sum(given)

    def capacity(self) -> int:
        cpu, memory, _, bandwidth_in, bandwidth_out = (limit for _, limit in self.usage)
        rooms = [
            cpu / FACTOR / (DEFAULT[0] + DEFAULT[1]),
            memory / DEFAULT[4],
            bandwidth_out * 128 / DEFAULT[3],
            bandwidth_in * 128 / DEFAULT[2],
        ]
        return math.trunc(max(0.0, min(rooms)))

    def free(self) -> int:
        return math.trunc(self.capacity() * max(0.0, (100 - self.load()) / 100))

    def weight(self) -> int:
        idle = (100 - self.load()) / 100
        return math.trunc(self.capacity() * idle * idle)

    def is_idle(self) -> bool:
        return not self.loaded and not self.given


def share(used: float, limit: float) -> float:
    return min(100.0, 100 * used / limit) if limit > 0 else 0.0


def less_loaded(a: Unit, b: Unit) -> bool:
    left, right = a.percentages(), b.percentages()
    pairs = [(a.load(), b.load()), *((left[name], right[name]) for name in ("memory", "cpu", "in", "out"))]
    for one, other in pairs:
        if abs(one - other) > TOLERANCE:
            return one < other
    return a.load() < b.load()


def fewer_messages(a: Unit, b: Unit) -> bool:
    return a.messages() < b.messages()


def fill_up(visited: Sequence[Unit], cursor: int, under: float, over: float, *, by_messages: bool) -> Unit:
    """Select the unit that gets the next bundle, in the order of visits."""
    better = fewer_messages if by_messages else less_loaded
    best = idle = widest = rotated = None
    best_load, widest_free = 101.0, -1
    for position, unit in enumerate(visited):
        if position >= cursor % len(visited) and rotated is None:
            rotated = unit
        if unit.free() > widest_free:
            widest, widest_free = unit, unit.free()
        if unit.is_idle():
            idle = idle or unit
        elif best is None or better(unit, best):
            best, best_load = unit, unit.load()
    if best is None or (best_load > under and idle is not None):
        chosen = idle
    elif by_messages:
        chosen = best
    elif best_load >= 100:
        chosen = rotated
    elif best_load > over:
        chosen = widest
    else:
        chosen = best
    assert chosen is not None
    return chosen
