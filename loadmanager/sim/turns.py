"""Whose turn it is: so many unloads at a time in all, and so many that concern one broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from loadmanager.core.names import BrokerId
from loadmanager.core.plan import Unload
from loadmanager.sim.rules import WorldRules


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A step that waits or is under way; `on_end` is called when it is over, whatever came of it."""

    step: Unload
    on_end: Callable[[], None]

    def brokers(self) -> frozenset[BrokerId]:
        destination = self.step.destination
        return frozenset({self.step.source.broker} | ({destination.broker} if destination else set()))


class Turns:
    """The first to come is the first to go. Those who wait for a busy broker hold up nobody who does not need it, and
    nobody overtakes them on their other broker.
    """

    def __init__(self, rules: WorldRules) -> None:
        self._most, self._most_per_broker = rules.max_concurrent_unloads, rules.max_concurrent_unloads_per_broker
        self._waiting: list[Turn] = []
        self._taken = 0
        self._busy: Counter[BrokerId] = Counter()

    def wait(self, turn: Turn) -> None:
        self._waiting.append(turn)

    def end(self, turn: Turn) -> None:
        """It is not under way any more."""
        self._taken -= 1
        self._busy.subtract(turn.brokers())

    def take_next(self) -> Turn | None:
        """The next one whose turn it is; it is under way then."""
        if self._taken >= self._most:
            return None
        spoken_for: set[BrokerId] = set()
        for position, turn in enumerate(self._waiting):
            brokers = turn.brokers()
            if brokers & spoken_for or any(self._busy[broker] >= self._most_per_broker for broker in brokers):
                spoken_for |= brokers
                continue
            del self._waiting[position]
            self._taken += 1
            self._busy.update(brokers)
            return turn
        return None
