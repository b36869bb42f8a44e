"""Move verification: the owner of a bundle after a move, which Pulsar places if nobody owns it."""

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


class SeesOwners(Protocol):
    """Owners of bundles, as they are mirrored."""

    @property
    def owners(self) -> Mapping[str, Registration | None]:
        """Last known owner of each bundle."""

    async def owner_now(self, bundle: BundleName, *near: BrokerId | None) -> Registration | None:
        """Ask the last known owner, and brokers that may have it; `PulsarRefusedError` or `PulsarUnreachableError`."""

    async def read_bundles(self, namespace: str) -> None:
        """Ask for the bundles of a namespace now; raises as `owner_now`, or `InvalidRecordError`."""


class MovesBundles(Protocol):
    """Pulsar's REST. Each raises `PulsarRefusedError` or `PulsarUnreachableError`."""

    async def unload(self, bundle: BundleName, destination: BrokerId | None) -> None:
        """Have the owner release a bundle, and the destination take it."""

    async def look_up(self, bundle: BundleName) -> BrokerId | None:
        """Have Pulsar place a bundle if nobody owns it, and return its owner."""


class PulsarOwnership:
    """Finds the owner of a bundle in the end."""

    def __init__(self, picture: SeesOwners, admin: MovesBundles, election: ElectionPort) -> None:
        self._picture = picture
        self._admin = admin
        self._election = election

    async def find(self, name: BundleName, *near: BrokerId | None) -> Registration | None:
        """Return the owner of a bundle; if nobody owns it, look it up a few times, so that Pulsar places it.

        The first lookup fails if its destination has died: then Pulsar's leader has forgotten that, and the next one
        has it placed. Waits while brokers do not answer, for as long as the term lasts: `NotLeaderError` when it is
        over.
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
                return await self._picture.owner_now(name, *near)
            except (PulsarRefusedError, PulsarUnreachableError, InvalidRecordError) as error:
                log.warning("owner_not_read", bundle=str(name), error=str(error))
            await asyncio.sleep(_AGAIN_S)
