"""Lookup clients for asyncio and for threads: owners from memory, else from a node."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import threading
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Self, TypeVar

import aiohttp

from loadmanager.client.namespace_watch import Watches
from loadmanager.client.node_client import Nodes, checked_urls
from loadmanager.client.owner_map import KEPT_S, TOPICS_KEPT, OwnerMap
from loadmanager.client.owner_queries import OwnerQueries
from loadmanager.client.push_events import Owner
from loadmanager.core.domain.names import NamespaceName
from loadmanager.net.auth.outgoing_token import token_of

LOOKUP_TIMEOUT_S = 30.0
_LOOK_S = 5.0


class LookupClient:
    """Topic lookup through the nodes at `urls`. Use it with `async with`, in one event loop.

    `namespaces` are followed from the beginning, others from their first lookup on. `listener` names the advertised
    listener of brokers whose addresses are wanted. `token` is `token:...` or `file:///path`, which is read again when
    it changes; `ssl_context` says whom to believe and what to show, None: whom the system trusts, and nothing.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        namespaces: Iterable[str] = (),
        listener: str | None = None,
        token: str = "",
        ssl_context: ssl.SSLContext | None = None,
        topics_kept: int = TOPICS_KEPT,
        kept_s: float = KEPT_S,
        chance: random.Random | None = None,
    ) -> None:
        """Raises `ConfigurationError` or `InvalidNameError` for what cannot be used."""
        self._urls = checked_urls(urls)
        self._token = token_of(token, "token")
        self._first = [str(NamespaceName.parse(name)) for name in namespaces]
        self._listener = listener
        self._ssl_context = ssl_context
        self._chance = chance or random.Random()  # noqa: S311 - only jitter
        self._owners = OwnerMap(listener, topics_kept=topics_kept, kept_s=kept_s)
        self._questions: OwnerQueries | None = None
        self._ending = contextlib.AsyncExitStack()
        self.resolve = self._owners.resolve
        """`resolve(topic)`: the owner from memory, None for what has to be looked up; from any thread. Raises
        `InvalidNameError` for what is no topic's name.
        """
        self.refused = self._owners.refused
        """`refused(topic, broker_id)`: that broker does not serve the topic, or does not any more; from any thread."""

    async def __aenter__(self) -> Self:
        """Returns once the `namespaces` are known. `NodesUnavailableError` when no node answers, and what they answer
        to those who may not look topics up.
        """
        async with contextlib.AsyncExitStack() as ending:
            session = await ending.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            nodes = Nodes(
                self._urls,
                session,
                self._chance,
                token=self._token,
                ssl_context=self._ssl_context,
                listener=self._listener,
            )
            watches = Watches(self._owners, nodes, self._chance)
            ending.push_async_callback(watches.close)
            questions = OwnerQueries(self._owners, nodes, watches, self._chance)
            ending.push_async_callback(questions.close)
            tending = asyncio.create_task(self._tend(), name="lookup client")
            ending.callback(tending.cancel)
            for name in self._first:
                watches.follow(name)
            await watches.begun()
            self._questions, self._ending = questions, ending.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._questions = None
        await self._ending.aclose()

    async def lookup(self, topic: str, timeout_s: float = LOOKUP_TIMEOUT_S) -> Owner:
        """The owner of the topic, assigned now if nobody owns it.

        Raises `InvalidNameError`, `NamespaceNotFoundError`, `UnauthenticatedError` or `ForbiddenError` at once; after
        `timeout_s` `NodesUnavailableError` where no node answers, else `NoOwnerYetError`.
        """
        owner = self.resolve(topic)
        if owner is not None:
            return owner
        if self._questions is None:
            raise RuntimeError("a LookupClient is used with `async with`, and within it")
        return await self._questions.ask(topic, timeout_s)

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._owners.expire(asyncio.get_running_loop().time())


_Result = TypeVar("_Result")


class BlockingLookupClient:
    """A client that no loop has begun to use, for any number of threads. Use it with `with`."""

    def __init__(self, client: LookupClient) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lookup client", daemon=True)
        self.resolve = client.resolve
        self.refused = client.refused

    def __enter__(self) -> Self:
        """Raises as `LookupClient` does when it is entered."""
        self._thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._client.__aexit__())
        self._end()

    def lookup(self, topic: str, timeout_s: float = LOOKUP_TIMEOUT_S) -> Owner:
        """Do `LookupClient.lookup` in the calling thread, which blocks."""
        owner = self.resolve(topic)
        return owner if owner is not None else self._run(self._client.lookup(topic, timeout_s))

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:  # also what interrupts the thread that waits
            running.cancel()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
