"""Broker under test: HTTP client in the role of its agent, and control of its process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import psutil
from yarl import URL

from loadmanager.broker.conformance.rule_verdicts import BrokenError, EventLog, LateError, UnsettledError, short
from loadmanager.broker.conformance.scripted_agent import BUNDLE
from loadmanager.errors import ConfigurationError, InvalidRecordError
from loadmanager.net.broker_client import UNLOAD_TIMEOUT_S, BrokerClient
from loadmanager.net.http_client import HttpAnswer, HttpClient, PeerUnavailableError
from loadmanager.net.liveness import listens_at
from loadmanager.wire.http_bodies import UNKNOWN, BrokerStats

_REPEAT_S = 0.2


@dataclass(slots=True)
class BrokerUnderTest:
    """Client of the broker under test. `fault` describes the first impossible statistics."""

    url: str
    http: HttpClient
    event_log: EventLog
    timeout_s: float
    fault: str = ""
    _last: tuple[BrokerStats | None, float] = None, 0.0

    async def stats(self) -> BrokerStats:
        """Read statistics; `LateError` without an answer, `BrokenError` for impossible figures."""
        sent_s = time.monotonic()
        try:
            stats = await BrokerClient(self.http, self.url).stats()
        except PeerUnavailableError as error:
            self.event_log.note(f"statistics: {error}")
            raise LateError(f"no statistics: {error}") from None
        except InvalidRecordError as error:
            self.event_log.note(f"statistics: {error}")
            self.fault = self.fault or str(error)
            raise BrokenError(f"statistics that cannot be true: {error}") from None
        self._compare(stats, sent_s)
        return stats

    async def names(self, topic: str) -> bool:
        """Tell if the statistics name the topic as open."""
        stats = await self.stats()
        return any(each.topic == topic for each in stats.topics)

    async def counted(self, topic: str) -> tuple[int, int, int, int]:
        """Messages and bytes in and out since the topic was opened; zeros if it is not open."""
        for each in (await self.stats()).topics:
            if each.topic == topic:
                return each.messages_in, each.messages_out, each.bytes_in, each.bytes_out
        return 0, 0, 0, 0

    async def messages_in(self, topic: str) -> int:
        return (await self.counted(topic))[0]

    async def unload(self, *topics: str) -> float:
        """Send the unload until the broker answers 204, as an agent does; return the time of that answer (monotonic).
        Raises `LateError` after the usual time limit.
        """
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            try:
                return await self.unload_once(*topics)
            except (LateError, BrokenError) as error:
                if time.monotonic() >= deadline_s:
                    raise LateError(f"no 204 for {self.timeout_s:g} s: {error}") from None
            await asyncio.sleep(_REPEAT_S)

    async def unload_once(self, *topics: str, **more: object) -> float:
        """Send an unload, with `more` fields than an agent sends, and return the time of the 204 (monotonic). Raises
        `LateError` for no answer, `BrokenError` for another one.
        """
        answer = await self._post("unload", topics, more)
        if answer.status != HTTPStatus.NO_CONTENT:
            raise BrokenError(f"an unload: {answer.shown()}, expected 204")
        return time.monotonic()

    async def prepare(self, *topics: str) -> bool:
        """Send a preparation, and tell if the broker supports it. Raises `LateError` for no answer, `BrokenError` for
        an invalid one.
        """
        answer = await self._post("prepare", topics, {})
        if answer.status in UNKNOWN:
            return False
        if answer.status != HTTPStatus.NO_CONTENT:
            raise BrokenError(f"to prepare: {answer.shown()}, expected 204, or 501 of a broker that does not know how")
        return True

    async def _post(self, what: str, topics: tuple[str, ...], more: Mapping[str, object]) -> HttpAnswer:
        named = f"{what} of {', '.join(map(short, topics))}"
        self.event_log.note(f"{named} is sent")
        try:
            answer = await self.http.call(
                "POST",
                f"{self.url}/loadmanager/v1/{what}",
                UNLOAD_TIMEOUT_S,
                json={"bundle": BUNDLE, "topics": list(topics), **more},
            )
        except PeerUnavailableError as error:
            self.event_log.note(f"{named}: {error}")
            raise LateError(f"{named}: {error}") from None
        self.event_log.note(f"{named} is answered with {answer.status}")
        return answer

    def _compare(self, stats: BrokerStats, sent_s: float) -> None:
        """Compare `monotonicS` with the last statistics that arrived before this request was sent."""
        last, received_s = self._last
        if (
            last is not None
            and received_s <= sent_s
            and last.process == stats.process
            and stats.monotonic_s < last.monotonic_s
        ):
            self.fault = self.fault or f"monotonicS went back from {last.monotonic_s} to {stats.monotonic_s}"
        self._last = stats, time.monotonic()


_LOOK_AGAIN_S = 0.01


class ProcessUnderTest(Protocol):
    """Process of the broker under test: pause, resume and end."""

    def stop(self) -> None:
        """Suspend the process until `go_on`. `UnsettledError` if that fails."""
        ...

    def go_on(self) -> None: ...

    def end(self) -> None:
        """Request termination (SIGTERM)."""
        ...

    def has_ended(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process on this machine."""

    process: psutil.Process

    def stop(self) -> None:
        try:
            self.process.suspend()
            while self.process.status() != psutil.STATUS_STOPPED:
                time.sleep(_LOOK_AGAIN_S)
        except psutil.Error as error:
            raise UnsettledError(f"the broker's process could not be stopped: {error}") from None

    def go_on(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.resume()

    def end(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.terminate()

    def has_ended(self) -> bool:
        return not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE


def find_process(pid: int, url: str) -> LocalProcess | None:
    """Return the process with this pid if it listens at the URL. In another container or on another host, the pid
    belongs to an unrelated process, which must not be stopped.
    """
    if pid == os.getpid() or not listens_at(pid, URL(url).port):
        return None
    with contextlib.suppress(psutil.NoSuchProcess):
        return LocalProcess(psutil.Process(pid))
    return None


def process_of(pid: int) -> LocalProcess:
    """Return the process with this pid; `ConfigurationError` if there is none."""
    try:
        return LocalProcess(psutil.Process(pid))
    except psutil.Error as error:
        raise ConfigurationError(f"--pid {pid}: {error}") from None


@contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the broker with its output on our standard error; at the end kill it with its children."""
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)  # noqa: S603 - as told
    except OSError as error:
        raise ConfigurationError(f"--start {words[0]!r}: {error.strerror}") from None
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
