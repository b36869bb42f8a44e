"""Host of a broker's topics under the contract, for authors of brokers: see docs/broker-contract.md.

`Hosting` asks for leases, asks the agent before it opens a topic, answers the agent, and tells which topics may be
served now. `loadmanager.broker.contract` decides each step; this module executes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from loadmanager.broker.agent_client import AgentClient, Named, NoAnswerError, NotDoneError, make_routes
from loadmanager.broker.contract import (
    Action,
    AskLease,
    AskOwnership,
    Close,
    CloseReason,
    Confirm,
    Contract,
    ContractSignal,
    Deny,
    Event,
    Leased,
    Leave,
    NotClosed,
    NotOpened,
    Open,
    Opened,
    OwnershipAnswered,
    OwnershipUnanswered,
    Refusal,
    Refuse,
    Serve,
    TopicClosed,
    TopicWanted,
    UnloadWanted,
)
from loadmanager.broker.topic import Closing, Health, RefusedError, Topic
from loadmanager.core.domain.names import TopicName
from loadmanager.util.clock import now_ms, now_s

log = logging.getLogger(__name__)

OnOpen = Callable[[Topic], Awaitable[None]]
OnClose = Callable[[Topic, Closing], Awaitable[None]]
OnPrepare = Callable[[str, Sequence[str]], Awaitable[None]]

PREPARED_S = 30.0
"""Time to expect an announced topic."""

_WAIT_MS = 2_000
"""Maximum delay of the agent's "no" for an announced topic."""

_SHUTDOWN_S = 5.0


class Hosting:
    """The topics that one broker process serves. Use it with `async with`; leaving it closes everything.

    `agent` is the address at which the agent serves its broker: `http://127.0.0.1:9091` (agentLocalPort), `unix:/path`
    (brokerSocketPath), or a function that returns it, called for each question. The agent's brokerUrl is `url`: `port`
    is served on `host`, and 0 lets the kernel choose. With None, add `routes()` to your own aiohttp application.

    `on_open(topic)` loads a topic; its error is passed to the callers of `open`. `on_close(topic, closing)` disconnects
    the clients, saves what must be kept, and returns once nothing of the topic is held: another broker may then serve
    it. If the lease lapses meanwhile, the call is cancelled and repeated with LAPSED. It is repeated after an error,
    but never after it has returned.

    `on_prepare(bundle, topics)` may prepare for a bundle, in 2 s. `health()` is called for each statistics request. Use
    all of it in one event loop.
    """

    def __init__(
        self,
        agent: str | Callable[[], str],
        *,
        port: int | None = 0,
        host: str = "127.0.0.1",
        on_open: OnOpen | None = None,
        on_close: OnClose | None = None,
        on_prepare: OnPrepare | None = None,
        health: Callable[[], Health] | None = None,
        version: str = "",
        clock: Callable[[], float] = now_s,
    ) -> None:
        self._agent = AgentClient(agent)
        self._host, self._port = host, port
        self._on_open = on_open
        self._on_close = on_close
        self._on_prepare = on_prepare
        self._health = health
        self._version = version
        self._clock = clock
        self._started_ms = now_ms()
        self._contract = Contract()
        self._topics: dict[str, Topic] = {}
        self._work: dict[str, list[asyncio.Task[None]]] = {}
        """Tasks by topic: the last one is current, the earlier ones were cancelled."""
        self._begun: set[str] = set()
        """Topics whose `on_open` was called and whose `on_close` has not returned since."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._interest: Counter[str] = Counter()
        self._kept: set[str] = set()
        self._prepared: dict[str, float] = {}
        self._unloads: dict[int, asyncio.Future[str | None]] = {}
        self._last_unload = 0
        self._events: deque[Event] = deque()
        self._is_stepping = self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._changed = asyncio.Event()
        self._trouble: str | None = "the agent was not asked yet"
        self._runner: web.AppRunner | None = None

    # For the author of a broker

    @property
    def url(self) -> str:
        """URL of this broker for the agent: its brokerUrl."""
        assert self._runner is not None, "it serves no port"
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    @property
    def incarnation(self) -> int | None:
        """The incarnation of the broker's registration; None before the first lease."""
        return self._contract.incarnation

    @property
    def lease_until_s(self) -> float:
        """End of the lease on the given `clock`. Afterwards only open topics of available namespaces are served."""
        return self._contract.lease_until_s

    @property
    def has_lease(self) -> bool:
        return self._contract.has_lease(self._clock())

    @property
    def topics(self) -> list[Topic]:
        """All topics that are open, being opened or being closed."""
        return list(self._topics.values())

    @property
    def opening(self) -> list[str]:
        """Names of the topics with a pending ownership question."""
        return self._contract.opening

    def serving(self, name: str) -> Topic | None:
        """Return the topic if it may be served at this moment. Call it before each use of a topic."""
        if self._contract.serves(name, self._clock()):
            return self._topics[name]
        return None

    def open(self, name: str) -> Opening:
        """`await` the result, or use it with `async with`, to get the open topic.

        After `await` the topic stays open until `close`, or until the contract closes it. With `async with` it is
        closed when its last block ends. Raises `RefusedError` if it cannot be served here now, `ValueError` for an
        invalid name, and any error of `on_open`.
        """
        return Opening(self, name)

    async def close(self, name: str) -> None:
        """Close a topic that the broker no longer needs; it is closed on return."""
        self._kept.discard(name)
        self._step(Leave(name))
        while name in self._topics:
            await self._change()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes for the agent, for your own application on a port that only the agent can reach."""
        return make_routes(self._stats, self._unload, self._prepare)

    async def __aenter__(self) -> Self:
        if self._port is not None:
            app = web.Application()
            app.add_routes(self.routes())
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
            await self._runner.setup()
            await web.TCPSite(self._runner, self._host, self._port).start()
        self._step(ContractSignal.TIME)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step(ContractSignal.END)
        for name in list(self._waiting):
            self._fail(name, RefusedError(name, Refusal.ENDING))
        try:
            while self._topics:
                await self._change()
        finally:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._agent.close()
            if self._runner is not None:
                await self._runner.cleanup()

    # Opening

    async def _keep(self, name: str) -> Topic:
        with self._count_user(name):
            topic = await self._wait_until_open(name)
            self._kept.add(name)
            return topic

    @contextlib.asynccontextmanager
    async def _hold(self, name: str) -> AsyncIterator[Topic]:
        with self._count_user(name):
            yield await self._wait_until_open(name)

    @contextlib.contextmanager
    def _count_user(self, name: str) -> Iterator[None]:
        """Count the users of a topic; close it without users, unless it is kept."""
        TopicName.parse(name)
        self._interest[name] += 1
        try:
            yield
        finally:
            self._interest[name] -= 1
            if not self._interest[name]:
                del self._interest[name]
                self._close_unless_kept(name)

    def _close_unless_kept(self, name: str) -> None:
        if name in self._topics and name not in self._kept:
            self._step(Leave(name))

    async def _wait_until_open(self, name: str) -> Topic:
        while self._is_leaving(name):
            await self._change()
        if self._is_over:
            raise RefusedError(name, Refusal.ENDING)
        if self.serving(name) is None:
            waiting = self._waiting.get(name)
            if waiting is None:
                waiting = self._waiting[name] = asyncio.get_running_loop().create_future()
            self._step(TopicWanted(name))
            await asyncio.shield(waiting)
        # It may have been closed again since it was opened.
        topic = self.serving(name)
        if topic is None:
            raise RefusedError(name, Refusal.CLOSING)
        return topic

    def _is_leaving(self, name: str) -> bool:
        """Tell if the topic is being closed only because nobody used it."""
        topic = self._topics.get(name)
        return topic is not None and topic.closing is not None and topic.closing.reason is CloseReason.LEFT

    # Requests of the agent

    def _stats(self) -> dict[str, Any]:
        stats = {
            "pid": os.getpid(),
            "soleProcess": True,
            "version": self._version,
            "startTimestamp": self._started_ms,
            "monotonicS": self._clock(),
            "topics": [topic.as_json() for topic in self._topics.values()],
            "opening": self._contract.opening,
            "opened": self._contract.opened,
        }
        return stats if self._health is None else {**stats, "health": self._health().as_json()}

    async def _unload(self, named: Named) -> None:
        if self._is_over:
            if self._topics.keys() & set(named.topics):
                raise NotDoneError("the broker has ended without closing all of it")
            return
        self._last_unload += 1
        number = self._last_unload
        done = self._unloads[number] = asyncio.get_running_loop().create_future()
        self._step(UnloadWanted(number, named.bundle, named.topics, named.destination))
        why = await done
        if why is not None:
            raise NotDoneError(why)

    async def _prepare(self, named: Named) -> None:
        now_s = self._clock()
        self._prepared = {topic: until_s for topic, until_s in self._prepared.items() if until_s > now_s}
        self._prepared.update(dict.fromkeys(named.topics, now_s + PREPARED_S))
        if self._on_prepare is not None:
            try:
                await self._on_prepare(named.bundle, named.topics)
            except Exception as error:
                log.exception("on_prepare failed for %s", named.bundle)
                raise NotDoneError(_say(error)) from error

    # Steps of the contract

    def _step(self, event: Event) -> None:
        """Pass an event to the contract and execute its actions. Events that they cause are queued and handled next."""
        self._events.append(event)
        if self._is_stepping or self._is_over:
            return
        self._is_stepping = True
        try:
            while self._events:
                actions = self._contract.step(self._events.popleft(), self._clock())
                _note_lapse(actions)
                for action in actions:
                    self._do_surely(action)
        finally:
            self._is_stepping = False
            self._set_timer()

    def _do_surely(self, action: Action) -> None:
        """Execute an action; log its error, so that the following actions are still executed."""
        try:
            self._do(action)
        except Exception:
            log.exception("an action of the contract failed: %s", action)

    def _do(self, action: Action) -> None:
        match action:
            case AskLease(timeout_s):
                self._spawn(self._ask_lease(timeout_s))
            case AskOwnership(topic):
                self._spawn(self._ask_owner(topic))
            case Open():
                self._open_topic(action)
            case Serve(topic):
                self._on_served(topic)
            case Refuse(topic, refusal, owner, why):
                if refusal is Refusal.NO_LEASE:
                    why = self._trouble or ""
                self._fail(topic, RefusedError(topic, refusal, owner, why))
            case Close():
                self._close_topic(action)
            case Confirm(number):
                self._answer_unload(number, None)
            case Deny(number, why):
                self._answer_unload(number, why)

    def _answer_unload(self, number: int, why_not: str | None) -> None:
        answer = self._unloads.pop(number)
        if not answer.done():  # the agent may have disconnected
            answer.set_result(why_not)

    async def _ask_lease(self, timeout_s: float) -> None:
        event: Leased | ContractSignal = ContractSignal.UNLEASED
        try:
            event = await self._agent.lease(timeout_s)
            self._note_trouble(None)
        except NoAnswerError as error:
            self._note_trouble(str(error))
        finally:
            self._step(event)

    def _note_trouble(self, trouble: str | None) -> None:
        """Log a problem with the lease once, and its end."""
        if trouble != self._trouble:
            if trouble is None:
                log.info("the agent gives a lease")
            else:
                log.warning("no lease from the agent; only available namespaces need none: %s", trouble)
        self._trouble = trouble

    async def _ask_owner(self, topic: str) -> None:
        event: OwnershipAnswered | OwnershipUnanswered = OwnershipUnanswered(topic)
        wait_ms = _WAIT_MS if self._prepared.get(topic, -math.inf) > self._clock() else 0
        try:
            event = await self._agent.owner(topic, wait_ms)
        except NoAnswerError as error:
            event = OwnershipUnanswered(topic, str(error))
        finally:
            self._step(event)

    def _on_served(self, name: str) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting.set_result(None)
        if not self._interest[name]:
            self._close_unless_kept(name)

    def _fail(self, name: str, error: BaseException) -> None:
        """Pass the error to all callers that wait for the topic."""
        waiting = self._waiting.pop(name, None)
        if waiting is not None and self._interest[name]:
            waiting.set_exception(error)

    def _open_topic(self, wanted: Open) -> None:
        topic = self._topics[wanted.topic] = Topic(wanted.topic, wanted.incarnation)
        self._prepared.pop(wanted.topic, None)
        self._work[topic.name] = []
        if self._on_open is None:
            self._begun.add(topic.name)
            self._step(Opened(topic.name))
        else:
            self._work[topic.name].append(self._spawn(self._load(topic, self._on_open)))

    async def _load(self, topic: Topic, on_open: OnOpen) -> None:
        name = topic.name
        self._begun.add(name)
        try:
            await on_open(topic)
        except (Exception, asyncio.CancelledError) as error:
            is_given_up = not self._is_current(name)
            if is_given_up and isinstance(error, asyncio.CancelledError):
                raise
            log.exception("on_open failed for %s", name)
            self._begun.discard(name)  # nothing of it is held
            if not is_given_up:
                self._fail(name, error)
                self._forget(name)
                self._step(NotOpened(name))
        else:
            self._step(Opened(name))

    def _close_topic(self, wanted: Close) -> None:
        topic = self._topics[wanted.topic]
        unload = wanted.unload
        closing = Closing(wanted.reason)
        if unload is not None:
            closing = Closing(wanted.reason, unload.bundle, unload.destination, unload.number)
        topic.closing = closing
        given_up = [task for task in self._work[topic.name] if not task.done()]
        self._work[topic.name] = [*given_up, self._spawn(self._put_away(topic, closing, given_up))]

    async def _put_away(self, topic: Topic, closing: Closing, given_up: Sequence[asyncio.Task[None]]) -> None:
        """Close the topic after its earlier tasks have ended, unless one of them has closed it."""
        name = topic.name
        for task in given_up:
            if not task.cancelling():  # a second cancellation would interrupt its clean-up
                task.cancel()
        if given_up:
            await asyncio.wait(given_up)
        if self._on_close is not None and name in self._begun:
            try:
                await self._on_close(topic, closing)
            except (Exception, asyncio.CancelledError) as error:
                is_given_up = not self._is_current(name)
                if is_given_up and isinstance(error, asyncio.CancelledError):
                    raise
                log.exception("on_close failed for %s: it will be called again", name)
                if not is_given_up:
                    self._step(NotClosed(name, f"{name}: {_say(error)}"))
                return
            self._begun.discard(name)  # on_close has returned, even if it was superseded at that moment
        if self._is_current(name):
            self._forget(name)
            self._step(TopicClosed(name))

    def _is_current(self, name: str) -> bool:
        """Tell if the running task has not been superseded."""
        return self._work.get(name, [])[-1:] == [asyncio.current_task()]

    def _forget(self, name: str) -> None:
        del self._topics[name], self._work[name]
        self._begun.discard(name)
        self._kept.discard(name)
        self._changed.set()

    async def _change(self) -> None:
        """Wait until some topic is closed."""
        self._changed.clear()
        await self._changed.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _set_timer(self) -> None:
        wake_s = self._contract.wake_s
        if wake_s == self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = None, wake_s
        if wake_s < math.inf:
            delay_s = max(0.0, wake_s - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_s = None, math.inf
        self._step(ContractSignal.TIME)


class Opening:
    """A requested topic: await it, or enter it with `async with`."""

    def __init__(self, hosting: Hosting, name: str) -> None:
        self._hosting = hosting
        self._name = name

    def __await__(self) -> Generator[Any, None, Topic]:
        return self._hosting._keep(self._name).__await__()  # noqa: SLF001 - part of Hosting

    async def __aenter__(self) -> Topic:
        self._held = self._hosting._hold(self._name)  # noqa: SLF001 - as above
        return await self._held.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._held.__aexit__(kind, error, trace)


def _note_lapse(actions: list[Action]) -> None:
    lost = sum(isinstance(each, Close) and each.reason is CloseReason.LAPSED for each in actions)
    if lost:
        log.warning("the lease has lapsed, or is that of another incarnation; topics that are closed: %d", lost)


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
