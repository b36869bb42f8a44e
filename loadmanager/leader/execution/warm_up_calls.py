"""Who has a destination prepare for a bundle, and how a node does: with the topics that the owner's agent names.

Nothing depends on it. A broker that says that it does not know how is not asked again in this life of it.
"""

from __future__ import annotations

import asyncio

import structlog

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Registration
from loadmanager.errors import OwnerSilentError
from loadmanager.leader.execution.agent_calls import AgentCalls

log = structlog.get_logger(__name__)


class Destinations:
    """The brokers that get bundles, through their `agents`."""

    def __init__(self, agents: AgentCalls) -> None:
        self._agents = agents
        self._unable: dict[BrokerId, Registration] = {}

    def can_prepare(self, destination: Registration) -> bool:
        """Whether it is worth asking."""
        return self._unable.get(destination.broker) != destination

    async def prepare(
        self, name: BundleName, owner: Registration | None, destination: Registration, patience_s: float
    ) -> None:
        """Have the destination prepare for what is still its owner's; return when it has, or after so long."""
        try:
            async with asyncio.timeout(patience_s):
                topics = [] if owner is None else [each.topic for each in await self._agents.get_topics(owner, name)]
                if not await self._agents.prepare(destination, name, topics):
                    self._unable[destination.broker] = destination
        except (OwnerSilentError, TimeoutError) as error:
            log.info("not_prepared", bundle=str(name), destination=str(destination), error=str(error) or "too slow")
