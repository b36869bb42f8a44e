"""Watch streams of namespaces, with failover between nodes; pushed events update the owner map."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from loadmanager.client.node_client import (
    PROTOCOL,
    WATCH_PATH,
    BusyError,
    NodeFailedError,
    Nodes,
    NoWatchError,
    unavailable,
)
from loadmanager.client.owner_map import OwnerMap
from loadmanager.client.push_events import EventReader, StreamEvent, parse_object
from loadmanager.errors import ForbiddenError, InvalidRecordError, LoadManagerError, UnauthenticatedError

log = logging.getLogger(__name__)

MOST_NAMESPACES = 64
MOST_CHARACTERS = 3_000
"""Limits of one stream: the number of its namespaces and the length of their names, which must fit into a URL."""
PAUSES_S = (1.0, 30.0)
"""Back-off after a stream has ended or all nodes have failed: bounds of the longest pause, at first and at last."""
WITHOUT_WATCH_S = (30.0, 60.0)
"""Bounds of the pause before nodes are asked for a watch again. Meanwhile each topic is looked up."""
_LASTED_S = 10.0
"""A stream of this length resets the back-off."""


class NamespaceWatch:
    """One watch stream. Calls `on_news` after each change of the map and after each failure."""

    def __init__(self, owners: OwnerMap, nodes: Nodes, on_news: Callable[[], None], chance: random.Random) -> None:
        self.namespaces: dict[str, None] = {}
        self.trouble: LoadManagerError | None = None
        """Reason why nothing is pushed; None while the stream is up, and before all nodes were tried."""
        self.is_answered = False
        """True if nodes answer lookups nevertheless."""
        self._owners = owners
        self._nodes = nodes
        self._on_news = on_news
        self._chance = chance
        self._failures = 0
        """Consecutive failures: short streams, and rounds in which all nodes failed."""
        self._urls = list(nodes.urls)
        self._is_live = False
        self._task: asyncio.Task[None] | None = None

    def follow(self, namespace: str) -> None:
        """Add a namespace. The stream restarts; the other namespaces resume at their positions."""
        self.namespaces[namespace] = None
        self.cancel()
        self.trouble = None
        self._task = asyncio.create_task(self._run(), name="watch of owners")

    def has_room_for(self, namespace: str) -> bool:
        characters = sum(map(len, self.namespaces)) + len(namespace)
        return len(self.namespaces) < MOST_NAMESPACES and characters <= MOST_CHARACTERS

    def forget(self, namespace: str) -> None:
        """Remove a namespace. The current stream may still contain it."""
        del self.namespaces[namespace]
        self._owners.forget(namespace)

    def cancel(self) -> asyncio.Task[None] | None:
        """Cancel the stream; return its task, if there is one."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while self.namespaces:
            wait_s = await self._follow_any()
            await asyncio.sleep(wait_s)

    async def _follow_any(self) -> float:
        """Follow the first node that pushes until its stream ends; return the pause before the next one."""
        failures: list[LoadManagerError] = []
        for url in list(self._urls):
            self._is_live, began_s = False, loop_time_s()
            try:
                await self._follow(url)
            except (ForbiddenError, UnauthenticatedError, NodeFailedError) as error:
                failures.append(error)
            self._urls.append(self._urls.pop(0))
            if self._is_live:
                log.info("%s stopped pushing owners: %s", url, failures[-1] if failures else "the stream has ended")
                self._on_ended(failures)
                if loop_time_s() - began_s > _LASTED_S:
                    self._failures = 0
                return self._pause_s()
        return self._give_up(failures)

    def _on_ended(self, failures: list[LoadManagerError]) -> None:
        """Fall back to single lookups if the node's version is not supported. After other errors another node will push
        soon.
        """
        if failures and isinstance(failures[-1], NoWatchError):
            self.trouble, self.is_answered = failures[-1], True
            self._on_news()

    def _give_up(self, failures: list[LoadManagerError]) -> float:
        """Handle the failure of all nodes. If one of them does not support watches, topics are looked up one by one."""
        reasons = [str(each) for each in failures]
        refusal = next((each for each in failures if not isinstance(each, NodeFailedError)), None)
        is_unknown = refusal is None and any(isinstance(each, NoWatchError) for each in failures)
        self.is_answered = refusal is None and any(isinstance(each, NoWatchError | BusyError) for each in failures)
        trouble = refusal or unavailable(reasons)
        if self.trouble is None or str(trouble) != str(self.trouble):
            then = "topics are looked up one by one" if is_unknown else "known owners stay in use"
            log.warning("no node pushes owners, and %s: %s", then, "; ".join(reasons))
        self.trouble = trouble
        for name in self.namespaces if is_unknown else ():
            self._owners.forget(name)
        self._on_news()
        return self._chance.uniform(*WITHOUT_WATCH_S) if is_unknown else self._pause_s()

    def _pause_s(self) -> float:
        """Random fraction of the full pause, so that the clients of a failed node spread over it."""
        self._failures += 1
        return pause_s(self._chance, self._failures, *PAUSES_S, at_least=0.0)

    async def _follow(self, url: str) -> None:
        names = list(self.namespaces)
        for name in names:
            self._owners.follow(name, loop_time_s())
        reader = EventReader()
        async with self._nodes.watching(url, names, self._owners.marks(names)) as stream:
            async for chunk in stream.iter_any():
                self._owners.heard(names, loop_time_s())
                try:
                    for event in reader.feed(chunk):
                        self._take(event, url)
                except InvalidRecordError as error:
                    self._owners.drop_marks(names)
                    raise NoWatchError(f"{url}: {error}") from None

    def _take(self, event: StreamEvent, url: str) -> None:
        if event.name == "hello":
            protocol = parse_object(event.data, "hello").get("protocol")
            if protocol != PROTOCOL:
                raise InvalidRecordError(f"{WATCH_PATH} speaks protocol {protocol!r}, and this client {PROTOCOL}")
            log.info("%s pushes owners", url)
            self._is_live, self.trouble = True, None
        self._owners.take(event, loop_time_s())
        self._on_news()


class Watches:
    """Watch streams of all followed namespaces, several per stream. `close` ends them."""

    def __init__(self, owners: OwnerMap, nodes: Nodes, chance: random.Random) -> None:
        self.update: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completed, and replaced, after each push and each failure."""
        self._owners = owners
        self._nodes = nodes
        self._chance = chance
        self._all: list[NamespaceWatch] = []
        self._of: dict[str, NamespaceWatch] = {}

    def has(self, namespace: str) -> bool:
        return namespace in self._of

    def follow(self, namespace: str) -> None:
        if namespace in self._of:
            return
        watch = next((each for each in self._all if each.has_room_for(namespace)), None)
        if watch is None:
            watch = NamespaceWatch(self._owners, self._nodes, self._tell, self._chance)
            self._all.append(watch)
        self._of[namespace] = watch
        watch.follow(namespace)

    def forget(self, namespace: str) -> None:
        watch = self._of.pop(namespace, None)
        if watch is not None:
            watch.forget(namespace)

    def expects(self, namespace: str) -> bool:
        """Tell if a node will soon push the snapshot of the namespace."""
        watch = self._of.get(namespace)
        return watch is not None and watch.trouble is None and not self._owners.is_settled(namespace)

    async def begun(self) -> None:
        """Return once each namespace was pushed or has failed; raises the failure if nodes answer no lookups either."""
        while any(self.expects(name) for name in self._of):
            await asyncio.wait({self.update})
        for watch in self._all:
            if watch.trouble is not None and not watch.is_answered:
                raise watch.trouble

    async def close(self) -> None:
        tasks = [task for each in self._all if (task := each.cancel()) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _tell(self) -> None:
        self.update.set_result(None)
        self.update = asyncio.get_running_loop().create_future()


def loop_time_s() -> float:
    """Return the time of the event loop."""
    return asyncio.get_running_loop().time()


def pause_s(
    chance: random.Random, failures: int, shortest_s: float, longest_s: float, *, at_least: float = 0.5
) -> float:
    """Return the back-off after `failures` failures in a row: `shortest_s`, doubled each time up to `longest_s`, times
    a random fraction between `at_least` and 1.
    """
    meant_s = min(shortest_s * 2.0 ** min(failures - 1, 30), longest_s)
    return meant_s * chance.uniform(at_least, 1.0)
