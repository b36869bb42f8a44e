"""A fleet with random events, and the history that its leader records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support.plain_windows import Bundle, Happened, Reported

from loadmanager.core.domain.names import HASH_SPACE_END

Entries = list[Reported | Happened]


@dataclass
class Drawn:
    """A cluster to which anything happens, at times of which many are the same; its entries are in their order."""

    rng: np.random.Generator
    at_ms: int
    epoch: int
    entries: Entries = field(default_factory=list)
    sequence: int = 0

    def __post_init__(self) -> None:
        width = HASH_SPACE_END // 4
        self.brokers = ["a", "b", "c"]
        self.owners: dict[Bundle, str] = {
            (f"t/ns-{space}", at * width, (at + 1) * width): self._any(self.brokers)
            for space in range(2)
            for at in range(int(self.rng.integers(1, 5)))
        }
        self._happen("term_began")

    def go_on(self, steps: int) -> Entries:
        ways = (self._report, self._move, self._crash, self._cut, self._merge, self._elect, self._fall_silent)
        likely = np.array([60, 12, 4, 4, 4, 3, 1], dtype=float)
        for _ in range(steps):
            ways[self.rng.choice(len(ways), p=likely / likely.sum())]()
            self.at_ms += int(self.rng.choice([0, 1, 1000, 20_000, 70_000], p=[0.3, 0.1, 0.2, 0.3, 0.1]))
        return self.entries

    def _report(self, broker: str | None = None, epoch: int | None = None) -> None:
        broker = broker or self._any(self.brokers)
        own = [bundle for bundle, owner in self.owners.items() if owner == broker and self.rng.random() < 0.9]
        loads = {bundle: tuple(self.rng.integers(1, 1000, 4).astype(float).tolist()) for bundle in own}
        cpu = float(self.rng.integers(1, 100)) / 100
        self.entries.append(Reported(self.at_ms, epoch or self.epoch, self._next(), broker, loads, cpu))

    def _move(self) -> None:
        self.owners[self._any(list(self.owners))] = self._any(self.brokers)

    def _crash(self) -> None:
        broker = self._any(self.brokers)
        self._happen("broker_gone", broker)
        self.owners |= {bundle: self._any(self.brokers) for bundle, owner in self.owners.items() if owner == broker}

    def _cut(self) -> None:
        namespace, lower, upper = bundle = self._any(list(self.owners))
        owner, middle = self.owners.pop(bundle), (lower + upper) // 2
        self.owners |= {(namespace, lower, middle): owner, (namespace, middle, upper): self._any(self.brokers)}

    def _merge(self) -> None:
        namespace, lower, middle = one = self._any(list(self.owners))
        other = next((each for each in self.owners if each[:2] == (namespace, middle)), None)
        if other is not None:
            owner = self.owners.pop(one)
            self.owners.pop(other)
            self.owners[namespace, lower, other[2]] = owner

    def _elect(self) -> None:
        """Another leader; the one before may have ended its term or not, and may go on recording for a while."""
        before = self.epoch
        if self.rng.random() < 0.5:
            self._happen("term_ended")
            self.at_ms += int(self.rng.choice([0, 1000, 30_000]))
        self.epoch += int(self.rng.integers(1, 3))
        self._happen("term_began")
        if self.rng.random() < 0.5:
            for broker in self.brokers:
                self._report(broker)
            self.at_ms += 1000
            self._report(epoch=before)
            if self.rng.random() < 0.5:
                self._happen("broker_gone", self._any(self.brokers), epoch=before)

    def _fall_silent(self) -> None:
        self.at_ms += 20 * 60_000

    def _happen(self, kind: str, subject: str = "", epoch: int | None = None) -> None:
        self.entries.append(Happened(self.at_ms, epoch or self.epoch, self._next(), kind, subject))

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence

    def _any(self, among: Sequence[Any]) -> Any:  # noqa: ANN401 - one of them
        return among[int(self.rng.integers(len(among)))]
