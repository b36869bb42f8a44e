"""Property test of contract and hosting together: the clock may jump, and calls may be cancelled, at every await."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.hosting import Clock, Held, settled

from loadmanager.broker import Closing, Hosting, Topic
from loadmanager.broker.agent_client import Named

TOPICS = ("persistent://t/ns/one", "persistent://t/ns/other")
BUNDLE = "t/ns/0x00000000_0xffffffff"

Pause = tuple[float, str]
"""One await of a callback: how far the clock jumps there, and what the callback does if it is cancelled there."""


class JumpingBroker(Held):
    """A broker whose callbacks take the drawn pauses, and which checks each call against what it holds itself."""

    def __init__(self, pauses: Sequence[Pause]) -> None:
        self.loaded: set[str] = set()
        self.begun: set[str] = set()
        """Topics that are loaded, or partly loaded."""
        self.pauses = list(pauses)
        self._running: Counter[str] = Counter()
        super().__init__(self._make)

    def _make(self, clock: Clock) -> Hosting:
        return Hosting("http://127.0.0.1:1", port=None, on_open=self._open, on_close=self._close, clock=clock)

    async def _open(self, topic: Topic) -> None:
        assert topic.name not in self.begun
        self.begun.add(topic.name)
        try:
            await self._work_on(topic.name)
        except OSError:
            self.begun.remove(topic.name)
            raise
        self.loaded.add(topic.name)

    async def _close(self, topic: Topic, closing: Closing) -> None:
        assert self.hosting.serving(topic.name) is None
        assert topic.name in self.begun, f"it is put away already, and is to be once more: {closing.reason}"
        await self._work_on(topic.name)
        self.begun.remove(topic.name)
        self.loaded.discard(topic.name)

    async def _work_on(self, name: str) -> None:
        assert not self._running[name], "two callbacks of one topic run at a time"
        self._running[name] += 1
        try:
            while self.pauses and await self._pause(*self.pauses.pop()):
                pass
        finally:
            self._running[name] -= 1

    async def _pause(self, jump_s: float, if_cancelled: str) -> bool:
        """Pause once; return True if the callback is to pause again."""
        self.clock.now_s += jump_s
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if if_cancelled == "swallow":  # as `wait_for` of Python 3.11 does where the result comes at the same time
                return False
            raise
        if if_cancelled == "fail":
            raise OSError("disk full")
        return if_cancelled != "end"


class Run:
    """One broker, and the calls on it that are under way."""

    def __init__(self, pauses: Sequence[Pause]) -> None:
        self.broker = JumpingBroker(pauses)
        self.calls: list[asyncio.Task[Any]] = []

    async def do(self, what: str, topic: str, number: int) -> None:
        hosting = self.broker.hosting
        match what:
            case "open":
                self.calls.append(asyncio.create_task(hosting._keep(topic)))
            case "close":
                self.calls.append(asyncio.create_task(hosting.close(topic)))
            case "unload":
                self.unload(topic)
            case "unload both":
                self.unload(*TOPICS)
            case "cancel" if self.calls:
                self.calls[number % len(self.calls)].cancel()
            case "lease":
                self.broker.lease(7 + (number == 0))
            case "jump":
                self.broker.clock.now_s += number
            case "time":
                self.broker.pass_time(number)
        for _ in range(number):
            await asyncio.sleep(0)
        self.check()

    def unload(self, *topics: str) -> asyncio.Task[None]:
        call = asyncio.create_task(self.broker.hosting._unload(Named(BUNDLE, topics, None)))
        self.calls.append(call)
        return call

    def check(self) -> None:
        for name in TOPICS:
            if self.broker.hosting.serving(name) is not None:
                assert name in self.broker.loaded

    async def recover(self) -> None:
        """With callbacks that succeed, and a lease, every call ends, and every topic can be served again."""
        self.broker.pauses.clear()
        for _ in range(3):  # what could not be closed is closed again after a second
            self.broker.lease()
            self.broker.pass_time(1.1)
            await settled()
        self.unload(*TOPICS)
        await settled()
        assert [call for call in self.calls if not call.done()] == []
        assert self.broker.hosting.topics == []
        assert self.broker.begun == set()
        self.broker.lease()
        self.calls = [asyncio.create_task(self.broker.hosting._keep(name)) for name in TOPICS]
        await settled()
        assert [call.done() and not call.exception() for call in self.calls] == [True, True]
        self.check()
        assert self.broker.loaded == set(TOPICS)


jumps_s = st.sampled_from([0.0, 0.0, 0.1, 1.1, 3.5])
pauses = st.lists(st.tuples(jumps_s, st.sampled_from(["end", "go on", "go on", "swallow", "fail"])), max_size=30)
operations = st.tuples(
    st.sampled_from(["open", "open", "lease", "unload", "unload both", "close", "cancel", "jump", "time", "turn"]),
    st.sampled_from(TOPICS),
    st.integers(0, 4),
)


@given(pauses, st.lists(operations, max_size=20))
def test_broker_recovers_from_clock_jumps_and_cancellations(
    pauses: list[Pause], operations: list[tuple[str, str, int]]
) -> None:
    async def run() -> None:
        one = Run(pauses)
        async with one.broker.hosting:
            one.broker.lease()
            for operation in operations:
                await one.do(*operation)
            await one.recover()
        assert one.broker.begun == set()

    with errors_logged() as errors:
        asyncio.run(run())
    assert [error for error in errors if not isinstance(error, (OSError, asyncio.CancelledError))] == []


@contextlib.contextmanager
def errors_logged() -> Iterator[list[BaseException]]:
    """The errors that the kit logs."""
    errors: list[BaseException] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1]:
                errors.append(record.exc_info[1])

    log, handler = logging.getLogger("loadmanager.broker"), Keep()
    was, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield errors
    finally:
        log.removeHandler(handler)
        log.propagate = was
