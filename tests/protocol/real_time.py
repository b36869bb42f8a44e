"""The model of ZooKeeper on an ordinary event loop, for the contract tests of stores."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from protocol.parties import Party
from protocol.zookeeper import Ensemble, ModelStore
from support.waiting import eventually

from loadmanager.store.metadata_store import MetadataStore, SessionState


class RealTime:
    """Clock and timers of the model on a real event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def now_s(self) -> float:
        return self._loop.time()

    def as_party(self, party: Party, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        del party
        self._loop.call_later(max(0.0, delay_s), callback, *args)


class ModelWorld:
    """A `support.stores.StoreWorld` of the model. Nothing is slow in it, as in one server."""

    def __init__(self) -> None:
        self._ensemble = Ensemble(RealTime(asyncio.get_running_loop()), random.Random(1))
        self._ensemble.slow_share = self._ensemble.most_lag_s = 0.0
        self._stores: list[ModelStore] = []

    async def connect(self) -> ModelStore:
        store = ModelStore(self._ensemble)
        self._stores.append(store)
        await store.start()
        return store

    async def shut(self, path: str) -> None:
        pytest.skip(f"the model has no access lists, and {path} none")

    async def expire(self, store: MetadataStore) -> None:
        expired = store.session_id
        self._ensemble.expire(expired)
        await eventually(lambda: store.session_id not in {0, expired} and store.state is SessionState.CONNECTED)

    async def reconnect(self, store: MetadataStore) -> None:
        assert isinstance(store, ModelStore)
        store.drop()
        await eventually(lambda: store.state is SessionState.CONNECTED)

    def leave_out_answer(self, store: MetadataStore) -> None:
        assert isinstance(store, ModelStore)
        store.leaves_out_answer = True

    async def close(self) -> None:
        await asyncio.gather(*(store.close() for store in self._stores))
        self._ensemble.end()
