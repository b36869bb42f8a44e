"""Owners of bundles from Pulsar's REST API, and moves: one unload with a destination, then a check of the owner.

    owner                      action
    -----                      ------
    the source, or nobody,     unload with the destination. Extensible: the answer comes once the destination owns the
    before the unload          bundle. Modular: Pulsar's leader notes the destination until a lookup
    the destination            the move has landed
    the source                 check again; after 2 s Pulsar has placed the bundle back there: a miss
    nobody                     look the bundle up, so that Pulsar places it, and check again
    another broker             the move has landed there: a miss

Without a destination the move is over once the owner has released the bundle.

Pulsar's REST API cannot be fenced by our epoch, so the term is checked right before each call. A process that pauses
between the check and the call may unload one bundle late. Its clients then reconnect. There is never a second owner,
because only Pulsar assigns bundles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.errors import InvalidRecordError
from loadmanager.leader.execution.agent_calls import OwnerRefusal
from loadmanager.pulsar.fenced_znode import ElectionPort
from loadmanager.pulsar.rest_call import FAULTS_OF_ITS_OWN, PulsarRefusedError, PulsarUnreachableError

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
    """Finds the owner of a bundle after a move; retries until brokers answer."""

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


_LOOK_AGAIN_S = 0.2
_CHECKS_AT_SOURCE = 10
_SHORTEST_S = 0.1
_TOO_MANY_REQUESTS = 429


class PulsarOwners:
    """Executes single moves; does not close `intake` and `admin`."""

    def __init__(self, intake: OwnerSource, admin: MoveClient, election: ElectionPort) -> None:
        self._intake = intake
        self._admin = admin
        self._election = election

    async def ask(self, name: BundleName, released: Ownership, timeout_s: float) -> OwnerRefusal | None:
        """Move the bundle within `timeout_s`; see the table of the module."""
        source, destination = _broker(released.owner), _broker(released.destination)
        try:
            async with asyncio.timeout(max(timeout_s, _SHORTEST_S)):
                await self._move(name, source, destination)
        except TimeoutError:
            owner = _broker(self._intake.owners.get(str(name)))
            return OwnerRefusal(f"after {timeout_s:.1f} s {owner or 'nobody'} has it", is_final=True)
        except PulsarRefusedError as error:
            return OwnerRefusal(str(error), is_final=not _is_temporary(error))
        except (PulsarUnreachableError, InvalidRecordError) as error:
            return OwnerRefusal(str(error))
        return None

    async def _move(self, name: BundleName, source: BrokerId | None, destination: BrokerId | None) -> None:
        if _broker(await self._intake.read_owner(name, destination)) in (source, None):
            self._election.get_term()
            await self._admin.unload(name, destination)
            if destination is None:
                return
        checks = 0
        while checks < _CHECKS_AT_SOURCE:
            owner = _broker(await self._intake.read_owner(name, destination))
            if owner is None:
                placed = await self._look_up(name)
                owner = _broker(await self._intake.read_owner(name, destination, placed))
            if owner not in (source, None):
                return
            checks += owner == source
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _look_up(self, name: BundleName) -> BrokerId | None:
        """Look the bundle up; return None on a temporary failure, such as a destination that has just died."""
        self._election.get_term()
        try:
            return await self._admin.look_up(name)
        except PulsarUnreachableError as error:
            log.info("bundle_not_placed", bundle=str(name), error=str(error))
        except PulsarRefusedError as error:
            if not _is_temporary(error):
                raise
            log.info("bundle_not_placed", bundle=str(name), error=str(error))
        return None


def _broker(owner: Registration | None) -> BrokerId | None:
    return None if owner is None else owner.broker


def _is_temporary(error: PulsarRefusedError) -> bool:
    """Return True for a temporary refusal."""
    return error.status == _TOO_MANY_REQUESTS or error.status >= FAULTS_OF_ITS_OWN
