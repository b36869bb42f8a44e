"""Lookup requests to nodes: one at a time per bundle, shared by all callers, with back-off."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from loadmanager.client.bundle_places import Place
from loadmanager.client.namespace_watch import Watches, pause_s
from loadmanager.client.node_client import Nodes, NotNow
from loadmanager.client.owner_map import OwnerMap
from loadmanager.client.push_events import Owner
from loadmanager.core.domain.names import TopicName
from loadmanager.errors import LoadManagerError, NamespaceNotFoundError, NodesUnavailableError, NoOwnerYetError

_FIRST_NEWS_S = 1.0
"""A node pushes a namespace within moments; after so long it is asked."""
_MOVED_S = 1.0
"""The next owner of a bundle that moves is pushed; after so long a node is asked."""
_PAUSES_S = (0.05, 1.0)
"""Between questions that brought nothing, at first and at last."""
_LONGEST_PAUSE_S = 5.0
"""Where a node says that it will take long."""


@dataclass(eq=False, slots=True)
class _Question:
    """Pending lookup of `topic`, and so of all topics of its bundle, if that is known. The result None means: ask
    again.
    """

    topic: str
    key: str | Place
    task: asyncio.Task[Owner | None] = field(init=False)
    waiting: int = 0
    trouble: LoadManagerError | None = None

    def answers(self, topic: str) -> bool:
        return topic == self.topic or isinstance(self.key, Place)


class OwnerQueries:
    """Those that are open; `close` ends them."""

    def __init__(self, owners: OwnerMap, nodes: Nodes, watches: Watches, chance: random.Random) -> None:
        self._owners = owners
        self._nodes = nodes
        self._watches = watches
        self._chance = chance
        self._open: dict[str | Place, _Question] = {}

    async def ask(self, topic: str, timeout_s: float) -> Owner:
        """Raises as `LookupClient.lookup` does."""
        deadline_s = _now_s() + timeout_s
        while (owner := self._owners.resolve(topic)) is None:
            question = self._question_of(topic)
            if not await self._wait(question, deadline_s - _now_s()):
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
        """All topics of a bundle have one. In a namespace that is not followed yet the first topic asks for all."""
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
        """Tell if the lookup ended within the timeout. It is cancelled when nobody waits for it any more."""
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
        topic, began_s, failures, not_before_s = question.topic, _now_s(), 0, 0.0
        while (owner := self._owners.resolve(topic)) is None:
            wait_s = max(not_before_s, began_s + self._held_back_s(topic, namespace)) - _now_s()
            if wait_s > 0:
                await asyncio.wait({self._watches.update}, timeout=wait_s)
                continue
            try:
                answer = await self._ask_unless_pushed(topic)
            except NamespaceNotFoundError:
                self._watches.forget(namespace)
                raise
            except NodesUnavailableError as error:
                known = self._owners.last_known(self._owners.place_of(topic), _now_s())
                if known is not None:
                    return known
                answer, question.trouble = NotNow(str(error)), error
            else:
                self._watches.follow(namespace)
                if isinstance(answer, Owner):
                    return answer
                question.trouble = NoOwnerYetError(f"topic {topic}: {answer.reason}")
                if question.key == namespace:
                    return None  # its other topics may have owners
            failures += 1
            shortest_s, longest_s = _PAUSES_S
            longest_s = min(max(longest_s, answer.passes_in_s), _LONGEST_PAUSE_S)
            not_before_s = _now_s() + pause_s(self._chance, failures, shortest_s, longest_s)
        return owner

    async def _ask_unless_pushed(self, topic: str) -> Owner | NotNow:
        """Return the answer of a node, or what is pushed meanwhile. Raises as `Nodes.lookup` does."""
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
            self._owners.answered(place, pushed, answer, _now_s())
        return answer

    def _held_back_s(self, topic: str, namespace: str) -> float:
        """So long no node is asked: for what one is about to push, or since the last answers were of no use."""
        place = self._owners.place_of(topic)
        if place.is_moving:
            return _MOVED_S
        if self._watches.expects(namespace):
            return _FIRST_NEWS_S
        return pause_s(self._chance, place.refusals - 1, *_PAUSES_S) if place.refusals > 1 else 0.0


def _now_s() -> float:
    return asyncio.get_running_loop().time()
