"""Warm-up (`prepare`) of destinations, with the topics that the owner's agent names.

Optional: no move depends on it. A broker that does not support it is not asked again until it registers anew.
"""

from __future__ import annotations

import asyncio

import structlog

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Registration
from loadmanager.errors import OwnerSilentError
from loadmanager.leader.execution.agent_calls import AgentCalls

log = structlog.get_logger(__name__)


class WarmUpCalls:
    """Warm-up calls to brokers that are about to get bundles, through their `agents`."""

    def __init__(self, agents: AgentCalls) -> None:
        self._agents = agents
        self._unable: dict[BrokerId, Registration] = {}

    def can_prepare(self, destination: Registration) -> bool:
        """True unless this registration of the broker has said that it does not support warm-up."""
        return self._unable.get(destination.broker) != destination

    async def prepare(
        self, name: BundleName, owner: Registration | None, destination: Registration, patience_s: float
    ) -> None:
        """Ask the destination to prepare for a bundle, and wait until it has, or at most `patience_s`."""
        try:
            async with asyncio.timeout(patience_s):
                topics = [] if owner is None else [each.topic for each in await self._agents.get_topics(owner, name)]
                if not await self._agents.prepare(destination, name, topics):
                    self._unable[destination.broker] = destination
        except (OwnerSilentError, TimeoutError) as error:
            log.info("not_prepared", bundle=str(name), destination=str(destination), error=str(error) or "too slow")
