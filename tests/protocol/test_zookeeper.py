from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from protocol.parties import Party, VirtualLoop
from protocol.virtual_time import virtual_time
from protocol.zookeeper import Ensemble, ModelStore

from loadmanager.errors import StoreError
from loadmanager.store.metadata_store import Create, SessionState

SESSION_S = 6.0
DOWN_S = 5.0
EARLIER, LATER = "/earlier", "/later"


def in_a_world(scenario: Callable[[Ensemble, ModelStore], Awaitable[None]]) -> None:
    """Run a scenario as a client of three servers without delays."""
    loop = VirtualLoop(random.Random(1))
    asyncio.set_event_loop(loop)
    try:
        ensemble = Ensemble(loop, random.Random(1))
        ensemble.slow_share = 0.0

        async def play() -> None:
            store = ModelStore(ensemble, session_timeout_s=SESSION_S)
            await store.start()
            await scenario(ensemble, store)
            await store.close()

        client = Party("client", "client")
        task = client.context.run(loop.create_task, play())
        with virtual_time(loop):
            loop.run_until_complete(task)
        ensemble.end()
    finally:
        loop.close()
        asyncio.set_event_loop(None)


async def a_session_again(store: ModelStore, within_s: float) -> None:
    await asyncio.sleep(DOWN_S)
    async with asyncio.timeout(within_s - DOWN_S):
        while store.state is not SessionState.CONNECTED:  # noqa: ASYNC110 - it is over in no time
            await asyncio.sleep(0.1)


def test_client_ahead_of_the_servers_gives_up_after_twice_its_timeout() -> None:
    async def scenario(ensemble: Ensemble, store: ModelStore) -> None:
        await store.commit([Create(EARLIER, b"")])
        ensemble.save()
        await store.commit([Create(LATER, b"")])
        for number in range(9):  # more than the servers' own transactions
            await store.commit([Create(f"{LATER}/{number}", b"")])
        session = store.session_id
        ensemble.set_back(DOWN_S)
        with pytest.raises(TimeoutError):
            await a_session_again(store, within_s=2 * SESSION_S - 1.0)
        assert (store.session_id, store.sessions_given_up) == (session, 0)
        await a_session_again(store, within_s=2 * SESSION_S)
        assert (store.session_id != session, store.sessions_given_up) == (True, 1)
        assert [znode is not None for znode in await store.get_many([EARLIER, LATER])] == [True, False]

    in_a_world(scenario)


def test_client_not_ahead_of_the_servers_keeps_its_session() -> None:
    async def scenario(ensemble: Ensemble, store: ModelStore) -> None:
        await store.commit([Create(EARLIER, b"", ephemeral=True)])
        ensemble.save()
        session = store.session_id
        ensemble.set_back(DOWN_S)
        await a_session_again(store, within_s=SESSION_S)
        assert (store.session_id, store.sessions_given_up) == (session, 0)
        assert await store.get(EARLIER) is not None

    in_a_world(scenario)


def test_servers_without_saved_data_come_back_empty() -> None:
    async def scenario(ensemble: Ensemble, store: ModelStore) -> None:
        await store.commit([Create(EARLIER, b"")])
        ensemble.set_back(DOWN_S)
        await a_session_again(store, within_s=4 * SESSION_S)
        assert await store.get(EARLIER) is None

    in_a_world(scenario)


def test_write_in_progress_is_lost_in_a_rollback() -> None:
    async def scenario(ensemble: Ensemble, store: ModelStore) -> None:
        ensemble.save()
        writing = asyncio.ensure_future(store.commit([Create(LATER, b"")]))
        await asyncio.sleep(0)
        ensemble.set_back(DOWN_S)
        with pytest.raises(StoreError):
            await writing
        await a_session_again(store, within_s=4 * SESSION_S)
        assert await store.get(LATER) is None

    in_a_world(scenario)
