"""Client process of the demo: publishes to many topics, and records how long batches waited for a new owner.

Run as `python -m loadmanager.dev.demo.demo_client CONFIG`. Topics are looked up with `loadmanager.client`. If the owner
refuses a batch, the client looks the topic up and sends the batch again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter

from loadmanager.client import LookupClient
from loadmanager.dev.demo.demo_settings import DemoWorkload
from loadmanager.dev.demo.evidence import DemoJournal, find_json
from loadmanager.errors import LoadManagerError
from loadmanager.net.http_client import HttpClient
from loadmanager.util import clock
from loadmanager.util.atomic_write import write_ready_file

SETTLE_TIMEOUT_S = 40.0
"""Timeout for finding the owner of a topic at the end: far longer than any fault, also on a busy machine."""

_PUBLISH_TIMEOUT_S = 3.0
_LOOKUP_TIMEOUT_S = 15.0
_RETRY_PAUSE_S = 0.02
_MAX_BATCH = 512
_BATCH_AIM = 40
_TICK_BOUNDS_S = (0.1, 1.0)
_HOT_SPOT_INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class ClientServices:
    """Shared services of all topic clients of the process."""

    lookups: LookupClient
    http: HttpClient
    journal: DemoJournal
    payload: bytes
    message_bytes: int


class TopicClient:
    """Publisher of one topic. `owner` is the broker process that took the last batch; None after a failure."""

    def __init__(self, topic: str, rate: Callable[[], float], services: ClientServices) -> None:
        self.is_stopping = False
        self._topic = topic
        self._rate = rate
        self._services = services
        self._messages = 0
        self._last_owner: str | None = None
        self._owner: str | None = None
        self._sent_at_s = self._taken_at_s = 0.0

    async def run(self) -> None:
        """Publish at the topic's rate. When stopped, continue until one more batch is taken."""
        due, then_s = 1.0, clock.now_s()
        while True:
            stopping = self.is_stopping
            messages = max(1, min(int(due), _MAX_BATCH))
            await self._publish(messages)
            if stopping:
                return
            shortest_s, longest_s = _TICK_BOUNDS_S
            rate = self._rate()
            await asyncio.sleep(min(max(_BATCH_AIM / max(rate, 1e-9), shortest_s), longest_s))
            now_s = clock.now_s()
            due = min(due - messages + rate * (now_s - then_s), max(rate, 1.0) + _BATCH_AIM)
            then_s = now_s

    async def _publish(self, messages: int) -> None:
        """Send a batch until an owner takes it. Record the wait if the owner is new, or if the first attempt failed."""
        from_s = clock.now_s()
        failed = False
        self._sent_at_s = from_s
        while (owner := await self._send(messages)) is None:
            failed, self._owner = True, None
            await asyncio.sleep(_RETRY_PAUSE_S)
            self._sent_at_s = clock.now_s()
        self._messages += messages
        self._taken_at_s = clock.now_s()
        before, self._last_owner, self._owner = self._last_owner, owner, owner
        if before is not None and (failed or owner != before):
            gap = {"event": "gap", "topic": self._topic, "from_s": from_s, "to_s": self._taken_at_s}
            self._services.journal.append({**gap, "from_instance": before, "to_instance": owner})

    async def _send(self, messages: int) -> str | None:
        """Return the broker process that took the batch; None if none did."""
        try:
            owner = await self._services.lookups.lookup(self._topic, _LOOKUP_TIMEOUT_S)
        except LoadManagerError:
            return None
        with contextlib.suppress(LoadManagerError):
            answer = await self._services.http.call(
                "POST",
                f"{owner.broker_url}/publish",
                _PUBLISH_TIMEOUT_S,
                params={"topic": self._topic, "messages": messages},
                data=self._services.payload[: messages * self._services.message_bytes],
            )
            if answer.status == web.HTTPOk.status_code:
                return answer.body.decode()
        self._services.lookups.refused(self._topic, owner.broker_id)
        return None

    def account(self) -> dict[str, object]:
        """Return the final record of the topic: its messages, and the owner and the times of the last batch."""
        record = {"event": "account", "topic": self._topic, "messages": self._messages, "owner": self._owner}
        return {**record, "sent_at_s": self._sent_at_s, "taken_at_s": self._taken_at_s}


@dataclass(frozen=True, slots=True)
class ClientConfig:
    index: int
    processes: int
    node_urls: list[str]
    workload: DemoWorkload
    hot_spot_file: Path
    journal_file: Path
    ready_file: Path


CLIENT_CONFIG = TypeAdapter(ClientConfig)
"""Parser of a client process's configuration file."""


class ClientProcess:
    """All topics of one process, and their final accounts."""

    def __init__(self, config: ClientConfig, lookups: LookupClient, http: HttpClient, journal: DemoJournal) -> None:
        self._config = config
        self._journal = journal
        workload = config.workload
        self._rates = workload.rates()
        payload = os.urandom(_MAX_BATCH * workload.message_bytes)
        services = ClientServices(lookups, http, journal, payload, workload.message_bytes)
        self._topics = [
            TopicClient(name, self._rate_of(i), services)
            for i, name in enumerate(workload.topic_names())
            if i % config.processes == config.index
        ]

    async def run(self, stopped: asyncio.Event) -> None:
        """Publish until `stopped`. Then have each topic find its owner once more, and write the accounts."""
        publishing = [asyncio.create_task(topic.run()) for topic in self._topics]
        tasks = [*publishing, asyncio.create_task(self._follow_hot_spot())]
        write_ready_file(self._config.ready_file, {})
        await _first_of(asyncio.create_task(stopped.wait()), *tasks)
        for topic in self._topics:
            topic.is_stopping = True
        await asyncio.wait(publishing, timeout=SETTLE_TIMEOUT_S)
        for topic in self._topics:
            self._journal.append(topic.account())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _rate_of(self, index: int) -> Callable[[], float]:
        return lambda: self._rates[index]

    async def _follow_hot_spot(self) -> None:
        hot = None
        while True:
            if (now := tuple(find_json(self._config.hot_spot_file) or ())) != hot:
                hot, self._rates = now, self._config.workload.rates(now)
            await asyncio.sleep(_HOT_SPOT_INTERVAL_S)


async def run(config: ClientConfig) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    with DemoJournal(config.journal_file) as journal:
        async with LookupClient(config.node_urls) as lookups, HttpClient() as http:
            await ClientProcess(config, lookups, http, journal).run(stopped)


async def _first_of(awaited: asyncio.Task[Any], *others: asyncio.Task[Any]) -> None:
    """Wait for `awaited`, or raise the error of the first task that fails."""
    done, _ = await asyncio.wait((awaited, *others), return_when=asyncio.FIRST_COMPLETED)
    awaited.cancel()
    for task in done:
        task.result()


if __name__ == "__main__":
    asyncio.run(run(CLIENT_CONFIG.validate_json(Path(sys.argv[1]).read_bytes())))
