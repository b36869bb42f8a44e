"""Search for the owner of a bundle after a move. If nobody owns the bundle, a lookup has Pulsar place it."""

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
    """Owners of bundles in the mirror."""

    @property
    def owners(self) -> Mapping[str, Registration | None]:
        """Last known owner of each bundle."""

    async def read_owner(self, bundle: BundleName, *near: BrokerId | None) -> Registration | None:
        """Ask the last known owner and the brokers `near`. Raises `PulsarRefusedError` or `PulsarUnreachableError`."""

    async def read_bundles(self, namespace: str) -> None:
        """Read the bundles of a namespace now. Raises as `read_owner`, or `InvalidRecordError`."""


class MoveClient(Protocol):
    """Pulsar's REST API. Each method raises `PulsarRefusedError` or `PulsarUnreachableError`."""

    async def unload(self, bundle: BundleName, destination: BrokerId | None) -> None:
        """Unload a bundle from its owner to the destination."""

    async def look_up(self, bundle: BundleName) -> BrokerId | None:
        """Look a bundle up and return its owner. Pulsar places it first if nobody owns it."""


class OwnerFinder:
    """Finds the owner of a bundle; retries until brokers answer."""

    def __init__(self, intake: OwnerSource, admin: MoveClient, election: ElectionPort) -> None:
        self._intake = intake
        self._admin = admin
        self._election = election

    async def find(self, name: BundleName, *near: BrokerId | None) -> Registration | None:
        """Return the owner of a bundle. If nobody owns it, look it up a few times, so that Pulsar places it.

        If the destination has died, the first lookup fails, and Pulsar's leader drops the destination. The next lookup
        places the bundle. Retries until brokers answer; raises `NotLeaderError` after the term.
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
