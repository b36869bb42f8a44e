"""What is seen of Pulsar's bundles when one is moved: who owns it, and that somebody does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Registration
from loadmanager.errors import InvalidRecordError, StoreError
from loadmanager.pulsar.fenced_znode import ElectionPort
from loadmanager.pulsar.refusals import PulsarRefusedError, PulsarUnreachableError

log = structlog.get_logger(__name__)

_LOOKUPS = 3
_AGAIN_S = 1.0


class SeesOwners(Protocol):
    """Pulsar's metadata, as it is mirrored."""

    @property
    def owners(self) -> Mapping[str, Registration | None]:
        """By bundle who owns it, as far as is known."""

    async def owner_now(self, bundle: BundleName) -> Registration | None:
        """Who owns a bundle, read now; `StoreError` or `InvalidRecordError`."""


class MovesBundles(Protocol):
    """Pulsar's REST. Each raises `PulsarRefusedError` or `PulsarUnreachableError`."""

    async def unload(self, bundle: BundleName, destination: BrokerId | None) -> None:
        """Have the owner let go of a bundle, and Pulsar's leader remember where it is to go."""

    async def look_up(self, bundle: BundleName) -> None:
        """Have Pulsar place a bundle if nobody owns it."""


class PulsarOwnership:
    """Who owns bundles of Pulsar's, in the end."""

    def __init__(self, picture: SeesOwners, admin: MovesBundles, election: ElectionPort) -> None:
        self._picture = picture
        self._admin = admin
        self._election = election

    async def find(self, name: BundleName) -> Registration | None:
        """Who owns a bundle; if nobody does, it is looked up a few times, so that Pulsar places it.

        The first lookup fails if its destination has died: then Pulsar's leader has forgotten that, and the next one
        has it placed. Waits while Pulsar's metadata cannot be read, for as long as the term lasts: `NotLeaderError`
        when it is over.
        """
        for _ in range(_LOOKUPS):
            owner = await self._read(name)
            if owner is not None:
                return owner
            self._election.get_term()
            try:
                await self._admin.look_up(name)
            except (PulsarRefusedError, PulsarUnreachableError) as error:
                log.warning("bundle_not_placed", bundle=str(name), error=str(error))
        return await self._read(name)

    async def _read(self, name: BundleName) -> Registration | None:
        while True:
            self._election.get_term()
            try:
                return await self._picture.owner_now(name)
            except InvalidRecordError as error:
                log.warning("owner_unreadable", bundle=str(name), error=str(error))
                return self._picture.owners.get(str(name))
            except StoreError as error:
                log.warning("owner_not_read", bundle=str(name), error=str(error))
            await asyncio.sleep(_AGAIN_S)
