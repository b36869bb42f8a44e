"""Probes: clients that try once to use a topic of the broker under test, in its own protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

import aiohttp
from yarl import URL

from loadmanager.errors import ConfigurationError, InvalidRecordError, describe_failure
from loadmanager.net.http_client import HttpClient, PeerUnavailableError

SERVED = "served"
_TOPIC = "{topic}"
_SHOWN_BYTES = 100
_LONGEST_S = 600.0
"""Upper limit; each caller has a shorter one."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of a client's attempt: an acknowledgement, a message or a refusal."""

    served: bool
    reply: str


class Probe(Protocol):
    async def try_once(self, topic: str) -> ProbeResult:
        """Run one client on the topic, from its request to the answer; may be cancelled."""
        ...

    async def close(self) -> None: ...


def probe_of(text: str) -> Probe:
    """Parse `[METHOD] http://...{topic}...`, `ws://...{topic}...`, or a command; `ConfigurationError` if invalid. Call
    it in a running event loop.
    """
    first, _, rest = text.strip().partition(" ")
    if first.isupper() and rest.startswith(("http://", "https://")):
        return HttpProbe(_with_topic(rest), first)
    if text.startswith(("http://", "https://")):
        return HttpProbe(_with_topic(text), "POST")
    if text.startswith(("ws://", "wss://")):
        return WebsocketProbe(_with_topic(text))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigurationError(f"--probe {text!r}: {error}") from None
    if not words:
        raise ConfigurationError("--probe: expected a URL or a command")
    return CommandProbe(words) if _TOPIC in text else LinesProbe(words)


def _with_topic(url: str) -> str:
    if _TOPIC not in url:
        raise ConfigurationError(f"--probe {url}: expected {_TOPIC} where the topic's name belongs")
    return url


class HttpProbe:
    """One request per attempt; a status of 2xx means served."""

    def __init__(self, url: str, method: str) -> None:
        self._url = url
        self._method = method
        self._http = HttpClient()

    async def try_once(self, topic: str) -> ProbeResult:
        url = self._url.replace(_TOPIC, quote(topic, safe=""))
        try:
            answer = await self._http.call(self._method, URL(url, encoded=True), _LONGEST_S, data=b"check")
        except PeerUnavailableError as error:
            return ProbeResult(served=False, reply=str(error))
        except InvalidRecordError as error:  # an endless answer
            return ProbeResult(served=True, reply=str(error))
        reply = f"{answer.status} {answer.body[:_SHOWN_BYTES].decode(errors='replace')}".rstrip()
        return ProbeResult(answer.status // 100 == 2, reply)  # noqa: PLR2004 - 2xx

    async def close(self) -> None:
        await self._http.close()


class WebsocketProbe:
    """Sends a unique text per attempt; served if a text that contains it comes back. The connection to a topic stays
    open for the next attempt.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = aiohttp.ClientSession()  # noqa: TID251 - HttpClient has no WebSocket
        self._idle: dict[str, list[aiohttp.ClientWebSocketResponse]] = {}
        self._numbers = itertools.count(1)

    async def try_once(self, topic: str) -> ProbeResult:
        text = f"check-broker says {next(self._numbers)}."
        idle = self._idle.setdefault(topic, [])
        connection = None
        try:
            connection = idle.pop() if idle else await self._connect(topic)
            await connection.send_str(text)
            while (message := await connection.receive()).type in {aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY}:
                if text in (message.data if isinstance(message.data, str) else message.data.decode(errors="replace")):
                    idle.append(connection)
                    return ProbeResult(served=True, reply="the text came back")
            return ProbeResult(
                served=False, reply=f"closed with {connection.close_code} {message.extra or ''}".rstrip()
            )
        except (aiohttp.ClientError, OSError) as error:
            return ProbeResult(served=False, reply=describe_failure(error))
        finally:
            if connection is not None and connection not in idle:
                await connection.close()

    async def close(self) -> None:
        await self._session.close()

    async def _connect(self, topic: str) -> aiohttp.ClientWebSocketResponse:
        timeout = aiohttp.ClientWSTimeout(ws_close=1.0)
        return await self._session.ws_connect(self._url.replace(_TOPIC, quote(topic, safe="")), timeout=timeout)


@dataclass
class CommandProbe:
    """One process per attempt, with the topic in its command line; served if it exits with 0."""

    words: list[str]

    async def try_once(self, topic: str) -> ProbeResult:
        async with client_process([word.replace(_TOPIC, topic) for word in self.words]) as process:
            output, _ = await process.communicate()
            last = output.decode(errors="replace").strip().rpartition("\n")[2]
            return ProbeResult(process.returncode == 0, last or f"exit status {process.returncode}")

    async def close(self) -> None:
        """Nothing to close: each process ends with its attempt."""


@dataclass
class LinesProbe:
    """Processes that read one topic per line, try it, and answer with one line: `served`, or the reason."""

    words: list[str]
    _idle: list[asyncio.subprocess.Process] = field(default_factory=list)
    _all: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def try_once(self, topic: str) -> ProbeResult:
        process = self._idle.pop() if self._idle else await self._all.enter_async_context(client_process(self.words))
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{topic}\n".encode())
            await process.stdin.drain()
            line = await process.stdout.readline()
        except ConnectionError:
            line = b""
        except BaseException:
            process.kill()  # its late answer would be taken for the next topic's
            raise
        if not line.endswith(b"\n"):
            raise ConfigurationError(f"--probe {self.words[0]!r}: it ended, expected a line for each topic")
        self._idle.append(process)
        reply = line.decode(errors="replace").strip()
        return ProbeResult(reply == SERVED, reply)

    async def close(self) -> None:
        await self._all.aclose()


@contextlib.asynccontextmanager
async def client_process(words: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A client process with pipes; it is killed if it does not exit by itself."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError as error:
        raise ConfigurationError(f"--probe {words[0]!r}: {error.strerror}") from None
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
