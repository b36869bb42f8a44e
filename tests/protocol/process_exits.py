"""Model of a host's kernel, which reports the exit of a broker to its agent (`loadmanager.agent.broker_watch`).

On some hosts broker and agent have separate pid namespaces: exits are never reported there. A report may be late, but
is never wrong.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

from protocol.parties import Party, VirtualLoop, current_party

from loadmanager.agent.presence import BrokerProcess

_SEPARATE_SHARE = 0.25
_FOUND_AFTER_S = 0.02
_TOLD_AFTER_S = (0.001, 0.01, 0.5)
_THIS_PROCESS = os.getpid


class Kernels:
    """Kernels of all hosts; each pid is given once."""

    def __init__(self, rng: random.Random, loop: VirtualLoop) -> None:
        self.loop = loop
        self.rng = rng
        self.parties: dict[int, Party] = {}
        self.separate_share = _SEPARATE_SHARE
        self.told_after_s: Sequence[float] = _TOLD_AFTER_S
        """Longest delays of a report; one is drawn each time."""
        self._separate: dict[str, bool] = {}

    def started(self, party: Party) -> None:
        self.parties[len(self.parties) + 1] = party

    def pid(self) -> int:
        """Replaces `os.getpid`."""
        party = current_party()
        return next((pid for pid, other in self.parties.items() if other is party), 0) or _THIS_PROCESS()

    def find(self, pid: int, seen_from: Party | None) -> Party | None:
        """Return the live process with this pid, if the observer's host is the same and can see it."""
        party = self.parties.get(pid)
        if party is None or party.is_dead or seen_from is None or party.host != seen_from.host:
            return None
        separate = self._separate.setdefault(party.host, self.rng.random() < self.separate_share)
        return None if separate else party

    def deaths(self, on_death: Callable[[BrokerProcess], None]) -> VirtualDeaths:
        return VirtualDeaths(self, on_death)


class VirtualDeaths:
    """Replaces `BrokerExit`; the party that creates it is the agent."""

    def __init__(self, kernels: Kernels, on_death: Callable[[BrokerProcess], None]) -> None:
        self._kernels = kernels
        self._on_death = on_death
        self._agent = current_party()
        self._followed: tuple[BrokerProcess, Party] | None = None

    def follow(self, process: BrokerProcess | None) -> None:
        if process is None or (self._followed is not None and self._followed[0] == process):
            return
        party = self._kernels.find(process[0], self._agent)
        self._followed = None if party is None else (process, party)
        if party is not None:
            party.on_death.append(lambda: self._tell(process))

    async def holder(self, transport: Any) -> BrokerProcess | None:  # noqa: ANN401 - of the network's model
        """Find the process behind a connection, after the delay of a worker thread."""
        followed = self._followed
        if followed is None or transport is None:
            return None
        await asyncio.sleep(self._kernels.rng.uniform(0.0, _FOUND_AFTER_S))
        process, party = followed
        return process if self._followed == followed and party is transport.party and not party.is_dead else None

    def close(self) -> None:
        self._followed = None

    def _tell(self, process: BrokerProcess) -> None:
        assert self._agent is not None
        rng = self._kernels.rng
        delay_s = rng.uniform(0.0, rng.choice(self._kernels.told_after_s))
        self._kernels.loop.as_party(self._agent, delay_s, self._on_death, process)
