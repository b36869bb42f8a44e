"""What nodes push in a run: the sheets of a node that lives, without the connections by which they get to a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
from protocol.parties import current_party
from protocol.world import Process, World

from loadmanager.client.nodes import PROTOCOL, NodeFailedError
from loadmanager.http.events import frame_of
from loadmanager.http.watch_sheet import Sheet

_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Pushing:
    """In place of the client's own way to a node's stream: `Nodes.watching`."""

    world: World

    @asynccontextmanager
    async def watching(self, url: str, names: Sequence[str], marks: Sequence[str]) -> AsyncIterator[_Stream]:
        process = next(each for each in self.world.of("node") if url.startswith(f"http://{each.host}:"))
        yield _Stream(self.world, process, [Sheet(name) for name in names], list(marks))


@dataclass(frozen=True, slots=True)
class _Stream:
    world: World
    process: Process
    sheets: list[Sheet]
    marks: list[str]

    async def iter_any(self) -> AsyncIterator[bytes]:
        client, node = current_party(), self.process.party
        assert client is not None
        assert node is not None
        yield frame_of("hello", orjson.dumps({"protocol": PROTOCOL}))
        places: dict[Sheet, int | None] = dict.fromkeys(self.sheets)
        while True:
            await asyncio.sleep(self.world.network.latency_s() + _LOOK_S)
            if node.is_dead or self.world.network.is_cut(node.host, client.host):
                raise NodeFailedError(f"{self.process.name}: the stream has ended")
            for sheet in self.sheets:
                self._look(sheet)
                if places[sheet] is None:
                    places[sheet] = next(filter(None, map(sheet.place_of, self.marks)), None)
                if sheet.place != places[sheet]:
                    yield sheet.since(places[sheet]).partition(b"\r\n")[2].removesuffix(b"\r\n")
                    places[sheet] = sheet.place

    def _look(self, sheet: Sheet) -> None:
        assert self.process.node is not None
        view = self.process.node.view
        record = view.namespaces.get(sheet.name)
        if record is None:
            sheet.lose("there is no such namespace")
        else:
            sheet.look(record, view.brokers)
