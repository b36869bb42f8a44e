"""Owner of a bundle after a move; a bundle that nobody owns is looked up, so that Pulsar places it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Registration
from loadmanager.errors import InvalidRecordError
from loadmanager.pulsar.fenced_znode import ElectionPort
from loadmanager.pulsar.refusals import PulsarRefusedError, PulsarUnreachableError

log = structlog.get_logger(__name__)

_LOOKUPS = 3
_AGAIN_S = 1.0


class OwnerSource(Protocol):
    """Owners of bundles, as mirrored."""

    @property
    def owners(self) -> Mapping[str, Registration | None]:
        """Last known owner of each bundle."""

    async def read_owner(self, bundle: BundleName, *near: BrokerId | None) -> Registration | None:
        """Ask the last known owner, and brokers that may have it; `PulsarRefusedError` or `PulsarUnreachableError`."""

    async def read_bundles(self, namespace: str) -> None:
        """Ask for the bundles of a namespace now; raises as `read_owner`, or `InvalidRecordError`."""


class MoveClient(Protocol):
    """Pulsar's REST. Each raises `PulsarRefusedError` or `PulsarUnreachableError`."""

    async def unload(self, bundle: BundleName, destination: BrokerId | None) -> None:
        """Have the owner release a bundle, and the destination take it."""

    async def look_up(self, bundle: BundleName) -> BrokerId | None:
        """Have Pulsar place a bundle if nobody owns it, and return its owner."""


class OwnerFinder:
    """Finds the owner of a bundle, and waits until brokers answer."""

    def __init__(self, intake: OwnerSource, admin: MoveClient, election: ElectionPort) -> None:
        self._intake = intake
        self._admin = admin
        self._election = election

    async def find(self, name: BundleName, *near: BrokerId | None) -> Registration | None:
        """Return the owner of a bundle; if nobody owns it, look it up a few times, so that Pulsar places it.

        The first lookup fails if the destination has died; Pulsar's leader then forgets it, and the next lookup places
        the bundle. Waits while brokers do not answer; raises `NotLeaderError` when the term is over.
        """
        placed: BrokerId | None = None
        for _ in range(_LOOKUPS):
            owner = await self._read(name, placed, *near)
            if owner is not None:
                return owner
            self._election.get_term()
            try:
                placed = await self._admin.look_up(name)
            except (PulsarRefusedError, PulsarUnreachableError) as error:
                log.warning("bundle_not_placed", bundle=str(name), error=str(error))
        return await self._read(name, placed, *near)

    async def _read(self, name: BundleName, *near: BrokerId | None) -> Registration | None:
        while True:
            self._election.get_term()
            try:
                return await self._intake.read_owner(name, *near)
            except (PulsarRefusedError, PulsarUnreachableError, InvalidRecordError) as error:
                log.warning("owner_not_read", bundle=str(name), error=str(error))
            await asyncio.sleep(_AGAIN_S)
