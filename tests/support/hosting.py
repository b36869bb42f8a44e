"""A `Hosting` whose agent answers when the test lets it, and whose clock stands still unless the test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loadmanager.broker import Hosting
from loadmanager.broker.agent_client import NoAnswerError
from loadmanager.broker.contract import ContractSignal, Leased, OwnershipAnswered


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class HeldAgent:
    """Replaces the agent's client. It grants leases when the test says so, and answers while `may_answer` is set."""

    def __init__(self) -> None:
        self.owned: bool | None = True
        """None: nobody knows."""
        self.incarnation = 7
        self.asked: list[tuple[str, int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def lease(self, _timeout_s: float) -> Leased:
        await asyncio.Event().wait()
        raise NotImplementedError

    async def owner(self, topic: str, wait_ms: int = 0) -> OwnershipAnswered:
        """Owner whose answer is decided when it is asked."""
        self.asked.append((topic, wait_ms))
        owned, incarnation = self.owned, self.incarnation
        await self.may_answer.wait()
        if owned is None:
            raise NoAnswerError("no node answered")
        return OwnershipAnswered(topic, owned, incarnation, None if owned else "b2:8080")

    async def close(self) -> None: ...


class Held:
    """`make` is given the clock, and makes a hosting; its agent is put in before it is entered."""

    def __init__(self, make: Callable[[Clock], Hosting]) -> None:
        self.clock = Clock()
        self.agent = HeldAgent()
        self.hosting = make(self.clock)
        self.hosting._agent = self.agent  # type: ignore[assignment]  # as good as one

    def lease(self, incarnation: int = 7) -> None:
        """A lease of 3 s that was asked for just now."""
        self.hosting._contract._asked_s = None
        self.hosting._step(Leased(incarnation, 3.0))

    def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.hosting._step(ContractSignal.TIME)


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)
