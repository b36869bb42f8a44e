from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from support.virtual_loop import VirtualLoop

from loadmanager.errors import StoreUnavailableError
from loadmanager.leader.mirror.reread_queue import RereadQueue


@dataclass
class Reader:
    """Records reads with their times in seconds; the first `refused` batches fail."""

    refused: int = 0
    read: list[tuple[float, set[str]]] = field(default_factory=list)
    began_s: float = 0.0

    async def __call__(self, batch: set[str]) -> None:
        if self.refused:
            self.refused -= 1
            raise StoreUnavailableError("no answer")
        self.read.append((round(asyncio.get_running_loop().time() - self.began_s, 3), batch))


def follow(reader: Reader, scenario: Callable[[RereadQueue], Awaitable[None]]) -> None:
    """Have the scenario mark paths, which `reader` reads."""

    async def work() -> None:
        reader.began_s = asyncio.get_running_loop().time()
        rereading = RereadQueue(reader)
        task = asyncio.create_task(rereading.run())
        await scenario(rereading)
        task.cancel()
        await asyncio.wait({task})

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())


async def mark_each_tenth_of_a_second(rereading: RereadQueue) -> None:
    for number in range(10):
        rereading.mark(f"/{number}")
        await asyncio.sleep(0.1)


def test_marked_paths_are_read_together_at_once() -> None:
    async def scenario(rereading: RereadQueue) -> None:
        for path in ("/a", "/b", "/a"):
            rereading.mark(path)
        await rereading.settled()
        assert not rereading.is_marked("/a")

    reader = Reader()
    follow(reader, scenario)
    assert reader.read == [(0.002, {"/a", "/b"})]
    reader = Reader()
    follow(reader, mark_each_tenth_of_a_second)
    assert [at_s for at_s, _ in reader.read] == [round(number / 10 + 0.002, 3) for number in range(10)]


def test_failed_batch_is_retried_with_newly_marked_paths() -> None:
    async def scenario(rereading: RereadQueue) -> None:
        rereading.mark("/a")
        await asyncio.sleep(0.1)
        rereading.mark("/b")
        await rereading.settled()

    reader = Reader(refused=1)
    follow(reader, scenario)
    assert reader.read == [(0.204, {"/a", "/b"})]


def test_settled_waits_for_the_first_read() -> None:
    async def scenario(rereading: RereadQueue) -> None:
        waiting = asyncio.create_task(rereading.settled())
        await asyncio.sleep(10.0)
        assert not waiting.done()
        rereading.mark("/")
        await waiting

    reader = Reader()
    follow(reader, scenario)
    assert reader.read == [(10.002, {"/"})]
