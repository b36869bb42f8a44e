"""Lookup clients for asyncio and for threads: owners from memory, else from a node.

There is one request at a time per bundle, shared by all callers, with back-off.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import threading
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import aiohttp

from loadmanager.client.namespace_watch import Watches, loop_time_s, pause_s
from loadmanager.client.node_client import Nodes, NotNow, checked_urls
from loadmanager.client.owner_map import KEPT_S, TOPICS_KEPT, OwnerMap
from loadmanager.client.push_events import Owner, Place
from loadmanager.core.domain.names import NamespaceName, TopicName
from loadmanager.errors import LoadManagerError, NamespaceNotFoundError, NodesUnavailableError, NoOwnerYetError
from loadmanager.net.auth.outgoing_token import token_of

_FIRST_NEWS_S = 1.0
"""Time to wait for a pushed namespace before a node is asked."""
_MOVED_S = 1.0
"""Time to wait for the pushed next owner of a moving bundle before a node is asked."""
_PAUSES_S = (0.05, 1.0)
"""Back-off between questions without a result: first and longest pause."""
_LONGEST_PAUSE_S = 5.0
"""Longest pause if a node has announced that it will take longer."""


@dataclass(eq=False, slots=True)
class _Question:
    """Pending lookup of `topic`, shared by all topics of its bundle if that is known. Result None: ask again."""

    topic: str
    key: str | Place
    task: asyncio.Task[Owner | None] = field(init=False)
    waiting: int = 0
    trouble: LoadManagerError | None = None

    def answers(self, topic: str) -> bool:
        return topic == self.topic or isinstance(self.key, Place)


class OwnerQueries:
    """Pending lookups; `close` cancels them."""

    def __init__(self, owners: OwnerMap, nodes: Nodes, watches: Watches, chance: random.Random) -> None:
        self._owners = owners
        self._nodes = nodes
        self._watches = watches
        self._chance = chance
        self._open: dict[str | Place, _Question] = {}

    async def ask(self, topic: str, timeout_s: float) -> Owner:
        """Wait for the owner. Raises as `LookupClient.lookup` does."""
        deadline_s = loop_time_s() + timeout_s
        while (owner := self._owners.resolve(topic)) is None:
            question = self._question_of(topic)
            if not await self._wait(question, deadline_s - loop_time_s()):
                raise question.trouble or NoOwnerYetError(f"topic {topic}: no answer within {timeout_s:.3g} s")
            if question.task.cancelled():
                raise NodesUnavailableError("the client was closed")
            answer = question.task.result()
            if answer is not None and question.answers(topic):
                return answer
        return owner

    async def close(self) -> None:
        tasks = [each.task for each in self._open.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _question_of(self, topic: str) -> _Question:
        """Return the lookup that the topic shares: one per bundle, or per namespace before its bundles are known."""
        namespace = str(TopicName.parse(topic).namespace)
        place = self._owners.place_of(topic)
        key: str | Place = place
        if place.pushed is None:
            key = topic if self._watches.has(namespace) else namespace
        question = self._open.get(key)
        if question is None:
            question = self._open[key] = _Question(topic, key)
            question.task = asyncio.create_task(self._answer(question, namespace), name=f"owner of {topic}")
        return question

    async def _wait(self, question: _Question, timeout_s: float) -> bool:
        """Tell if the lookup ended within the timeout. It is cancelled when no caller waits for it any more."""
        question.waiting += 1
        try:
            await asyncio.wait({question.task}, timeout=max(0.0, timeout_s))
        finally:
            question.waiting -= 1
            is_done = question.task.done()
            if is_done or not question.waiting:
                question.task.cancel()
                if self._open.get(question.key) is question:
                    del self._open[question.key]
        return is_done

    async def _answer(self, question: _Question, namespace: str) -> Owner | None:
        topic, began_s, failures, not_before_s = question.topic, loop_time_s(), 0, 0.0
        while (owner := self._owners.resolve(topic)) is None:
            wait_s = max(not_before_s, began_s + self._held_back_s(topic, namespace)) - loop_time_s()
            if wait_s > 0:
                await asyncio.wait({self._watches.update}, timeout=wait_s)
                continue
            try:
                answer = await self._ask_unless_pushed(topic)
            except NamespaceNotFoundError:
                self._watches.forget(namespace)
                raise
            except NodesUnavailableError as error:
                known = self._owners.find_last_known(self._owners.place_of(topic), loop_time_s())
                if known is not None:
                    return known
                answer, question.trouble = NotNow(str(error)), error
            else:
                self._watches.follow(namespace)
                if isinstance(answer, Owner):
                    return answer
                question.trouble = NoOwnerYetError(f"topic {topic}: {answer.reason}")
                if question.key == namespace:
                    return None  # the namespace's other topics may have owners
            failures += 1
            shortest_s, longest_s = _PAUSES_S
            longest_s = min(max(longest_s, answer.passes_in_s), _LONGEST_PAUSE_S)
            not_before_s = loop_time_s() + pause_s(self._chance, failures, shortest_s, longest_s)
        return owner

    async def _ask_unless_pushed(self, topic: str) -> Owner | NotNow:
        """Return a node's answer, or the owner if it is pushed first. Raises as `Nodes.lookup` does."""
        place = self._owners.place_of(topic)
        pushed = place.pushed
        asking = asyncio.create_task(self._nodes.lookup(topic))
        try:
            while True:
                waited: set[asyncio.Future[Any]] = {asking, self._watches.update}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    break
                if (owner := self._owners.resolve(topic)) is not None:
                    return owner
        finally:
            asking.cancel()
        answer = asking.result()
        if isinstance(answer, Owner):
            self._owners.answered(place, pushed, answer, loop_time_s())
        return answer

    def _held_back_s(self, topic: str, namespace: str) -> float:
        """Return the time to wait before a request: an owner is about to be pushed, or recent owners refused."""
        place = self._owners.place_of(topic)
        if place.is_moving:
            return _MOVED_S
        if self._watches.expects(namespace):
            return _FIRST_NEWS_S
        return pause_s(self._chance, place.refusals - 1, *_PAUSES_S) if place.refusals > 1 else 0.0


LOOKUP_TIMEOUT_S = 30.0
_LOOK_S = 5.0


class LookupClient:
    """Topic lookup through the nodes at `urls`. Use it with `async with`, in one event loop.

    `namespaces` are followed from the start, others from their first lookup. `listener` names the advertised listener
    of the brokers' addresses. `token` is `token:...` or `file:///path`; the file is read again when it changes.
    `ssl_context` has the trusted certificates and the client's own; None: the system's trust store, and no certificate.
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
        """Raises `ConfigurationError` or `InvalidNameError` for invalid arguments."""
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
        """`resolve(topic)`: the owner from memory; None: use `lookup`. Callable from any thread. Raises
        `InvalidNameError`.
        """
        self.refused = self._owners.refused
        """`refused(topic, broker_id)`: report that this broker does not serve the topic. Callable from any thread."""

    async def __aenter__(self) -> Self:
        """Return once the `namespaces` are known. Raises `NodesUnavailableError` if no node answers, and the nodes'
        error if this client may not look topics up.
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
        """Return the owner of the topic; a node assigns one if there is none.

        Raises `InvalidNameError`, `NamespaceNotFoundError`, `UnauthenticatedError` or `ForbiddenError` at once. After
        `timeout_s` it raises `NodesUnavailableError` if no node answers, else `NoOwnerYetError`.
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
            self._owners.expire(loop_time_s())


_Result = TypeVar("_Result")


class BlockingLookupClient:
    """Blocking wrapper of a `LookupClient` that no loop uses, for any number of threads. Use it with `with`."""

    def __init__(self, client: LookupClient) -> None:
        self._client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lookup client", daemon=True)
        self.resolve = client.resolve
        self.refused = client.refused

    def __enter__(self) -> Self:
        """Enter the client. Raises as `LookupClient.__aenter__` does."""
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
        """Run `LookupClient.lookup` and block the calling thread."""
        owner = self.resolve(topic)
        return owner if owner is not None else self._run(self._client.lookup(topic, timeout_s))

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:  # includes KeyboardInterrupt in the waiting thread
            running.cancel()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
