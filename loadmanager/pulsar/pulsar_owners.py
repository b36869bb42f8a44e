"""Has Pulsar move a bundle: its owner lets go at our word, and a lookup has it placed where it is to go.

    who owns it                    then
    -----------                    ----
    its owner of before, or        unload it, with the destination: Pulsar's leader remembers that, in memory alone,
    nobody, and it was not         until a lookup reaches it, also of a bundle that nobody owns
    unloaded
    its destination                it has arrived
    its owner of before            look again shortly: what was read may be older than the unload
    nobody                         look it up, and look again
    another broker                 refused for good: it went elsewhere, and asking again would only move it once more

Without a destination it has arrived once its owner has let go.

No fencing is possible through Pulsar's REST: it knows nothing of our terms. So the term is looked at right before each
call, and what is left is a process that is paused between that look and the call, or a call that is long on its way:
one late unload of one bundle. It costs its clients a reconnection, and Pulsar places the bundle as it places any; it
never has a second owner, as owners are Pulsar's to make.
"""

from __future__ import annotations

import asyncio

import structlog

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.errors import InvalidRecordError, StoreError
from loadmanager.leader.execution.owner_calls import OwnerRefusal
from loadmanager.pulsar.fenced_znode import ElectionPort
from loadmanager.pulsar.move_verification import MovesBundles, SeesOwners
from loadmanager.pulsar.refusals import FAULTS_OF_ITS_OWN, PulsarRefusedError, PulsarUnreachableError

log = structlog.get_logger(__name__)

_LOOK_AGAIN_S = 0.2
_SHORTEST_S = 0.1
_TOO_MUCH_TO_DO = 429


class PulsarOwners:
    """The brokers of a Pulsar, asked through its REST. `picture` and `admin` are closed by who made them."""

    def __init__(self, picture: SeesOwners, admin: MovesBundles, election: ElectionPort) -> None:
        self._picture = picture
        self._admin = admin
        self._election = election

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def ask(self, name: BundleName, released: Ownership, patience_s: float) -> OwnerRefusal | None:
        """Move the bundle within this time; see the top."""
        source, destination = _broker(released.owner), _broker(released.destination)
        try:
            async with asyncio.timeout(max(patience_s, _SHORTEST_S)):
                return await self._move(name, source, destination)
        except TimeoutError:
            owner = _broker(self._picture.owners.get(str(name)))
            return OwnerRefusal(f"after {patience_s:.1f} s {owner or 'nobody'} has it", is_final=True)
        except PulsarRefusedError as error:
            return OwnerRefusal(str(error), is_final=not _may_pass(error))
        except (PulsarUnreachableError, StoreError, InvalidRecordError) as error:
            return OwnerRefusal(str(error))

    async def _move(
        self, name: BundleName, source: BrokerId | None, destination: BrokerId | None
    ) -> OwnerRefusal | None:
        if _broker(await self._picture.owner_now(name)) in (source, None):
            self._election.get_term()
            await self._admin.unload(name, destination)
            if destination is None:
                return None
        while True:
            owner = _broker(await self._picture.owner_now(name))
            if owner is None:
                await self._look_up(name)
                owner = _broker(await self._picture.owner_now(name))
            if owner not in (source, None):
                return None if owner == destination else OwnerRefusal(f"it went to {owner}", is_final=True)
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _look_up(self, name: BundleName) -> None:
        """Have it placed; one that cannot be placed now, as when its destination has just died, may be soon."""
        self._election.get_term()
        try:
            await self._admin.look_up(name)
        except PulsarUnreachableError as error:
            log.info("bundle_not_placed", bundle=str(name), error=str(error))
        except PulsarRefusedError as error:
            if not _may_pass(error):
                raise
            log.info("bundle_not_placed", bundle=str(name), error=str(error))


def _broker(owner: Registration | None) -> BrokerId | None:
    return None if owner is None else owner.broker


def _may_pass(error: PulsarRefusedError) -> bool:
    """Whether Pulsar may do it if it is asked again."""
    return error.status == _TOO_MUCH_TO_DO or error.status >= FAULTS_OF_ITS_OWN
