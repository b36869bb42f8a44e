from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.delays import a_memory_cluster
from support.memory_store import MemoryStore
from support.stores import started

from loadmanager.agent.grants import Grants
from loadmanager.agent.registration import StoreRollback
from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, BundleName, NamespaceName
from loadmanager.core.domain.ownership import FREE, NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.errors import StoreUnavailableError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Put
from loadmanager.wire.store_records import encode_namespace

B1 = Registration(BrokerId("b1:8080"), 7)
NAME = NamespaceName.of("t", "ns")
PATH = paths.namespace(str(NAME))
TWO = NamespaceBundles(equal_boundaries(2))
BUNDLE, OTHER = (BundleName(NAME, each) for each in TWO.ranges())
RELEASED_AT = 4
EPOCH = 2


class Stored:
    """A store, with an epoch and a record as a test wants them, and an agent that was told of an unload."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.grants = Grants(B1.broker)
        self.withdrawn: list[str] = []
        self.set_back = StoreRollback(store, self.grants, self.withdrawn.append)
        self.grants.register(B1.incarnation)
        self.grants.revoke(BUNDLE, B1, epoch=EPOCH, version=RELEASED_AT)

    async def has(self, ownership: Ownership, *, epoch: int = EPOCH) -> None:
        await self.store.ensure_path(PATH)
        await self.store.ensure_path(paths.EPOCH)
        for version in range(epoch):
            await self.store.commit([Put(paths.EPOCH, b"", version)])
        record = encode_namespace(NamespaceState(NAME, TWO, (ownership, FREE)))
        await self.store.commit([Put(PATH, record, 0)])

    async def looked(self, bundle: BundleName = BUNDLE) -> list[str]:
        await self.set_back.look(bundle)
        return self.withdrawn


def an_entry(state: OwnershipState, version: int, owner: Registration | None = B1) -> Ownership:
    return Ownership(state, owner, None, version, EPOCH, 0, "")


@pytest.fixture
async def stored() -> AsyncIterator[Stored]:
    async with started(MemoryStore(a_memory_cluster())) as store:
        yield Stored(store)


@pytest.mark.parametrize("version", [RELEASED_AT - 1, RELEASED_AT])
async def test_grant_from_a_rolled_back_store(stored: Stored, version: int) -> None:
    await stored.has(an_entry(OwnershipState.OWNED, version))
    assert await stored.looked() == ["store_rolled_back"]


async def test_epoch_older_than_that_of_an_unload_is_a_rollback(stored: Stored) -> None:
    await stored.has(an_entry(OwnershipState.OWNED, RELEASED_AT + 1), epoch=EPOCH - 1)
    assert await stored.looked() == ["store_rolled_back"]


@pytest.mark.parametrize(
    "ownership",
    [
        an_entry(OwnershipState.RELEASING, RELEASED_AT),
        an_entry(OwnershipState.OWNED, RELEASED_AT + 1),
        an_entry(OwnershipState.OWNED, RELEASED_AT - 1, Registration(BrokerId("b1:8080"), 3)),
        an_entry(OwnershipState.FREE, RELEASED_AT + 1, None),
    ],
    ids=["under way", "given back", "another life's", "free"],
)
async def test_valid_successors_of_an_unload_are_no_rollback(stored: Stored, ownership: Ownership) -> None:
    await stored.has(ownership)
    assert await stored.looked() == []
    assert await stored.looked(OTHER) == []
    assert await stored.looked(BundleName.parse("t/ns/0x00000000_0x10000000")) == []
    assert await stored.looked(BundleName.parse("t/other/0x00000000_0x10000000")) == []


async def test_newer_registration_is_no_rollback(stored: Stored) -> None:
    await stored.has(an_entry(OwnershipState.OWNED, RELEASED_AT - 1), epoch=EPOCH - 1)
    sync = stored.store.sync

    async def sync_while_registering() -> None:
        stored.grants.register(B1.incarnation + 1)
        await sync()

    stored.store.sync = sync_while_registering  # type: ignore[method-assign]  # in between
    assert await stored.looked() == []


async def test_unreachable_store_is_no_rollback(stored: Stored) -> None:
    async def sync() -> None:
        raise StoreUnavailableError("not now")

    stored.store.sync = sync  # type: ignore[method-assign]  # it does not answer
    assert await stored.looked() == []


async def test_unreadable_record_is_no_rollback(stored: Stored) -> None:
    await stored.has(an_entry(OwnershipState.OWNED, 1))
    await stored.store.commit([Put(PATH, b"?", 1)])
    assert await stored.looked() == []
